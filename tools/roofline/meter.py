"""A meter of operators: the launches, memory traffic and products of a step.

It intercepts every operator that torch runs, so it counts the code as it is. With tensors on the
`meta` device nothing is computed, and the published sizes cost nothing.

Each operator counts as one kernel (`KERNELS` lists those that launch more). Its bytes are its
inputs and outputs, as if none were in a cache of the chip. Independent of models, except for the
padding of our kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from parley.models.minicpmo45.quantize import row_blocks

KERNELS: Final = {"parley::slot_attention": 2}
"""Number of kernels of operators that launch more than one."""

_FREE: Final = (
    "aten::empty",
    "aten::new_empty",
    "aten::detach",
    "aten::lift_fresh",
    "aten::resize_",
    "aten::_local_scalar_dense",
)
"""Operators that launch nothing, in addition to views."""

_PICKERS: Final = ("aten::index", "aten::index_select", "aten::embedding", "aten::gather")
"""Operators that read only the returned part of their first input."""


@dataclass(frozen=True, slots=True)
class Op:
    """One executed operator.

    Args:
        weight_bytes, cache_bytes: bytes read or written of the meter's weights and caches.
        other_bytes: all other bytes that it reads and writes.
        flops: multiplications and additions of its products; 0 for elementwise operators.
        is_wide: True if its products are in float32.
    """

    name: str
    kernels: int
    weight_bytes: int
    cache_bytes: int
    other_bytes: int
    flops: int
    is_wide: bool

    @property
    def nbytes(self) -> int:
        """All bytes read and written."""
        return self.weight_bytes + self.cache_bytes + self.other_bytes


@dataclass(slots=True)
class Count:
    """The operators and transfers of a step.

    Args:
        copies: transfers between host and device, in either direction.
    """

    ops: list[Op] = field(default_factory=list)
    copies: int = 0

    def add(self, other: Count) -> None:
        """Add the counts of another one."""
        self.ops += other.ops
        self.copies += other.copies

    @property
    def kernels(self) -> int:
        return sum(op.kernels for op in self.ops)

    @property
    def weight_bytes(self) -> int:
        return sum(op.weight_bytes for op in self.ops)

    @property
    def cache_bytes(self) -> int:
        return sum(op.cache_bytes for op in self.ops)

    @property
    def nbytes(self) -> int:
        return sum(op.nbytes for op in self.ops)

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.ops)


class Returned:
    """Cache of the results of operators on tensors without memory.

    Layers repeat the same operators, and PyTorch computes the shapes of many results in Python:
    this cache does so once for equal inputs.
    """

    def __init__(self) -> None:
        # No tensor is stored: the caller may count live tensors. None: run the operator each time.
        self._known: dict[Hashable, tuple[torch.Size, tuple[int, ...], torch.dtype] | None] = {}

    def key(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[Tensor]) -> Hashable | None:
        """The facts that determine an operator's result; None if it must be run each time.

        Args:
            inputs: all tensors of `args` and `kwargs`.
        """
        is_pure = not func._schema.is_mutable and all(tensor.is_meta for tensor in inputs)
        return (func, _facts(args), _facts(kwargs)) if is_pure and inputs else None

    def run(self, func: Any, args: Any, kwargs: Any, key: Hashable | None) -> Any:
        """Return an operator's result, from the cache if possible."""
        is_known = key in self._known
        if (known := self._known.get(key)) is not None:
            shape, stride, dtype = known
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        if func._opname == "_weight_int4pack_mm" and args[0].is_meta:
            # torch can compute this operator's shapes only for its own fake tensors.
            out = args[0].new_empty(args[0].shape[0], 8 * args[1].shape[0])
        else:
            out = func(*args, **kwargs)
        if key is not None and not is_known:
            given = {_storage(tensor) for tensor in tensors_of((args, kwargs))}
            is_new = isinstance(out, Tensor) and out.is_meta and _storage(out) not in given
            self._known[key] = (out.shape, out.stride(), out.dtype) if is_new else None
        return out


def _facts(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return (tree.shape, tree.stride(), tree.dtype)
    if isinstance(tree, list | tuple):
        return tuple([_facts(one) for one in tree])
    if isinstance(tree, dict):
        return tuple([(name, _facts(one)) for name, one in tree.items()])
    return tree


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run inside its context; use it under `torch.inference_mode`, so
    that a product is one operator.

    Args:
        weights, caches: tensors whose traffic is counted separately.
        returned: cache of the operators' results.
    """

    def __init__(
        self,
        weights: Iterable[Tensor] = (),
        caches: Iterable[Tensor] = (),
        returned: Returned | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = Count()
        self._weights = {_storage(tensor) for tensor in weights}
        self._caches = {_storage(tensor) for tensor in caches}
        self._returned = returned or Returned()
        self._ops: dict[Hashable, Op | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_of((args, kwargs))
        key = self._returned.key(func, args, kwargs, inputs)
        out = self._returned.run(func, args, kwargs, key)
        # An operator costs the same for equal inputs of the same kinds.
        known = (key, tuple([self._kind(tensor) for tensor in inputs]))
        if key is not None and known in self._ops:
            if (op := self._ops[known]) is not None:
                self.count.ops.append(op)
            return out
        name = f"{func.namespace}::{func._opname}"
        outputs = tensors_of(out)
        self.count.copies += _crosses(inputs, outputs)
        is_launched = self._is_launched(func, name, inputs, outputs)
        op = self._op(name, args, inputs, outputs) if is_launched else None
        if op is not None:
            self.count.ops.append(op)
        if key is not None and all(tensor.is_meta for tensor in outputs):
            self._ops[known] = op
        return out

    def _kind(self, tensor: Tensor) -> int:
        place = _storage(tensor)
        return 2 * (place in self._weights) + (place in self._caches)

    def _op(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Op:
        weight_bytes = cache_bytes = other_bytes = 0
        for tensor, nbytes in self._moved(name, args, inputs, outputs):
            if _storage(tensor) in self._weights:
                weight_bytes += nbytes
            elif _storage(tensor) in self._caches:
                cache_bytes += nbytes
            else:
                other_bytes += nbytes
        return Op(
            name,
            KERNELS.get(name, 1),
            weight_bytes,
            cache_bytes,
            other_bytes,
            _flops(name, args, outputs),
            bool(inputs) and inputs[0].dtype in (torch.float32, torch.float64),
        )

    def _is_launched(
        self, func: Any, name: str, inputs: list[Tensor], outputs: list[Tensor]
    ) -> bool:
        if not outputs or name.startswith(_FREE):
            return False
        if func._schema.is_mutable:
            return True
        known = {_storage(tensor) for tensor in inputs}
        return any(_storage(tensor) not in known for tensor in outputs)

    def _moved(
        self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> Iterable[tuple[Tensor, int]]:
        """Tensors, with the number of bytes read or written of each."""
        if name == "parley::slot_attention":
            query, keys, values, slots, _, _, reads = args[:7]
            seen = slots.shape[0] * keys.shape[1] * reads * keys.shape[3] * keys.element_size()
            yield from ((query, query.nbytes), (keys, seen), (values, seen))
            vectors = slots.shape[0] * keys.shape[1] * reads
            yield from ((one, vectors * one.element_size()) for one in args[8:] if one is not None)
        elif name == "parley::place_heads":
            yield from ((tensor, _nbytes(tensor)) for tensor in args[:8] if tensor is not None)
            # Only the new entries of the cache are accessed.
            for given, kept in ((args[1], args[8]), (args[2], args[9])):
                yield given, given.numel() * kept.element_size()
        elif name.startswith(("aten::index_put", "aten::index_copy")):
            # Only the new entries are accessed, regardless of the size of the target.
            yield inputs[-1], 2 * _nbytes(inputs[-1])
            return
        elif name in _PICKERS:
            yield inputs[0], _nbytes(outputs[0])
        else:
            yield from ((tensor, _nbytes(tensor)) for tensor in inputs)
        yield from ((tensor, _nbytes(tensor)) for tensor in outputs)


def tensors_of(tree: Any) -> list[Tensor]:
    """All tensors of nested lists, tuples and dictionaries."""
    found: list[Tensor] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, list | tuple):
        for one in tree:
            _gather(one, found)
    elif isinstance(tree, dict):
        for one in tree.values():
            _gather(one, found)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements; expanded elements count once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


def _crosses(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """True if data is transferred from the host to the device or back."""
    kinds = {tensor.device.type for tensor in (*inputs, *outputs) if tensor.dim()}
    return len(kinds) > 1


def _flops(name: str, args: Any, outputs: list[Tensor]) -> int:
    """Floating-point operations of an operator's products."""
    match name.removeprefix("aten::"):
        case "linear" | "matmul" | "mm" | "bmm" | "_weight_int4pack_mm" | "parley::few_rows":
            return 2 * outputs[0].numel() * int(args[0].shape[-1])
        case "parley::product_of_tiles":
            rows, columns = map(int, args[0].shape)
            rows += -rows % sum(row_blocks(rows))
            return 2 * rows * int(outputs[0].shape[1]) * columns
        case "addmm":
            return 2 * outputs[0].numel() * int(args[1].shape[-1])
        case "conv1d" | "conv2d" | "convolution":
            return 2 * outputs[0].numel() * int(args[1][0].numel())
        case "conv_transpose1d":
            return 2 * int(args[0].numel()) * int(args[1][0].numel())
        case "scaled_dot_product_attention":
            return 4 * int(args[0].numel()) * int(args[1].shape[-2])
        case "parley::slot_attention":
            return 4 * int(args[0].numel()) * int(args[6])
    return 0
