"""Products of few rows, by a kernel that reads several matrices in one launch, each once.

With few conversations, the time of a token is that of reading the weights. The kernel runs on a GPU
and in Triton's interpreter. Up to `TILE_ROWS` rows, a row's result does not depend on the other
rows, bit for bit.

Shapes: `R` rows, `n` rows of a matrix (outputs), `k` columns (inputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime.fast_paths import guarded

FEW_ROWS: Final = 64
"""Maximum number of rows whose products read a packed matrix without unpacking it."""

TILE_ROWS: Final = 16
"""Rows of a tile of tensor cores. For more rows, products with unpacked matrices are PyTorch's."""

COLUMNS: Final = 256
"""`k` must be a multiple of this for the kernel."""

FP8_DTYPE: Final = torch.float8_e4m3fn

FP8_MOST: Final = 448.0
"""Largest number of e4m3."""

_UNPACKED: Final = 4096
"""Numbers that one program of `unpacked_rows` computes."""

ROWS_AT_ONCE: Final = 1024
"""Number of rows that are quantised together; limits the additional memory that rounding needs."""


def row_pieces(weight: Tensor) -> Iterator[slice]:
    """Slices of a matrix's rows, each to be quantised; none of a matrix without memory ("meta"): it
    has no numbers, and PyTorch would import its compiler for them, 2.5 s of processor."""
    rows = 0 if weight.is_meta else weight.shape[0]
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, rows, ROWS_AT_ONCE))


class Fp8Linear(nn.Module):
    """`nn.Linear` without bias over a matrix in e4m3, with a scale per row. Inputs are not rounded.

    On a GPU, few rows are multiplied by our kernel. PyTorch's product in 8 bits would use only a
    quarter of a large card, and has to round its inputs first.

    Args of state:
        is_plain: multiply with the unpacked matrix.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        small = torch.empty(weight.shape, dtype=FP8_DTYPE, device=weight.device)
        scales = torch.empty(weight.shape[0], 1, dtype=torch.float32, device=weight.device)
        for here in row_pieces(weight):
            rows = weight[here].float()
            scales[here] = (rows.abs().amax(1, keepdim=True) / FP8_MOST).clamp(min=1e-12)
            small[here] = (rows / scales[here]).to(FP8_DTYPE)
        self.is_plain = False
        self.packed = nn.Parameter(small, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_plain:
            return F.linear(x, self.unpacked().to(x.dtype))
        flat = x.reshape(-1, x.shape[-1])
        with guarded("fp8"):
            if x.device.type != "cpu" and fits(flat, FEW_ROWS):
                made = few_rows(flat, [self.packed.data], [self.scales.data])
            else:
                made = many_rows(flat, self.packed, self.scales)
        return made.to(x.dtype).view(*x.shape[:-1], -1)

    def unpacked(self) -> Tensor:
        """The dequantized matrix, float32, shape (n, k)."""
        return self.packed.float() * self.scales


def many_rows(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """Products (R, n) of rows (R, k) with a matrix in 8 bits, which is unpacked first."""
    if x.device.type != "cpu":
        return F.linear(x, unpacked_rows(packed.data, scales.data, x.dtype))
    # Its numbers are exact in any longer type; the scales are applied to the products.
    return F.linear(x, packed.to(x.dtype)) * scales.t()


def shape_of_rows(packed: Tensor, _: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(packed.shape, dtype=dtype, device=packed.device)


def unpacked_rows(packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantize a matrix (n, k) in e4m3 with the scales of its rows (n, 1)."""
    from parley.models.minicpmo45.runtime import kernels

    out = shape_of_rows(packed, scales, dtype)
    rows, columns = packed.shape
    kernels.unpacked_rows[(rows, -(-columns // _UNPACKED))](
        packed, scales, out, columns, BLOCK=_UNPACKED, num_warps=8
    )
    return out


def of_all(x: Tensor, *parts: nn.Module, has_kernel: bool) -> Sequence[Tensor]:
    """Results of up to three projections of the same rows (R, k).

    Args:
        has_kernel: use the kernel for matrices that are not packed, too.
    """
    some: Any = parts
    matrices: Sequence[Tensor] = ()
    scales: Sequence[Tensor] = ()
    if all(isinstance(part, Fp8Linear) and not part.is_plain for part in parts):
        if x.device.type != "cpu" and fits(x, FEW_ROWS):
            matrices, scales = [one.packed.data for one in some], [one.scales.data for one in some]
    elif has_kernel and fits(x, TILE_ROWS) and all(isinstance(one, nn.Linear) for one in parts):
        matrices = [one.weight.data for one in some if one.bias is None]
    if len(matrices) < len(parts):
        return [part(x) for part in parts]
    with guarded("fp8" if scales else "products"):
        made = few_rows(x, matrices, scales)
    return torch.split(made, [matrix.shape[0] for matrix in matrices], 1)


def fits(x: Tensor, most: int) -> bool:
    """True if the kernel accepts these rows (R, k), with R limited to `most`."""
    return x.shape[0] <= most and x.shape[1] % COLUMNS == 0


def shape_of_product(x: Tensor, matrices: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    outs = sum(matrix.shape[0] for matrix in matrices)
    return torch.empty(x.shape[0], outs, dtype=x.dtype, device=x.device)


def few_rows(x: Tensor, matrices: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Products (R, all n) of up to `FEW_ROWS` rows (R, k) with one to three matrices (n, k).

    Args:
        matrices: all but the last must have a multiple of 64 rows.
        scales: of their rows, n per matrix, if they are in e4m3 or int8; otherwise empty.
    """
    from parley.models.minicpmo45.runtime import kernels

    x, out = x.contiguous(), shape_of_product(x, matrices, scales)
    rows, columns = x.shape
    padded = max(TILE_ROWS, 1 << (rows - 1).bit_length())
    sizes = [matrix.shape[0] for matrix in matrices]
    tile, block, ahead = tile_of(out.shape[1], padded, is_small=bool(scales))
    # The kernel does not read missing matrices and scales.
    kernels.few_rows[(-(-out.shape[1] // tile),)](
        x, *_three(matrices), *_three(scales or matrices), out,
        rows, sizes[0], sum(sizes[:2]), out.shape[1], columns,
        HAS_SCALES=bool(scales), ROWS=padded, OUTS=tile, BLOCK=block,
        num_warps=4, num_stages=ahead,
    )  # fmt: skip
    return out


def _three(given: Sequence[Tensor]) -> Sequence[Tensor]:
    return [*given, given[-1], given[-1]][:3]


def tile_of(outs: int, rows: int, *, is_small: bool) -> tuple[int, int, int]:
    """Outputs and columns of a program, and the number of blocks of columns that it loads ahead:
    the fastest choice on an H200 (docs/log/minicpmo45.md) within 99 KiB of shared memory.

    Args:
        rows: number of rows with padding.
        is_small: the matrix is in 8 bits.
    """
    if rows > TILE_ROWS:
        return 32, 128, 4 if rows == 32 else 3
    if not is_small:
        return 32, 128, 6
    return (64, 128, 7) if outs >= 16384 else (32, 256, 6)
