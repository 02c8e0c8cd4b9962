"""Modules without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLING: Final = frozenset(
    {
        *(Tensor.fill_, Tensor.normal_, Tensor.uniform_, Tensor.zero_),
        *(nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_),
    }
)


@contextmanager
def without_memory() -> Iterator[None]:
    """Tensors created within the context have shapes and no data ("meta" tensors).

    Initialization is skipped: there is no data to fill, and on "meta" PyTorch would import its
    compiler for it, which takes more than a second of processor time.
    """
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLING:
            return args[0] if args else kwargs["tensor"]
        if func is torch.norm_except_dim:
            # Lengths of a matrix's rows, for `weight_norm`.
            return torch.empty(args[0].shape[0], 1)
        return func(*args, **kwargs)
