"""When the user spoke in a duplex call, from the samples of its units: for subtitles.

Levels of 20 ms against the quietest that was heard lately. The models that hear words do not report
when they were said; this is exact to a few hundredths of a second where the room is quieter than
the speaker. Shapes: `N` samples.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from parley.media.pcm import Pcm

FRAME_S: Final = 0.02
QUIET_LEVEL: Final = 0.006
"""RMS below which nothing is speech."""
OVER_FLOOR: Final = 3.0
"""Factor by which speech is louder than the quietest of late."""
FLOOR_RISE: Final = 1.004
"""Rate at which the floor follows a louder room, per frame: half in 2 s."""
BREAK_S: Final = 1.2
"""A pause of this length separates two utterances."""
LEAST_FRAMES: Final = 4
"""A shorter sound is a click."""
LONGEST_KEPT: Final = 64


class SpeechTimes:
    """Stretches of speech that no words were given for yet; bounded."""

    def __init__(self) -> None:
        self._floor = QUIET_LEVEL
        self._stretches: list[list[float]] = []
        self._run: list[float] = []

    def feed(self, pcm: Pcm, end_s: float) -> None:
        """Look at samples, shape (N,), of which the last was heard at `end_s`."""
        size = max(1, round(FRAME_S * pcm.rate_hz))
        count = len(pcm) // size
        if count == 0:
            return
        frames = pcm.samples[: count * size].reshape(count, size)
        start_s = end_s - len(pcm) / pcm.rate_hz
        for i, level in enumerate(np.sqrt(np.mean(np.square(frames), axis=1))):
            self._hear(float(level), start_s + i * FRAME_S)

    def _hear(self, level: float, at_s: float) -> None:
        self._floor = min(level, self._floor * FLOOR_RISE) if level > 0 else self._floor
        self._floor = max(self._floor, QUIET_LEVEL / OVER_FLOOR)
        if level < max(QUIET_LEVEL, OVER_FLOOR * self._floor):
            self._run = []
            return
        self._run.append(at_s)
        if len(self._run) < LEAST_FRAMES:
            return
        first_s, last_s = self._run[0], at_s + FRAME_S
        if self._stretches and first_s - self._stretches[-1][1] < BREAK_S:
            self._stretches[-1][1] = last_s
        else:
            self._stretches = [*self._stretches, [first_s, last_s]][-LONGEST_KEPT:]

    def take(self) -> tuple[float, float] | None:
        """Start and end, in seconds, of what was said last; None if nothing was heard since."""
        if not self._stretches:
            return None
        start_s, end_s = self._stretches[-1]
        self._stretches = []
        return max(0.0, start_s), end_s
