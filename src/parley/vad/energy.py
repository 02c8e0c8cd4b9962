"""A threshold on loudness: for tests and for machines too small for a neural detector.

It hears doors and keyboards as speech; prefer `silero.py` wherever it runs.
"""

from __future__ import annotations

import numpy as np

from parley.media.pcm import Samples
from parley.vad.base import WINDOW_SAMPLES

FRAME_SAMPLES = 64
"""4 ms: short enough that a click does not fill a window."""

QUIET_RMS = 0.01
"""-40 dB of full scale: above room noise, below a soft voice at a usual microphone gain."""


class EnergyDetector:
    """The part of a window that is louder than `quiet_rms`. Remembers nothing."""

    def __init__(self, quiet_rms: float = QUIET_RMS) -> None:
        self._quiet_power = quiet_rms * quiet_rms

    def probability(self, window: Samples) -> float:
        # float64: a square of a sample beyond full scale must not overflow into infinity.
        frames = window[:WINDOW_SAMPLES].reshape(-1, FRAME_SAMPLES).astype(np.float64)
        power = np.mean(frames * frames, axis=1)
        return float(np.mean(power >= self._quiet_power))

    def reset(self) -> None:
        """Nothing is remembered."""
