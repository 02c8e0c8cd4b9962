"""Defers quiet sound: the network hears many quiet windows in one run, and after seconds none.

Most of what a network costs on a CPU is that its weights come out of memory for every piece of
sound, ten times a second, also while no one speaks. Sound that is far too soft for speech, or no
louder than the noise of the last seconds, therefore waits until there is enough of it for one run,
or until a louder window comes: then all of it is heard first, in order, and every window that can
be speech is heard immediately.

After `PAUSE_S` of still sound the network hears nothing until a louder window comes. Silero
remembers for minutes, and the longer it has heard nothing, the later it notices that the user
speaks again: after 20 s and 45 s of silence 95 % of beginnings were found within 215 and 145 ms,
and within 129 and 106 ms if it had heard only the first seconds of it. Before that nothing is left
out: what it says of speech after a short pause depends on the pause.

A window that waits or is not heard is as likely speech as the last one heard, which was almost
surely none. What is heard depends on the sound alone, not on when a snapshot is taken.

Measured on speech with a clean, a noisy and a telephone's background: docs/log/conversation.md.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np

from parley.media.pcm import Samples
from parley.vad.base import (
    RATE_HZ,
    WINDOWS_AT_ONCE,
    Detector,
    DetectorFactory,
    restore,
    snapshot,
)

STILL_DBFS: Final = -65.0
"""No 16 ms of a window that waits are louder, in a room without noise. Silero hears nothing there
that could be the beginning of speech, if speech is louder than -60 dBFS; interruptions are heard
from -50 dBFS."""

ABOVE_NOISE_DB: Final = 3.0
"""In a room with steady noise, no 16 ms of a window that waits are louder than the least loud of
the last `NOISE_WINDOWS` by more: such speech is heard immediately."""

NOISE_WINDOWS: Final = 48
"""Three seconds."""

SETTLED: Final = 0.01
"""What the network must have said last, before anything waits: below the lowest threshold that ends
an utterance (`utterance.LOWEST_QUIET`), so that speech that dies away is heard to its end."""

PAUSE_S: Final = 3.0
"""Still sound is heard for so long."""

AT_ONCE: Final = 16
"""Windows in one run: a second, two milliseconds of work."""

_PART_SAMPLES: Final = 256
_STILL_ENERGY: Final = _PART_SAMPLES * 10 ** (STILL_DBFS / 10)
_ABOVE_NOISE: Final = 10 ** (ABOVE_NOISE_DB / 10)


def deferring(detectors: DetectorFactory) -> DetectorFactory:
    """Makes detectors that hear still sound later."""
    return lambda: DeferringDetector(detectors())


class DeferringDetector:
    """See the module's text. Memory is bounded by `AT_ONCE` windows."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._waiting: list[Samples] = []
        self._energies: deque[float] = deque(maxlen=NOISE_WINDOWS)
        self._begin()

    def _begin(self) -> None:
        self._waiting.clear()
        self._energies.clear()
        self._last = 1.0
        self._still = 0
        """Samples of still sound in a row."""

    def probabilities(self, windows: Samples) -> list[float]:
        found: list[float] = []
        energies = _energies(windows)
        for index, window in enumerate(windows):
            was_pause = self._is_pause
            is_still = self._is_still(energies[index], len(window))
            if self._is_pause and not was_pause:
                self._hear_waiting()
            if not is_still or self._last >= SETTLED:
                for energy in energies[index + 1 :]:
                    self._is_still(energy, len(window))
                return found + self._hear(windows[index:])
            if not self._is_pause:
                # A copy, so that a long recording is not kept alive by its last windows.
                self._wait(window.copy())
            found.append(self._last)
        return found

    def reset(self) -> None:
        self._detector.reset()
        self._begin()

    def snapshot(self) -> Any:
        self._hear_waiting()
        return snapshot(self._detector), self._last, self._still, list(self._energies)

    def restore(self, kept: Any) -> None:
        inner, last, still, energies = kept
        restore(self._detector, inner)
        self._waiting.clear()
        self._last, self._still = last, still
        self._energies = deque(energies, maxlen=NOISE_WINDOWS)

    @property
    def _is_pause(self) -> bool:
        return self._still > PAUSE_S * RATE_HZ

    def _is_still(self, energy: float, samples: int) -> bool:
        """Count a window, and whether it is still."""
        least = min(self._energies, default=0.0)
        self._energies.append(energy)
        is_still = energy < max(_STILL_ENERGY, _ABOVE_NOISE * least)
        self._still = self._still + samples if is_still else 0
        return is_still

    def _wait(self, window: Samples) -> None:
        self._waiting.append(window)
        if len(self._waiting) == AT_ONCE:
            self._hear_waiting()

    def _hear_waiting(self) -> None:
        if self._waiting:
            waiting = np.stack(self._waiting)
            self._waiting.clear()
            self._last = self._detector.probabilities(waiting)[-1]

    def _hear(self, windows: Samples) -> list[float]:
        """The next windows, after those that wait."""
        if len(self._waiting) + len(windows) > WINDOWS_AT_ONCE:
            self._hear_waiting()
        before = len(self._waiting)
        if before:
            windows = np.concatenate([np.stack(self._waiting), windows])
            self._waiting.clear()
        found = self._detector.probabilities(windows)
        self._last = found[-1]
        return found[before:]


def _energies(windows: Samples) -> list[float]:
    """Of the loudest part of each window; windows of shape (B, WINDOW_SAMPLES)."""
    parts = windows.reshape(len(windows), -1, _PART_SAMPLES)
    # float64: the square of a sample beyond full scale must not overflow.
    energies = np.einsum("bps,bps->bp", parts, parts, dtype=np.float64)
    found: list[float] = energies.max(axis=1).tolist()
    return found
