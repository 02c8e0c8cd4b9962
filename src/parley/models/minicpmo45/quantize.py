"""Smaller weights for smaller cards: the language model's layers in 8 or 4 bits, through torchao.

Weights only: what is computed stays in the model's dtype. Embeddings, head, ears, eyes and mouth
keep their weights; the layers are three quarters of the model. int8 runs everywhere, int4 on
NVIDIA GPUs in bfloat16 (the kernels are PyTorch's own).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from parley.errors import SetupError

Kind = Literal["none", "int8", "int4"]

GROUP = 128
"""Neighbouring int4 weights that share a scale and a zero."""

EXTRA = "pip install 'parley[quantize]'"
"""What brings the library."""


def quantise(layers: nn.ModuleList, kind: Kind) -> None:
    """Replace the layers' matrices in place, one after the other.

    Raises:
        SetupError: it cannot be done here.
    """
    if kind == "none":
        return
    weight = next(layers.parameters())
    torchao = checked(kind, device=weight.device, dtype=weight.dtype)
    if kind == "int8":
        config = torchao.Int8WeightOnlyConfig(set_inductor_config=False)
    else:
        config = torchao.Int4WeightOnlyConfig(
            group_size=GROUP, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
        )
    torchao.quantize_(layers, config)


def checked(kind: Kind, *, device: torch.device, dtype: torch.dtype) -> Any:
    """The library that `quantise` will use; None where nothing is to be done.

    Raises:
        SetupError: it cannot be done here.
    """
    if kind == "none":
        return None
    if kind == "int4" and (device.type != "cuda" or dtype is not torch.bfloat16):
        raise SetupError(
            "int4 weights need an NVIDIA GPU and bfloat16.",
            hint="Set model.quantize to int8 or none.",
        )
    try:
        return importlib.import_module("torchao.quantization")
    except ImportError as error:
        raise SetupError(
            f"{kind} weights need the package torchao, which is not installed.",
            hint=f"{EXTRA}, or set model.quantize to none.",
        ) from error


def planned_bytes(shapes: Mapping[str, tuple[int, ...]], kind: Kind, itemsize: int) -> int:
    """Bytes of the layers' tensors after `quantise`.

    Args:
        shapes: of the tensors below `llm.model.layers.`, by name.
        itemsize: of the model's dtype.
    """
    return sum(_tensor_bytes(shape, kind, itemsize) for shape in shapes.values())


def _tensor_bytes(shape: tuple[int, ...], kind: Kind, itemsize: int) -> int:
    count = torch.Size(shape).numel()
    if kind == "none" or len(shape) != 2:
        return count * itemsize
    if kind == "int8":
        # A scale and a zero per row.
        return count + shape[0] * (itemsize + 1)
    return count // 2 + 2 * itemsize * shape[0] * -(-shape[1] // GROUP)


def stored_bytes(tensors: Iterable[Tensor]) -> int:
    """What tensors really take; a quantised one says its number of weights times the dtype that it
    stands for."""
    total = 0
    for tensor in tensors:
        parts = _parts(tensor)
        total += sum(part.numel() * part.element_size() for part in parts)
    return total


def _parts(tensor: Tensor) -> list[Tensor]:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [getattr(tensor, name) for name in names]
