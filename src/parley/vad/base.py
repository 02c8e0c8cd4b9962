"""Is someone speaking? One probability per window, from whatever listens.

A detector hears one conversation, window by window, and may remember what came before. What the
probabilities amount to (an utterance, a click, a pause) is `utterance.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from parley.media.pcm import INPUT_RATE_HZ, Samples

RATE_HZ = INPUT_RATE_HZ
"""Detectors hear what clients send."""

WINDOW_SAMPLES = 1024
"""64 ms at 16 kHz. Source: half-duplex API, `vad.threshold`."""


class Detector(Protocol):
    """Hears one conversation. Not shared between conversations, not safe from two threads."""

    def probability(self, window: Samples) -> float:
        """How likely somebody speaks in `window`, 0 to 1.

        Args:
            window: mono float32, 16 kHz, exactly `WINDOW_SAMPLES` samples, following the last one.
        """
        ...

    def reset(self) -> None:
        """Forget everything heard so far."""
        ...


DetectorFactory = Callable[[], Detector]
"""Makes a detector for one conversation; what is heavy is shared behind it."""
