"""Our kernels as operators of torch, for tensors without memory.

A meter counts each as one operator, and torch needs only its shape. Importing this module turns the
launching functions of `slot_attention`, `fused`, `products` and `quantize` into operators; on a
device they launch their kernels as before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from parley.models.minicpmo45 import quantize
from parley.models.minicpmo45.runtime import fused, products, slot_attention

P = ParamSpec("P")
R = TypeVar("R")


def operator(
    name: str, shape_only: Callable[..., Any], changes: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn a function into the operator `parley::name`. Its first argument must be a tensor.

    Args:
        shape_only: returns the function's result for tensors without memory.
        changes: names of the arguments that it writes into.
    """

    def decorate(run: Callable[P, R]) -> Callable[P, R]:
        @functools.cache
        def made() -> Any:
            bare = inspect.unwrap(run)
            one = torch.library.custom_op(f"parley::{name}", bare, mutates_args=changes)
            one.register_fake(shape_only)
            return one

        @functools.wraps(run)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            first = next(iter((*args, *kwargs.values())))
            assert isinstance(first, Tensor)
            found: R = (made() if first.is_meta else run)(*args, **kwargs)
            return found

        return call

    return decorate


def _attended(query: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _added(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _placed(query: Tensor, *given: Any) -> Tensor:
    width = given[7].shape[2]
    return query.new_empty(query.shape[0], query.shape[1] // width, width)


def _gated(gates: Tensor, _: Tensor) -> Tensor:
    return gates.new_empty(gates.shape)


slot_attention.attend = operator("slot_attention", _attended)(slot_attention.attend)
CACHES = ("kept_keys", "kept_values", "key_scales", "value_scales")
fused.add_norm = operator("add_norm", _added)(fused.add_norm)
fused.place_heads = operator("place_heads", _placed, CACHES)(fused.place_heads)
fused.gate = operator("gate", _gated)(fused.gate)
products.few_rows = operator("few_rows", products.shape_of_product)(products.few_rows)
products.unpacked_rows = operator("unpacked_rows", products.shape_of_rows)(products.unpacked_rows)
quantize.product_of_tiles = operator("product_of_tiles", quantize.shape_of_product)(
    quantize.product_of_tiles
)
