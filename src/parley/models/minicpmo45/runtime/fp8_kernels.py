"""The kernel of `fp8.py`. Importing this module needs the package triton."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded(x, small, scales, columns, most, least, WIDTH: tl.constexpr):
    """One row in 8 bits of floating point, and its scale."""
    row = tl.program_id(0)
    places = tl.arange(0, WIDTH)
    here = places < columns
    wide = tl.load(x + row * columns + places, mask=here, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(wide), 0) / most + least
    tl.store(small + row * columns + places, (wide / scale).to(small.dtype.element_ty), mask=here)
    tl.store(scales + row, scale)
