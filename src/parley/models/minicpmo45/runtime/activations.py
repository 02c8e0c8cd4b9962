"""The activations that a checkpoint's configuration may name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from torch import Tensor
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
