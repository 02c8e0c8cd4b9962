"""Determines when the user spoke in a duplex call, from the samples of its units; for subtitles.

Compares levels of 20 ms with the quietest recent level. Models that recognise words do not report
their times; this is exact to a few hundredths of a second if the room is quieter than the speaker.
Shapes: `N` samples.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from parley.media.pcm import Pcm

FRAME_S: Final = 0.02
QUIET_LEVEL: Final = 0.006
"""Minimum RMS of speech."""
OVER_FLOOR: Final = 3.0
"""Minimum factor by which speech is louder than the quietest recent level."""
FLOOR_RISE: Final = 1.004
"""Rate per frame at which the floor adapts to a louder room: half in 2 s."""
BREAK_S: Final = 1.2
"""Pause that separates two utterances."""
LEAST_FRAMES: Final = 4
"""Minimum length of speech; a shorter sound is a click."""


class SpeechTimes:
    """The newest speech without words so far."""

    def __init__(self) -> None:
        self._heard_s = 0.0
        self._floor = QUIET_LEVEL
        self._stretch: tuple[float, float] | None = None
        self._run: list[float] = []

    def feed(self, pcm: Pcm) -> None:
        """Examine the next samples, shape (N,)."""
        start_s = self._heard_s
        self._heard_s += pcm.duration_s
        size = max(1, round(FRAME_S * pcm.rate_hz))
        count = len(pcm) // size
        frames = pcm.samples[: count * size].reshape(count, size)
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
        first_s = self._run[0]
        if self._stretch is not None and first_s - self._stretch[1] < BREAK_S:
            first_s = self._stretch[0]
        self._stretch = (first_s, at_s + FRAME_S)

    def take(self) -> tuple[float, float] | None:
        """Start and end of the newest speech since the previous call, in seconds before the end of
        all samples; None if there was none."""
        stretch, self._stretch = self._stretch, None
        return None if stretch is None else (self._heard_s - stretch[0], self._heard_s - stretch[1])
