"""A stand-in for CUDA graphs that works on a CPU.

`FakeCapture` records the operators of a step, and a replay runs these on the same tensors, without
the Python of the step. So everything around a graph behaves as on a GPU: a value that is not part
of the key stays that of the capture, and so does a tensor that was replaced since; inputs that are
not copied in are stale. Memory of a step is shared with all others: the next replay or recording
overwrites what a step has left there, results that were not copied out and tensors that Python
keeps. During recording, operations that a real capture forbids (reading a value on the host,
data-dependent shapes, new tensors from host data) raise.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


class _Operator(NamedTuple):
    """An operator that was called.

    Args:
        made: its results that are not memory of its inputs, by their place.
    """

    function: Any
    args: Any
    kwargs: Any
    made: dict[int, Tensor]

    def replay(self) -> None:
        found = [*_tensors(self.function(*self.args, **self.kwargs))]
        for place, mine in self.made.items():
            assert mine.shape == found[place].shape
            mine.copy_(found[place])


class _Recording:
    """Raises for operators that a capture forbids; notes the others.

    In a base class, because PyTorch wraps a mode's own method in one that imports its compiler: a
    second of processor time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[_Operator] = []
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if any(name.startswith(word) for word in FORBIDDEN):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                if index is not None and index.dtype == torch.bool:
                    raise RuntimeError("operation not permitted when stream is capturing: mask")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {_memory(one) for one in _tensors((args, kwargs))}
        results = enumerate(_tensors(result))
        made = {place: one for place, one in results if _memory(one) not in given}
        if made or func._schema.is_mutable:
            self.operators.append(_Operator(func, args, kwargs, made))
            self.made += made.values()
        return result


class Recording(_Recording, TorchDispatchMode):
    """The same as a mode of the dispatcher."""


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _tensors(one)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _spoil(tensor: Tensor) -> None:
    """Fill with numbers that no result may contain."""
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    else:
        tensor.fill_(1 if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max)


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
        self._left: list[Tensor] = []

    def warm_up(self, step: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        step()
        return step()

    def record(
        self, step: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        self._take_memory([])
        recording = Recording()
        with ReadingRules(), recording:
            results = step()

        @torch.inference_mode()
        def replay() -> None:
            self.replays += 1
            self._take_memory(recording.made)
            for operator in recording.operators:
                operator.replay()

        return replay, results

    def _take_memory(self, made: list[Tensor]) -> None:
        """Overwrite what the last step has left, and take what a step will write."""
        for tensor in self._left:
            _spoil(tensor)
        self._left = made
