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
        """Whole numbers of at most 31 bits; gives their place."""
        return self._add(np.asarray(values, np.int32).reshape(-1))

    def floats(self, values: Sequence[float] | npt.NDArray[np.float32]) -> slice:
        """Numbers in single precision; gives their place."""
        return self._add(np.asarray(values, np.float32).reshape(-1).view(np.int32))

    def _add(self, words: npt.NDArray[np.int32]) -> slice:
        self._parts.append(words)
        start, self._count = self._count, self._count + len(words)
        return slice(start, self._count)

    def send(self, device: torch.device) -> Arrived:
        words = torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *self._parts]))
        return Arrived(to_device(words, device))


class Arrived:
    def __init__(self, words: Tensor) -> None:
        self._words = words

    def ints(self, place: slice) -> Tensor:
        """int64, shape (n,)."""
        return self._words[place].long()

    def floats(self, place: slice) -> Tensor:
        """float32, shape (n,)."""
        return self._words[place].view(torch.float32)
