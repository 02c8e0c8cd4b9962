"""Checkpoints whose matrices are stored in 4 bits.

`config.json` says so in `quantization_config`. In AWQ, the layout "gemm", a matrix `x.weight` of
shape (out, in) is stored as three tensors:

| tensor      | shape               | type    | holds                                          |
|-------------|---------------------|---------|------------------------------------------------|
| `x.qweight` | (in, out / 8)       | int32   | eight outputs of one input, 4 bits each        |
| `x.qzeros`  | (in / group, out / 8) | int32 | the zeros of eight outputs, packed alike       |
| `x.scales`  | (in / group, out)   | float16 | a scale per group of inputs and output         |

Output `8 j + ORDER[i]` lies in bits `4 i` to `4 i + 3` of column `j`. A weight is
`(q - zero) * scale`.

In compressed-tensors, W4A16, the format "pack-quantized":

| tensor                | shape             | type  | holds                                    |
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
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.quantize import GROUPS, Groups

ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs lies in which four bits, lowest first."""

USE_INSTEAD: Final = (
    "Use the checkpoint in bfloat16 (openbmb/MiniCPM-o-4_5) with model.quantize=int4, "
    "or the one in AWQ (openbmb/MiniCPM-o-4_5-awq)."
)


class PackedScheme(Protocol):
    """How the matrices of a checkpoint are packed."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The tensors of a matrix; the numbers come first."""
        ...

    def matrix(self, packed: tuple[int, ...]) -> tuple[int, ...]:
        """(out, in) of a matrix whose numbers have this shape."""
        ...

    def groups(self, parts: Sequence[Tensor]) -> Groups:
        """The stored tensors as groups of 4-bit weights; nothing is rounded."""
        ...

    def weight(self, parts: Sequence[Tensor]) -> Tensor:
        """The matrix that they stand for, float32, shape (out, in)."""
        ...


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """AWQ. `group`: inputs that share a scale."""

    group: int

    @property
    def name(self) -> str:
        return "AWQ"

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ("qweight", "qzeros", "scales")

    def matrix(self, packed: tuple[int, ...]) -> tuple[int, ...]:
        return (8 * packed[1], packed[0])

    def groups(self, parts: Sequence[Tensor]) -> Groups:
        return groups_of(parts[0], parts[1], parts[2], self)

    def weight(self, parts: Sequence[Tensor]) -> Tensor:
        return dequantised(parts[0], parts[1], parts[2], self)


@dataclass(frozen=True, slots=True)
class CompressedScheme:
    """compressed-tensors. `group`: inputs that share a scale."""

    group: int
    has_zeros: bool

    @property
    def name(self) -> str:
        return "W4A16"

    @property
    def suffixes(self) -> tuple[str, ...]:
        names = ("weight_packed", "weight_scale", "weight_shape")
        return (*names, "weight_zero_point") if self.has_zeros else names

    def matrix(self, packed: tuple[int, ...]) -> tuple[int, ...]:
        return (packed[0], 8 * packed[1])

    def groups(self, parts: Sequence[Tensor]) -> Groups:
        q = in_order(parts[0])
        scale = parts[1].float().contiguous()
        _require_groups(q.shape[1], scale.shape[1], self.group)
        zero = torch.full_like(scale, 8.0)
        if self.has_zeros:
            zero = in_order(parts[3].T).T[: scale.shape[0]].float()
        return Groups(q.contiguous(), scale, (8 - zero) * scale)

    def weight(self, parts: Sequence[Tensor]) -> Tensor:
        return self.groups(parts).weight()


def scheme_of(config: Mapping[str, Any]) -> PackedScheme | None:
    """What `config.json` says about its matrices; None: nothing.

    Raises:
        SetupError: they are packed in a way that is not read here.
    """
    stated = config.get("quantization_config")
    if not stated:
        return None
    method = str(stated.get("quant_method", "unknown")).lower()
    if method == "compressed-tensors":
        return _compressed(stated)
    if method != "awq":
        raise SetupError(
            f"config.json says that the weights are packed by '{method}', which is not read here.",
            hint=USE_INSTEAD,
        )
    known = {"bits": 4, "version": "gemm", "zero_point": True}
    for name, value in known.items():
        given = stated.get(name, stated.get("w_bit", value) if name == "bits" else value)
        _require("AWQ", name, given, value)
    return AwqScheme(_group(stated.get("group_size", stated.get("q_group_size", 128))))


def _compressed(stated: Mapping[str, Any]) -> CompressedScheme:
    groups = list((stated.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise SetupError(
            f"config.json has {len(groups)} groups of compressed weights; 1 is read here.",
            hint=USE_INSTEAD,
        )
    weights: Mapping[str, Any] = groups[0].get("weights") or {}
    _require("W4A16", "format", stated.get("format", "pack-quantized"), "pack-quantized")
    _require("W4A16", "input_activations", groups[0].get("input_activations"), None)
    known = {"num_bits": 4, "type": "int", "strategy": "group", "actorder": None}
    for name, value in known.items():
        _require("W4A16", name, weights.get(name, value), value)
    has_zeros = not weights.get("symmetric", True)
    return CompressedScheme(_group(weights.get("group_size", 128)), has_zeros)


def _require(kind: str, name: str, given: object, wanted: object) -> None:
    if str(given).lower() != str(wanted).lower():
        raise SetupError(
            f"config.json says {name} {given!r} of its {kind} weights; {wanted!r} is read here.",
            hint=USE_INSTEAD,
        )


def _group(given: object) -> int:
    """Inputs that share a scale.

    Raises:
        SetupError: whole rows share one (-1), or it is no group that a kernel takes.
    """
    if not isinstance(given, int) or given not in GROUPS:
        sizes = ", ".join(map(str, sorted(GROUPS)))
        raise SetupError(
            f"config.json says group_size {given!r} of its 4-bit weights; {sizes} are read here.",
            hint=USE_INSTEAD,
        )
    return given


def _require_groups(inputs: int, groups: int, size: int) -> None:
    if inputs != size * groups:
        raise SetupError(
            f"A matrix of {inputs} inputs has {groups} groups, not of {size} inputs as "
            "config.json says."
        )


def in_order(numbers: Tensor) -> Tensor:
    """int32 (rows, columns) to its 4-bit numbers, int32 (rows, 8 columns), lowest first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=numbers.device)
    return ((numbers[..., None] >> shifts) & 0xF).flatten(-2)


def unpacked(numbers: Tensor) -> Tensor:
    """int32 (rows, columns) to its 4-bit numbers, int32 (rows, 8 columns), outputs in order."""
    shifts = torch.empty(8, dtype=torch.int32, device=numbers.device)
    for place, output in enumerate(ORDER):
        shifts[output] = 4 * place
    out = (numbers[..., None] >> shifts) & 0xF
    return out.flatten(-2)


def groups_of(qweight: Tensor, qzeros: Tensor, scales: Tensor, scheme: AwqScheme) -> Groups:
    """The stored tensors of a matrix as groups of 4-bit weights; nothing is rounded."""
    q = unpacked(qweight).T.contiguous()
    zero = unpacked(qzeros).T.float()
    scale = scales.T.float().contiguous()
    _require_groups(q.shape[1], scale.shape[1], scheme.group)
    return Groups(q, scale, (8 - zero) * scale)


def dequantised(qweight: Tensor, qzeros: Tensor, scales: Tensor, scheme: AwqScheme) -> Tensor:
    """The matrix that three tensors stand for, float32, shape (out, in). Exact: a product of a
    4-bit and an 11-bit number."""
    q = unpacked(qweight).view(-1, scheme.group, scales.shape[1])
    zero = unpacked(qzeros)[:, None]
    return ((q - zero).float() * scales.float()[:, None]).flatten(0, 1).T.contiguous()
