"""Is the user speaking? One probability per window, from any detector.

A detector hears one conversation, window by window, and may remember what came before. What the
probabilities amount to (an utterance, a click, a pause) is `utterance.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from parley.media.pcm import INPUT_RATE_HZ, Samples

RATE_HZ = INPUT_RATE_HZ
"""Detectors hear what clients send."""

WINDOW_SAMPLES = 1024
"""64 ms at 16 kHz. Source: service.md 4.3, `vad.threshold`."""

HALF_SAMPLES = WINDOW_SAMPLES // 2
"""Shortest piece that gets a probability of its own, for callers that cannot wait for a window."""

WINDOWS_AT_ONCE = 32
"""Two seconds: what a detector needs for a long recording stays small."""


class Detector(Protocol):
    """Hears one conversation. Not shared between conversations, not safe from two threads."""

    def probabilities(self, windows: Samples) -> list[float]:
        """Probability of speech in each of `windows`, 0 to 1.

        Args:
            windows: mono float32, 16 kHz, shape (B, `WINDOW_SAMPLES`) or (B, `HALF_SAMPLES`), one
                following the other, and the first following the last one heard. At most
                `WINDOWS_AT_ONCE` of them.
        """
        ...

    def reset(self) -> None:
        """Forget everything heard so far."""
        ...


def heard_in(
    detector: Detector, samples: Samples, size: int = WINDOW_SAMPLES
) -> Iterator[tuple[Samples, float]]:
    """The windows of `samples`, a whole number of them, each with its probability.

    Args:
        size: of a window: `WINDOW_SAMPLES` or `HALF_SAMPLES`.
    """
    windows = samples.reshape(-1, size)
    for start in range(0, len(windows), WINDOWS_AT_ONCE):
        batch = windows[start : start + WINDOWS_AT_ONCE]
        yield from zip(batch, detector.probabilities(batch), strict=True)


DetectorFactory = Callable[[], Detector]
"""Makes a detector for one conversation; what is heavy is shared behind it."""


@runtime_checkable
class Remembering(Protocol):
    """A detector that remembers what came before."""

    def snapshot(self) -> object:
        """Its state, as a value: it is replaced, never changed."""
        ...

    def restore(self, kept: Any) -> None:
        """Remember what a snapshot of the same kind of detector says."""
        ...


def snapshot(detector: Detector) -> Any:
    """State of a detector; None: none."""
    return detector.snapshot() if isinstance(detector, Remembering) else None


def restore(detector: Detector, kept: Any) -> None:
    """Return a detector to a snapshot; None is its beginning."""
    detector.reset()
    if kept is not None and isinstance(detector, Remembering):
        detector.restore(kept)
