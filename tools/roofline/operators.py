"""Kernels of ours as operators of torch, for tensors without memory.

A meter counts an operator as one, and torch asks for its shape only. Importing this module makes
operators of `slot_attention.attend`, `quantize.few_rows` and `quantize.unpacked_int4`; on a device
they launch their kernels as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from torch import Tensor

from parley.models.minicpmo45 import quantize
from parley.models.minicpmo45.runtime import slot_attention

P = ParamSpec("P")


def operator(
    name: str, shape_only: Callable[..., Tensor]
) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Make a function the operator `parley::name`. It changes no argument; the first is a tensor.

    Args:
        shape_only: what the function returns, for tensors without memory.
    """

    def decorate(run: Callable[P, Tensor]) -> Callable[P, Tensor]:
        @functools.cache
        def made() -> Any:
            one = torch.library.custom_op(f"parley::{name}", run, mutates_args=())
            one.register_fake(shape_only)
            return one

        @functools.wraps(run)
        def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            first = args[0]
            assert isinstance(first, Tensor)
            found: Tensor = (made() if first.is_meta else run)(*args, **kwargs)
            return found

        return call

    return decorate


def _attended(query: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


slot_attention.launch = operator("slot_attention", _attended)(slot_attention.launch)
quantize.few_rows = operator("few_rows", quantize.shape_of_product)(quantize.few_rows)
quantize.unpacked_int4 = operator("unpacked_int4", quantize.shape_of_unpacked)(
    quantize.unpacked_int4
)
