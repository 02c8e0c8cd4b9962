"""Checkpoints whose matrices are stored in 4 bits.

`config.json` describes them in `quantization_config`. In AWQ with the layout "gemm", a matrix
`x.weight` of shape (out, in) is stored as three tensors:

| tensor      | shape               | type    | contents                                       |
|-------------|---------------------|---------|------------------------------------------------|
| `x.qweight` | (in, out / 8)       | int32   | eight outputs of one input, 4 bits each        |
| `x.qzeros`  | (in / group, out / 8) | int32 | the zeros of eight outputs, packed alike       |
| `x.scales`  | (in / group, out)   | float16 | a scale per group of inputs and output         |

Output `8 j + AWQ_ORDER[i]` is in bits `4 i` to `4 i + 3` of column `j`. A weight is
`(q - zero) * scale`.

In compressed-tensors W4A16 with the format "pack-quantized":

| tensor                | shape             | type  | contents                                 |
|-----------------------|-------------------|-------|------------------------------------------|
| `x.weight_packed`     | (out, in / 8)     | int32 | eight inputs of one output, lowest first |
| `x.weight_scale`      | (out, in / group) | float | a scale per output and group of inputs   |
| `x.weight_shape`      | (2)               | int64 | out and in                               |
| `x.weight_zero_point` | (out / 8, in / group) | int32 | zeros of eight outputs, if any       |

Numbers and zeros are stored with 8 added; without zeros a weight is `(q - 8) * scale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.quantize import GROUPS, Groups

AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Index of the output, of eight neighbouring ones, in each group of four bits, lowest first."""

USE_INSTEAD: Final = (
    "Use the checkpoint in bfloat16 (openbmb/MiniCPM-o-4_5) with model.quantize=int4, "
    "or the one in AWQ (openbmb/MiniCPM-o-4_5-awq)."
)

_AWQ: Final = {"bits": 4, "version": "gemm", "zero_point": True}
_W4A16: Final = {"num_bits": 4, "type": "int", "strategy": "group", "actorder": None}
"""Supported schemes: fields of `quantization_config`, and of its group's weights."""


@dataclass(frozen=True, slots=True)
class PackedScheme:
    """The format in which a checkpoint's matrices are packed.

    Args:
        name: for display.
        group: number of inputs that share a scale.
        suffixes: the tensors of a matrix: numbers and scales first, zeros last.
        by_input: the first axis of numbers and scales is inputs, and eight outputs are neighbours.
        has_zeros: each group has its own zero; otherwise every zero is 8.
    """

    name: str
    group: int
    suffixes: tuple[str, ...]
    by_input: bool = False
    has_zeros: bool = True

    def matrix(self, packed: tuple[int, ...]) -> tuple[int, ...]:
        """Shape (out, in) of a matrix whose packed numbers have this shape."""
        rows, columns = packed
        return (8 * columns, rows) if self.by_input else (rows, 8 * columns)

    def groups(self, stored: Sequence[Tensor]) -> Groups:
        """The stored tensors as groups of 4-bit weights. Nothing is rounded if scales have 16 bits:
        products and sums of them with 4-bit numbers are exact in float32."""
        order = AWQ_ORDER if self.by_input else tuple(range(8))
        q, scales = unpacked(stored[0], order), stored[1].float()
        if self.by_input:
            q, scales = q.T, scales.T
        if q.shape[1] != self.group * scales.shape[1]:
            raise SetupError(
                f"A matrix of {q.shape[1]} inputs has {scales.shape[1]} groups, not of "
                f"{self.group} inputs as config.json says."
            )
        zeros = torch.full_like(scales, 8.0)
        if self.has_zeros:
            # In both formats eight outputs are neighbours here.
            packed = stored[-1] if self.by_input else stored[-1].T
            zeros = unpacked(packed, order).T[: q.shape[0]].float()
        return Groups(q.contiguous(), scales.contiguous(), (8 - zeros) * scales)


def awq(group: int) -> PackedScheme:
    """AWQ, the layout "gemm"."""
    return PackedScheme("AWQ", group, ("qweight", "scales", "qzeros"), by_input=True)


def unpacked(numbers: Tensor, order: Sequence[int] = AWQ_ORDER) -> Tensor:
    """Unpack int32 (rows, columns) to 4-bit numbers, int32 (rows, 8 columns).

    Args:
        order: index of the number in each group of four bits, lowest first.
    """
    shifts = torch.empty(8, dtype=torch.int32, device=numbers.device)
    for place, number in enumerate(order):
        shifts[number] = 4 * place
    return ((numbers[..., None] >> shifts) & 0xF).flatten(-2)


def scheme_of(config: Mapping[str, Any]) -> PackedScheme | None:
    """The packing that `config.json` describes; None if its matrices are not packed.

    Raises:
        SetupError: they are packed in an unsupported way.
    """
    stated = config.get("quantization_config")
    if not stated:
        return None
    method = str(stated.get("quant_method", "unknown")).lower()
    if method == "compressed-tensors":
        return _compressed(stated)
    if method != "awq":
        raise SetupError(
            f"config.json says that the weights are packed by '{method}', which is not supported.",
            hint=USE_INSTEAD,
        )
    given = {"bits": stated.get("w_bit", 4), **stated}
    _require("AWQ", given, _AWQ)
    return awq(_group(given.get("group_size", given.get("q_group_size", 128))))


def _compressed(stated: Mapping[str, Any]) -> PackedScheme:
    groups = list((stated.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise SetupError(
            f"config.json has {len(groups)} groups of compressed weights; 1 is supported.",
            hint=USE_INSTEAD,
        )
    weights: Mapping[str, Any] = groups[0].get("weights") or {}
    _require("W4A16", stated, {"format": "pack-quantized"})
    _require("W4A16", groups[0], {"input_activations": None})
    _require("W4A16", weights, _W4A16)
    names = ("weight_packed", "weight_scale", "weight_shape")
    group = _group(weights.get("group_size", 128))
    if weights.get("symmetric", True):
        return PackedScheme("W4A16", group, names, has_zeros=False)
    return PackedScheme("W4A16", group, (*names, "weight_zero_point"))


def _require(kind: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        found = given.get(name, value)
        if str(found).lower() != str(value).lower():
            raise SetupError(
                f"config.json says {name} {found!r} of its {kind} weights; {value!r} is supported.",
                hint=USE_INSTEAD,
            )


def _group(given: object) -> int:
    """Number of inputs that share a scale.

    Raises:
        SetupError: whole rows share one (-1), or no kernel supports groups of this size.
    """
    if not isinstance(given, int) or given not in GROUPS:
        sizes = ", ".join(map(str, sorted(GROUPS)))
        raise SetupError(
            f"config.json says group_size {given!r} of its 4-bit weights; {sizes} are supported.",
            hint=USE_INSTEAD,
        )
    return given
