"""Numbers of one step, sent to the device in one copy.

Each `torch.tensor(..., device=cuda)` is a copy of its own from pageable memory, which waits for
everything that was asked of the device before. An `Upload` collects all numbers of a step and sends
them together from pinned memory, without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; the host does not wait for earlier work of the device."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Upload:
    """Collects numbers; `send` makes them tensors. All words have 32 bits."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.int32]] = []
        self._count = 0

    def ints(self, values: Sequence[int]) -> slice:
        """Add whole numbers of at most 31 bits; returns their place."""
        return self._add(np.asarray(values, np.int32).reshape(-1))

    def floats(self, values: Sequence[float] | npt.NDArray[np.float32]) -> slice:
        """Add numbers in single precision; returns their place."""
        return self._add(np.asarray(values, np.float32).reshape(-1).view(np.int32))

    def _add(self, words: npt.NDArray[np.int32]) -> slice:
        self._parts.append(words)
        start, self._count = self._count, self._count + len(words)
        return slice(start, self._count)

    def send(self, device: torch.device) -> Arrived:
        words = torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *self._parts]))
        return Arrived(to_device(words, device))


class Arrived:
    """What was sent. Places of it are views: the numbers are converted once."""

    def __init__(self, words: Tensor) -> None:
        self._floats = words.view(torch.float32)
        self._ints = words.long()

    def ints(self, place: slice) -> Tensor:
        """int64, shape (n,)."""
        return self._ints[place]

    def floats(self, place: slice) -> Tensor:
        """float32, shape (n,)."""
        return self._floats[place]
