"""Kernels of `slot_attention.py` and `quantize.py`. This module needs the package triton."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partial(
    q, k, v, slots, first, last, mask, k_scales, v_scales, table, part, top, mass,
    scale, reads, chunk,
    k_slot, k_head, k_column, v_slot, v_head, v_column,
    tokens, count, mask_row,
    ks_slot, ks_head, ks_column, vs_slot, vs_head, vs_column, table_row,
    HAS_MASK: tl.constexpr, HAS_SCALES: tl.constexpr, PAGE: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of one key head of one row: what its columns say, and how much they weigh."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    key_heads, splits = tl.num_programs(1), tl.num_programs(2)
    queries, widths = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    is_query = queries < count
    slot = tl.load(slots + row)
    start = tl.load(first + row)
    ends = tl.load(last + row * tokens + queries % tokens, mask=is_query, other=-1)
    block_of_q = q + (row * key_heads + head) * count * WIDTH
    asked = tl.load(
        block_of_q + queries[:, None] * WIDTH + widths[None, :], mask=is_query[:, None], other=0.0
    )
    # Nothing behind the last token's last column is read.
    stop = tl.minimum(tl.minimum((split + 1) * chunk, reads), tl.max(ends, 0) + 1)
    best = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    said = tl.zeros((QUERIES, WIDTH), tl.float32)
    for column in range(split * chunk, stop, BLOCK):
        columns = column + tl.arange(0, BLOCK)
        here = (columns < stop) & (columns >= start)
        if HAS_MASK:
            here = here & (tl.load(mask + row * mask_row + columns, mask=here, other=0) != 0)
        page, places = slot, columns
        if PAGE > 0:
            # A block of columns lies in one page.
            page = tl.load(table + slot * table_row + column // PAGE)
            places = columns - column // PAGE * PAGE
        base_k = k + page * k_slot + head * k_head
        base_v = v + page * v_slot + head * v_head
        found_k = tl.load(
            base_k + places[None, :] * k_column + widths[:, None], mask=here[None, :], other=0.0
        ).to(asked.dtype)
        scores = tl.dot(asked, found_k, input_precision=PRECISION).to(tl.float32) * scale
        if HAS_SCALES:
            # Whole numbers up to 127 are exact in bfloat16: scales are applied to the products.
            of_k = k_scales + page * ks_slot + head * ks_head + places * ks_column
            scores = scores * tl.load(of_k, mask=here, other=0.0).to(tl.float32)[None, :]
        seen = here[None, :] & (columns[None, :] <= ends[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # A query that has seen nothing yet has no best score to subtract.
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(best - safe)
        found_v = tl.load(
            base_v + places[:, None] * v_column + widths[None, :], mask=here[:, None], other=0.0
        ).to(asked.dtype)
        total = total * shrink + tl.sum(weights, 1)
        if HAS_SCALES:
            of_v = v_scales + page * vs_slot + head * vs_head + places * vs_column
            weights = weights * tl.load(of_v, mask=here, other=0.0).to(tl.float32)[None, :]
        said = said * shrink[:, None] + tl.dot(
            weights.to(found_v.dtype), found_v, input_precision=PRECISION
        ).to(tl.float32)
        best = higher
    place = (row * key_heads + head) * splits + split
    tl.store(part + (place * QUERIES + queries[:, None]) * WIDTH + widths[None, :], said)
    tl.store(top + place * QUERIES + queries, best)
    tl.store(mass + place * QUERIES + queries, total)


@triton.jit
def join(
    part, top, mass, out, splits, count,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """The splits of one key head of one row into its result."""
    row, head = tl.program_id(0), tl.program_id(1)
    key_heads = tl.num_programs(1)
    queries, widths = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    place = (row * key_heads + head) * splits
    best = tl.full((QUERIES,), -float("inf"), tl.float32)
    for split in range(0, splits):
        best = tl.maximum(best, tl.load(top + (place + split) * QUERIES + queries))
    safe = tl.where(best == -float("inf"), 0.0, best)
    total = tl.zeros((QUERIES,), tl.float32)
    said = tl.zeros((QUERIES, WIDTH), tl.float32)
    for split in range(0, splits):
        here = (place + split) * QUERIES + queries
        share = tl.exp(tl.load(top + here) - safe)
        total += tl.load(mass + here) * share
        said += tl.load(part + here[:, None] * WIDTH + widths[None, :]) * share[:, None]
    said = said / tl.where(total == 0.0, 1.0, total)[:, None]
    block = out + (row * key_heads + head) * count * WIDTH
    is_query = queries < count
    tl.store(
        block + queries[:, None] * WIDTH + widths[None, :],
        said.to(out.dtype.element_ty),
        mask=is_query[:, None],
    )


@triton.jit
def few_rows(
    x, matrix, scales, out, rows, outs, columns,
    ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Products of a few rows with `OUTS` rows of a matrix in 8 bits, which is read once."""
    row, one = tl.arange(0, ROWS), tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    is_row, is_out = row < rows, one < outs
    total = tl.zeros((ROWS, OUTS), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        here = column < columns
        given = tl.load(
            x + row[:, None] * columns + column[None, :],
            mask=is_row[:, None] & here[None, :], other=0.0,
        )  # fmt: skip
        weights = tl.load(
            matrix + one[None, :] * columns + column[:, None],
            mask=is_out[None, :] & here[:, None], other=0.0,
        )  # fmt: skip
        # Numbers of e4m3 are exact in bfloat16.
        total = tl.dot(given, weights.to(given.dtype), total, input_precision="ieee")
    total = total * tl.load(scales + one, mask=is_out, other=0.0)[None, :]
    tl.store(
        out + row[:, None] * outs + one[None, :],
        total.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_out[None, :],
    )


@triton.jit
def unpacked(packed, order, scales, out, outs, columns, GROUP: tl.constexpr):
    """A tile of 8 rows and 128 columns of a matrix in 4 bits, as numbers.

    `order` has, for each number of a tile, which of its half bytes it is.
    """
    tile_row, tile_column = tl.program_id(0), tl.program_id(1)
    place = tl.arange(0, 1024)
    half = tl.load(order + place)
    start = (tile_row * tl.num_programs(1) + tile_column) * 512
    pair = tl.load(packed + start + half // 2).to(tl.int32)
    q = (pair >> (half % 2 * 4)) & 0xF
    row, column = tile_row * 8 + place // 128, tile_column * 128 + place % 128
    of_group = scales + (column // GROUP * outs + row) * 2
    scale, zero = tl.load(of_group).to(tl.float32), tl.load(of_group + 1).to(tl.float32)
    number = (q.to(tl.float32) - 8.0) * scale + zero
    tl.store(out + row * columns + column, number.to(out.dtype.element_ty))
