"""A stand-in for CUDA graphs that works on a CPU.

`FakeCapture` records the callable instead of the kernels: a replay calls it again on the same
static inputs, and copies its results to the same static tensors. So everything around a graph
behaves as on a GPU: a value that is not part of the key stays that of the capture, inputs that are
not copied in are stale, and results that are not copied out are overwritten by the next replay.
During recording, operations that a real capture forbids (reading a value on the host,
data-dependent shapes, new tensors from host data) raise.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from parley.models.minicpmo45.runtime.attention import FusedAttention


class InPlace(FusedAttention):
    """A stand-in for the kernel, which reports that it reads any subset of rows without a copy."""

    reads_in_place = True


FORBIDDEN = (
    "_local_scalar_dense",
    "lift_fresh",
    "nonzero",
    "masked_select",
    "unique",
    "equal",
)
"""Operators that wait for the device, or copy data from the host."""


class _Rules:
    """Raises for operators that a capture forbids.

    In a base class, because PyTorch wraps a mode's own method in one that imports its compiler: a
    second of processor time.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if any(name.startswith(word) for word in FORBIDDEN):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                if index is not None and index.dtype == torch.bool:
                    raise RuntimeError("operation not permitted when stream is capturing: mask")
        return func(*args, **(kwargs or {}))


class CaptureRules(_Rules, TorchDispatchMode):
    """The rules as a mode of the dispatcher."""


READING = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__"}


class ReadingRules(TorchFunctionMode):
    """The same for reads that inference mode handles without the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **(kwargs or {}))


class FakeCapture:
    """See the module's docstring. `replays` counts the replays."""

    def __init__(self) -> None:
        self.replays = 0

    def warm_up(self, step: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        step()
        return step()

    def record(
        self, step: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        with ReadingRules(), CaptureRules():
            results = tuple(result.clone() for result in step())

        def replay() -> None:
            self.replays += 1
            # As in a real replay, no Python mode sees the operators.
            for mine, new in zip(results, step(), strict=True):
                mine.copy_(new)

        return replay, results
