"""Defers quiet audio: the network processes many quiet windows in one run, and after seconds none.

Most of a network's cost on a CPU is reading its weights from memory for every piece of audio, ten
times a second, also while no one speaks. Audio that is far too quiet for speech, or no louder than
the noise of the last seconds, is therefore deferred until there is enough of it for one run, or
until a louder window arrives. The network then processes all deferred windows first, in order;
every window that may be speech is processed immediately.

After `PAUSE_S` of quiet audio, quiet windows are skipped until a louder one arrives. Silero's state
reaches back for minutes, and the more silence it has processed, the later it detects that the user
speaks again: after 20 s and 45 s of silence 95 % of onsets were detected within 215 and 145 ms, and
within 129 and 106 ms if it had processed only the first seconds of the silence. Before that nothing
is skipped: its result for speech after a short pause depends on the pause.

A deferred or skipped window gets the probability of the last processed one, which is almost 0. The
choice of processed windows depends on the audio alone, not on when a snapshot is taken.

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
    without_constant,
)

STILL_DBFS: Final = -65.0
"""Maximum level of any 16 ms of a deferred window, in a room without noise. Below it, Silero
detects nothing that could be the onset of speech louder than -60 dBFS; interruptions are detected
from -50 dBFS."""

ABOVE_NOISE_DB: Final = 3.0
"""In a room with steady noise, maximum level of any 16 ms of a deferred window above the quietest
of the last `NOISE_WINDOWS`: louder speech is processed immediately."""

NOISE_WINDOWS: Final = 48
"""Number of windows for the level of noise: three seconds."""

SETTLED: Final = 0.01
"""Windows are deferred only if the network's last probability is below this. It is below the lowest
threshold that ends an utterance (`utterance.LOWEST_QUIET`), so that fading speech is processed to
its end."""

PAUSE_S: Final = 3.0
"""Time for which quiet audio is still processed."""

AT_ONCE: Final = 16
"""Number of windows in one run: a second of audio, two milliseconds of work."""

_PART_SAMPLES: Final = 256
_STILL_ENERGY: Final = _PART_SAMPLES * 10 ** (STILL_DBFS / 10)
_ABOVE_NOISE: Final = 10 ** (ABOVE_NOISE_DB / 10)


def deferring(detectors: DetectorFactory) -> DetectorFactory:
    """Returns a factory of detectors that defer quiet audio."""
    return lambda: DeferringDetector(detectors())


class DeferringDetector:
    """See the module's docstring. Memory is bounded by `AT_ONCE` windows."""

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
        """Number of consecutive samples of quiet audio."""

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
                self._waiting.append(window.copy())
                if len(self._waiting) == AT_ONCE:
                    self._hear_waiting()
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
        """Account for a window; returns True if it is quiet."""
        least = min(self._energies, default=0.0)
        self._energies.append(energy)
        is_still = energy < max(_STILL_ENERGY, _ABOVE_NOISE * least)
        self._still = self._still + samples if is_still else 0
        return is_still

    def _hear_waiting(self) -> None:
        if self._waiting:
            waiting = np.stack(self._waiting)
            self._waiting.clear()
            self._last = self._detector.probabilities(waiting)[-1]

    def _hear(self, windows: Samples) -> list[float]:
        """Process the next windows, after the deferred ones."""
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
    """Energy of the loudest part of each window, without the constant that some microphones add;
    windows of shape (B, WINDOW_SAMPLES)."""
    parts = without_constant(windows).reshape(len(windows), -1, _PART_SAMPLES)
    energies = np.einsum("bps,bps->bp", parts, parts)
    found: list[float] = energies.max(axis=1).tolist()
    return found
