"""Parts that several networks share, and the memory layout of matrices."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.errors import SetupError

Activation = Callable[[Tensor], Tensor]

_ACTIVATIONS: Final[dict[str, Activation]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def activation(name: str) -> Activation:
    """The activation of this name, as configurations of `transformers` spell it.

    Raises:
        SetupError: no part of the published model uses it.
    """
    if name not in _ACTIVATIONS:
        raise SetupError(
            f"config.json asks for the activation '{name}', which is not supported.",
            hint=f"Supported: {', '.join(_ACTIVATIONS)}.",
        )
    return _ACTIVATIONS[name]


class Projection(nn.Module):
    """Projection from the width of one part to that of another; named as in the checkpoint."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inner, width)
        self.linear2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.relu(self.linear1(x)))


class SelfAttention(nn.Module):
    """Projections of attention between all frames, or patches, of a piece; named as in the
    checkpoint."""

    def __init__(self, width: int, heads: int, *, keys_have_bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.k_proj = nn.Linear(width, width, bias=keys_have_bias)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def split(self, projected: Tensor) -> Tensor:
        """(N, L, width) to (N, heads, L, head width)."""
        return projected.view(*projected.shape[:2], self.heads, self.head_dim).transpose(1, 2)


class PackedLinear(nn.Module):
    """A product in float32 on a CPU with a matrix in oneDNN's memory layout. BLAS would rearrange
    the matrix in every call, which is a sixth of the time of a product of 100 rows, and 40 % for 25
    rows."""

    LEAST = 1 << 18
    """Minimum number of elements of such a matrix: a call takes 10 us longer."""

    ROWS = 100
    """Approximate number of input rows for which the layout is chosen."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        # Not a buffer: it has no storage that could be moved or copied.
        self._matrix = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self.ROWS)

    def forward(self, x: Tensor, then: str = "none") -> Tensor:
        """The product; with `then` "gelu", in its tanh form, applied while it is in the processor's
        cache."""
        return torch.ops.mkldnn._linear_pointwise(x, self._matrix, self.bias, then, [], "tanh")

    @classmethod
    def serves(cls, weight: Tensor) -> bool:
        """True if a product with this matrix is faster in this layout."""
        has_library = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        is_plain = weight.device.type == "cpu" and weight.dtype is torch.float32
        return has_library and is_plain and weight.numel() >= cls.LEAST


def pack(network: nn.Module) -> None:
    """Replace the linear layers that `PackedLinear` serves. Called once the weights are loaded."""
    for parent in list(network.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Linear) and PackedLinear.serves(part.weight):
                setattr(parent, name, PackedLinear(part.weight, part.bias))


def outputs_together(linear: nn.Linear) -> None:
    """Store a matrix by inputs: products of few rows then read long contiguous lines, even if the
    matrix is narrow (docs/log/minicpmo45.md)."""
    weight = linear.weight.detach().t().contiguous().t()
    linear.weight = nn.Parameter(weight, requires_grad=False)


def joined(parts: Sequence[nn.Linear]) -> Tensor:
    """One matrix (inputs, outputs) of several projections of the same input, whose weights become
    views of it. In float32 it is stored by inputs, so that a product of one row takes two thirds of
    the time."""
    matrix = torch.cat([part.weight.detach() for part in parts])
    if matrix.dtype is torch.float32:
        matrix = matrix.t().contiguous().t()
    weights = torch.split(matrix, [part.out_features for part in parts])
    for part, weight in zip(parts, weights, strict=True):
        part.weight = nn.Parameter(weight, requires_grad=False)
    return matrix.t()


_LARGE_PAGE: Final = 2 << 20

_MADV_COLLAPSE: Final = 25
"""Advice of Linux since 6.1. Source: madvise(2)."""


def in_large_pages(tensors: Iterable[Tensor]) -> None:
    """Move tensors in CPU memory to pages of 2 MiB, if Linux supports it. The time of a token is
    that of reading the weights, and in a virtual machine a third of it is spent on looking up their
    pages of 4 KiB (docs/log/minicpmo45.md). Mapped files are unchanged."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    for storage in (tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"):
        begin = -(-storage.data_ptr() // _LARGE_PAGE) * _LARGE_PAGE
        end = (storage.data_ptr() + storage.nbytes()) // _LARGE_PAGE * _LARGE_PAGE
        if begin < end:
            # An older kernel returns an error and changes nothing.
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)
