"""A threshold on loudness: for tests and for machines too small for a neural detector.

It mistakes doors and keyboards for speech; prefer `silero.py` wherever it runs.
"""

from __future__ import annotations

import numpy as np

from parley.media.pcm import Samples
from parley.vad.base import without_constant

FRAME_SAMPLES = 64
"""Length of a frame, 4 ms: short enough that a click does not fill a window."""

QUIET_RMS = 0.01
"""-40 dB of full scale: above room noise, below a soft voice at a usual microphone gain."""


class EnergyDetector:
    """Returns the fraction of a window that is louder than `QUIET_RMS`. Stateless."""

    def probabilities(self, windows: Samples) -> list[float]:
        frames = without_constant(windows).reshape(len(windows), -1, FRAME_SAMPLES)
        power = np.mean(frames * frames, axis=2)
        found: list[float] = np.mean(power >= QUIET_RMS**2, axis=1).tolist()
        return found

    def reset(self) -> None:
        """Does nothing: it has no state."""
