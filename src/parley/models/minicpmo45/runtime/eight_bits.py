"""Vectors of a cache in 8 bits: integers from -127 to 127, and one scale per vector.

A scale is rounded to float16 before the numbers are, so that its error does not add to theirs: a
number is off by half a scale at most, which is 1/254 of the largest number of its vector.

Letters: `D` numbers of a vector.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

SCALE_DTYPE: Final = torch.float16

_MOST: Final = 127
_LEAST_SCALE: Final = 1e-6
_MOST_SCALE: Final = 65504.0


def to_eight_bits(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize vectors (..., D) to int8 (..., D) and scales (...)."""
    wide = vectors.float()
    scales = (wide.abs().amax(-1) / _MOST).clamp(_LEAST_SCALE, _MOST_SCALE).to(SCALE_DTYPE)
    numbers = (wide / scales.float()[..., None]).round().clamp(-_MOST, _MOST)
    return numbers.to(torch.int8), scales


def from_eight_bits(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The dequantized vectors, (..., D)."""
    # Multiplied in float32 and rounded last, in one kernel without an intermediate tensor.
    out = torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    return torch.mul(numbers, scales.float()[..., None], out=out)
