"""Checkpoints whose matrices are stored in 4 bits: AWQ, the layout "gemm".

`config.json` says so in `quantization_config`, and a matrix `x.weight` of shape (out, in) is stored
as three tensors:

| tensor      | shape               | type    | holds                                          |
|-------------|---------------------|---------|------------------------------------------------|
| `x.qweight` | (in, out / 8)       | int32   | eight outputs of one input, 4 bits each        |
| `x.qzeros`  | (in / group, out / 8) | int32 | the zeros of eight outputs, packed alike       |
| `x.scales`  | (in / group, out)   | float16 | a scale per group of inputs and output         |

Output `8 j + ORDER[i]` lies in bits `4 i` to `4 i + 3` of column `j`. A weight is
`(q - zero) * scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.quantize import Groups

ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs lies in which four bits, lowest first."""

SUFFIXES: Final = ("qweight", "qzeros", "scales")

USE_INSTEAD: Final = (
    "Use the checkpoint in bfloat16 (openbmb/MiniCPM-o-4_5) with model.quantize=int4, "
    "or the one in AWQ (openbmb/MiniCPM-o-4_5-awq)."
)


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """How the matrices are packed. `group`: inputs that share a scale."""

    group: int


def scheme_of(config: Mapping[str, Any]) -> AwqScheme | None:
    """What `config.json` says about its matrices; None: nothing.

    Raises:
        SetupError: they are packed in a way that is not read here.
    """
    stated = config.get("quantization_config")
    if not stated:
        return None
    method = str(stated.get("quant_method", "unknown")).lower()
    if method != "awq":
        raise SetupError(
            f"config.json says that the weights are packed by '{method}', which is not read here.",
            hint=USE_INSTEAD,
        )
    known = {"bits": 4, "version": "gemm", "zero_point": True}
    for name, value in known.items():
        given = stated.get(name, stated.get("w_bit", value) if name == "bits" else value)
        if str(given).lower() != str(value).lower():
            raise SetupError(
                f"config.json says {name} {given!r} of its AWQ weights; {value!r} is read here.",
                hint=USE_INSTEAD,
            )
    return AwqScheme(int(stated.get("group_size", stated.get("q_group_size", 128))))


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
    if q.shape[1] != scheme.group * scale.shape[1]:
        raise SetupError(
            f"A matrix of {q.shape[1]} inputs has {scale.shape[1]} groups, not of "
            f"{scheme.group} inputs as config.json says."
        )
    return Groups(q, scale, (8 - zero) * scale)


def dequantised(qweight: Tensor, qzeros: Tensor, scales: Tensor, scheme: AwqScheme) -> Tensor:
    """The matrix that three tensors stand for, float32, shape (out, in). Exact: a product of a
    4-bit and an 11-bit number."""
    q = unpacked(qweight).view(-1, scheme.group, scales.shape[1])
    zero = unpacked(qzeros)[:, None]
    return ((q - zero).float() * scales.float()[:, None]).flatten(0, 1).T.contiguous()
