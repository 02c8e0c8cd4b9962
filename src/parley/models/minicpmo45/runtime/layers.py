"""Activations that a checkpoint's configuration names, and the norm of both decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class RmsNorm(nn.Module):
    """Divide by the root of the mean square, and scale, in one operator.

    In float32 it returns what `transformers`' module of the same name does, bit for bit; in
    bfloat16 it rounds once at the end, where that one rounds in between, too.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        return F.rms_norm(x, weight.shape, weight, self.eps)


def outputs_together(linear: nn.Linear) -> None:
    """Store a matrix by inputs: products of few rows then read it in long lines, however narrow it
    is (docs/log/minicpmo45.md)."""
    weight = linear.weight.detach().t().contiguous().t()
    linear.weight = nn.Parameter(weight, requires_grad=False)


def joined(parts: Sequence[nn.Linear]) -> Tensor:
    """One matrix of several projections of the same input, whose weights become parts of it."""
    matrix = torch.cat([part.weight.detach() for part in parts])
    weights = torch.split(matrix, [part.out_features for part in parts])
    for part, weight in zip(parts, weights, strict=True):
        part.weight = nn.Parameter(weight, requires_grad=False)
    return matrix
