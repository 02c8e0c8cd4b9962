"""Interface of voice detectors: one probability of speech per window.

A detector processes one conversation, window by window, and may keep state between windows.
`utterance.py` interprets the probabilities (an utterance, a click, a pause).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from parley.media.pcm import INPUT_RATE_HZ, Samples

RATE_HZ = INPUT_RATE_HZ
"""Sample rate of detectors: that of the clients' audio."""

WINDOW_SAMPLES = 1024
"""Length of a window: 64 ms at 16 kHz. Source: service.md 4.3, `vad.threshold`."""

HALF_SAMPLES = WINDOW_SAMPLES // 2
"""Shortest piece that gets its own probability, for callers that cannot wait for a window."""

WINDOWS_AT_ONCE = 32
"""Maximum number of windows per call: two seconds, so that a long recording needs little memory."""

LEAST_CONSTANT = 0.003
"""Smallest constant that is taken away from what is judged."""


def without_constant(samples: Samples) -> npt.NDArray[np.float64]:
    """`samples`, shape (..., N), without the constant that some microphones add. float64, because
    the square of a sample beyond full scale must not overflow."""
    centred: npt.NDArray[np.float64] = samples - samples.mean(-1, np.float64, keepdims=True)
    return centred


def steadied(samples: Samples) -> Samples:
    """`samples`, shape (N,), without the constant that a microphone adds. The same array if there
    is none, as in the clips that networks were trained with: they notice any change.

    Single sounds have a mean, too, but its sign changes. Source: docs/log/conversation.md.
    """
    means = samples[len(samples) % HALF_SAMPLES :].reshape(-1, HALF_SAMPLES).mean(1, np.float64)
    if not len(means):
        return samples
    low, constant, high = np.quantile(means, (0.15, 0.5, 0.85))
    is_real = low * high > 0 and LEAST_CONSTANT <= abs(constant) <= 1
    return samples - np.float32(constant) if is_real else samples


def power_of(samples: Samples) -> float:
    """Mean square of `samples`, shape (N,), without the constant that some microphones add.

    As `np.var`, which takes four times as long for a window: up to 100 are measured per second.
    """
    wide = samples.astype(np.float64)
    wide -= wide.sum() / len(wide)
    return float(wide @ wide) / len(wide)


class Detector(Protocol):
    """Detector of one conversation. Not shared between conversations, not thread-safe."""

    def probabilities(self, windows: Samples) -> list[float]:
        """Probability of speech in each of `windows`, 0 to 1.

        Args:
            windows: mono float32, 16 kHz, shape (B, `WINDOW_SAMPLES`) or (B, `HALF_SAMPLES`),
                contiguous, and continuing the previous call's. At most `WINDOWS_AT_ONCE` of them.
        """
        ...

    def reset(self) -> None:
        """Reset to the initial state."""
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
"""Creates a detector for one conversation; detectors share large data such as a network."""


@runtime_checkable
class Remembering(Protocol):
    """A detector with state."""

    def snapshot(self) -> object:
        """Its state, as an immutable value."""
        ...

    def restore(self, kept: Any) -> None:
        """Restore the state from a snapshot of the same kind of detector."""
        ...


def snapshot(detector: Detector) -> Any:
    """State of a detector; None if it has none."""
    return detector.snapshot() if isinstance(detector, Remembering) else None


def restore(detector: Detector, kept: Any) -> None:
    """Restore a detector from a snapshot; None resets it."""
    detector.reset()
    if kept is not None and isinstance(detector, Remembering):
        detector.restore(kept)
