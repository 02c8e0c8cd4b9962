"""Attention by a Triton kernel that reads keys and values directly from the slots.

A few new tokens per row attend to their slots. The slot numbers of the rows are a tensor, so any
subset is one launch without a copy, and one captured graph serves all subsets of a size. The
columns of a row are divided among several programs (`splits`), so that one conversation with a long
context uses the whole card; a second kernel combines their results.

A slot may consist of pages anywhere in a pool: a table contains the page of every stretch of
columns, and a block of columns is within one page.

Softmax and sums are float32. The kernel runs on a GPU, and in Triton's interpreter on a CPU
(`TRITON_INTERPRET=1`), as in the tests.

Shapes: `B` rows, `T` new tokens of each, `H` query heads, `K` key heads, `G = H / K`, `D` head
width, `S` slots, or pages, `C` columns of one.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Final

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.fast_paths import guarded

MOST_QUERIES: Final = 320
"""Maximum number of queries that share a key head (`G * T`)."""

QUERIES: Final = 64
"""Maximum queries of a block, which is kept in registers; each further block reads the context
again."""

PROGRAMS: Final = 264
"""Number of programs that fill a large card twice; few rows are split into about as many."""

LEAST_COLUMNS: Final = 128
"""Minimum number of columns of a program."""

MOST_SPLITS: Final = 64
"""Maximum number of programs among which a row's columns are divided; one program combines them."""

TILE: Final = 16
"""Minimum queries of a block: rows of a tile of tensor cores."""


def is_installed() -> bool:
    """True if the package is installed; torch's builds for NVIDIA include it."""
    return importlib.util.find_spec("triton") is not None


def fits(queries: int, width: int) -> bool:
    """True if the kernel supports `queries` queries per key head and this head width."""
    return queries <= MOST_QUERIES and width in (16, 32, 64, 128)


def tile_of(
    queries: int, width: int, itemsize: int, *, is_small: bool, is_paged: bool
) -> tuple[int, int]:
    """Columns that a program reads at a time, and the number of such steps that overlap: the
    fastest choice on an H200 (docs/log/minicpmo45.md) within 99 KiB of shared memory.

    Args:
        queries: number of queries of a block.
        itemsize: bytes of a number of the queries.
        is_small: keys and values are in 8 bits.
        is_paged: keys and values are in pages, whose numbers are read one step earlier.
    """
    if width * itemsize >= 512:
        return 16, 3
    if queries == TILE:
        return 128, 3 if is_paged else 2
    return (128, 2) if is_small and width == 128 else (64, 3)


def precision_of(query: Tensor) -> str:
    """The precision of float32 products: the same as in PyTorch's products. Shorter types are
    multiplied directly."""
    is_short = torch.get_float32_matmul_precision() != "highest"
    return "tf32" if is_short and query.is_cuda and query.dtype is torch.float32 else "ieee"


def splits_of(rows: int, heads: int, reads: int) -> int:
    """Number of programs among which the columns of a row are divided."""
    most = min(MOST_SPLITS, max(1, reads // LEAST_COLUMNS))
    return max(1, min(most, -(-PROGRAMS // (rows * heads))))


@guarded("attention")
def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    first: Tensor,
    last: Tensor,
    reads: int,
    mask: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """Attention of new tokens over their slots.

    Args:
        query: (B, T, H, D).
        keys, values: (S, K, C, D) with any strides; only the last axis must be dense. Their dtype
            may differ from the queries', which is used for the computation.
        slots: (B,) int64.
        first: (B,) int64, the first column that a row sees.
        last: (B, T) int64, the last column that a token sees.
        reads: number of columns that are read.
        mask: (B, reads) bool, the columns of these that a row sees; None: all.
        key_scales, value_scales: (S, K, C) each, if keys and values are stored in 8 bits.
        table: (slots, pages of a slot) int64, the pages of every slot's columns; `C` must be a
            multiple of 128 unless a slot has one page. None: each slot is one page.

    Returns:
        (B, T, H, D), in the queries' dtype.

    Raises:
        FastPathFailed: the kernel cannot be built or launched.
    """
    # A separate module, because decorating kernels needs the package.
    from parley.models.minicpmo45.runtime import kernels

    rows, tokens, heads, width = query.shape
    key_heads = keys.shape[1]
    count = heads // key_heads * tokens
    queries = min(QUERIES, max(TILE, 1 << (count - 1).bit_length()))
    blocks = -(-count // queries)
    splits = splits_of(rows * blocks, key_heads, reads)
    is_small, is_paged = key_scales is not None, table is not None
    block, ahead = tile_of(
        queries, width, query.dtype.itemsize, is_small=is_small, is_paged=is_paged
    )
    chunk = math.ceil(math.ceil(reads / splits) / block) * block
    padded = blocks * queries
    if query.stride(3) != 1:
        query = query.contiguous()
    # The kernel indexes these without strides, so they must be contiguous.
    slots, first, last = slots.contiguous(), first.contiguous(), last.contiguous()
    part = torch.empty(
        rows, key_heads, splits, padded, width, dtype=torch.float32, device=query.device
    )
    top = torch.empty(rows, key_heads, splits, padded, dtype=torch.float32, device=query.device)
    mass = torch.empty_like(top)
    # Without scales the kernel receives tensors that it does not read.
    none = torch.empty(0, 0, 0, device=query.device)
    of_keys = none if key_scales is None else key_scales
    of_values = none if value_scales is None else value_scales
    if query.is_cuda and query.device.index != torch.cuda.current_device():
        # Triton launches on the thread's current device, not on the tensors' device.
        torch.cuda.set_device(query.device)
    kernels.partial[(rows * blocks, key_heads, splits)](
        query, keys, values, slots, first, last, mask if mask is not None else slots,
        of_keys, of_values, slots if table is None else table, part, top, mass,
        math.log2(math.e) / math.sqrt(width), reads, chunk, *query.stride()[:3],
        keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2),
        tokens, count, 0 if mask is None else mask.stride(0),
        *of_keys.stride(), *of_values.stride(), 0 if table is None else table.stride(0),
        HAS_MASK=mask is not None, HAS_SCALES=key_scales is not None,
        PAGE=0 if table is None else keys.shape[2],
        WIDTH=width, QUERIES=queries, BLOCK=block, PRECISION=precision_of(query),
        num_stages=ahead,
    )  # fmt: skip
    out = torch.empty(rows, tokens, heads, width, dtype=query.dtype, device=query.device)
    kernels.join[(rows, key_heads, count)](
        part, top, mass, out, splits, tokens, count,
        WIDTH=width, QUERIES=padded, SPLITS=1 << (splits - 1).bit_length(),
    )  # fmt: skip
    return out
