"""Matrices in 8 bits of floating point (e4m3), multiplied in them: cards of sm_89 and newer.

Weights have a scale per row. What they are multiplied with is rounded row by row as it comes, so
the rounding of a row does not depend on its company. The product is `torch._scaled_mm`. On a GPU a
kernel of ours rounds all rows in one launch; PyTorch's operators take longer than the product.

Shapes: `n` rows (outputs), `k` columns (inputs), `R` inputs of one call.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.fast_paths import guarded

DTYPE: Final = torch.float8_e4m3fn

MOST: Final = 448.0
"""The largest number of that type."""

LEAST_SCALE: Final = 1e-12
"""Added to scales, so that a row of zeros has one."""

SCALE_BYTES: Final = 4

_ROWS_AT_ONCE: Final = 1024
"""Rows of a matrix that are rounded together."""


class Fp8Linear(nn.Module):
    """`nn.Linear` without bias over a matrix in 8 bits, which also rounds its inputs.

    Args of state:
        is_plain: multiply with the unpacked matrix, inputs as they are.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        small = torch.empty(weight.shape, dtype=DTYPE, device=weight.device)
        scales = torch.empty(weight.shape[0], 1, dtype=torch.float32, device=weight.device)
        for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
            here = slice(first, first + _ROWS_AT_ONCE)
            small[here], scales[here] = rounded_plainly(weight[here])
        self.is_plain = False
        self.packed = nn.Parameter(small, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_plain:
            return F.linear(x, self.unpacked().to(x.dtype))
        flat = x.reshape(-1, x.shape[-1])
        with guarded("fp8"):
            small, scales = rounded(flat)
            made = torch._scaled_mm(
                small, self.packed.t(), scale_a=scales, scale_b=self.scales.t(), out_dtype=x.dtype
            )
        return made.view(*x.shape[:-1], -1)

    def unpacked(self) -> Tensor:
        """The matrix that it stands for, float32, shape (n, k)."""
        return self.packed.float() * self.scales


def fits_fp8(shape: tuple[int, ...]) -> bool:
    """True if the product takes a matrix of this shape."""
    return shape[0] % 16 == 0 and shape[1] % 16 == 0


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (R, k) in 8 bits, and their scales (R, 1), float32."""
    if x.device.type == "cpu":
        return rounded_plainly(x)
    found: tuple[Tensor, Tensor] = torch.ops.parley.rounded_rows(x)
    return found


def rounded_plainly(x: Tensor) -> tuple[Tensor, Tensor]:
    """`rounded`, by PyTorch's operators."""
    wide = x.float()
    scales = wide.abs().amax(1, keepdim=True) / MOST + LEAST_SCALE
    return (wide / scales).to(DTYPE), scales


def _run(x: Tensor) -> tuple[Tensor, Tensor]:
    """`rounded`, as one operator of torch, which a meter of operators counts as one."""
    if not slot_attention.is_installed():
        return rounded_plainly(x)
    from parley.models.minicpmo45.runtime import fp8_kernels

    x = x.contiguous()
    small, scales = _shapes_only(x)
    columns = x.shape[1]
    width = 1 << (columns - 1).bit_length()
    fp8_kernels.rounded[(x.shape[0],)](
        x, small, scales, columns, MOST, LEAST_SCALE, WIDTH=width, num_warps=8
    )
    return small, scales


def _shapes_only(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """What `rounded` returns, for tensors without memory."""
    small = torch.empty(x.shape, dtype=DTYPE, device=x.device)
    return small, torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)


OPERATOR: Final = torch.library.custom_op("parley::rounded_rows", _run, mutates_args=())
OPERATOR.register_fake(_shapes_only)
