"""Triton kernels of `slot_attention.py`, `fused.py`, `products.py` and `quantize.py`. Requires the
package triton."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partial(
    q, k, v, slots, first, last, mask, k_scales, v_scales, table, part, top, mass,
    scale, reads, chunk, q_row, q_token, q_head,
    k_slot, k_head, k_column, v_slot, v_head, v_column,
    tokens, count, mask_row,
    ks_slot, ks_head, ks_column, vs_slot, vs_head, vs_column, table_row,
    HAS_MASK: tl.constexpr, HAS_SCALES: tl.constexpr, PAGE: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of a block of queries of one key head of one row over one split of its columns: the
    partial result and its weight."""
    blocks = tl.cdiv(count, QUERIES)
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    head, split = tl.program_id(1), tl.program_id(2)
    key_heads, splits = tl.num_programs(1), tl.num_programs(2)
    queries, widths = block * QUERIES + tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    is_query = queries < count
    slot = tl.load(slots + row)
    start = tl.load(first + row)
    ends = tl.load(last + row * tokens + queries % tokens, mask=is_query, other=-1)
    # The queries that share a key head: all tokens of its first query head, then of the next.
    heads = head * (count // tokens) + queries // tokens
    place_of_q = row * q_row + queries % tokens * q_token + heads * q_head
    asked = tl.load(q + place_of_q[:, None] + widths[None, :], mask=is_query[:, None], other=0.0)
    # Columns behind the last token's last one are not read.
    begin = split * chunk
    stop = tl.minimum(tl.minimum(begin + chunk, reads), tl.max(ends, 0) + 1)
    # Blocks of columns that every query sees are processed first, without a mask.
    whole = tl.minimum(tl.min(tl.where(is_query, ends, reads), 0) + 1, stop)
    if HAS_MASK:
        whole = begin
    middle = begin + tl.maximum(tl.where(start > begin, 0, whole - begin), 0) // BLOCK * BLOCK
    best = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    said = tl.zeros((QUERIES, WIDTH), tl.float32)
    for IS_EDGE in tl.static_range(2):
        for column in range(middle if IS_EDGE else begin, stop if IS_EDGE else middle, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            here = (columns < stop) & (columns >= start)
            if HAS_MASK:
                here = here & (tl.load(mask + row * mask_row + columns, mask=here, other=0) != 0)
            page, places = slot, columns
            if PAGE > 0:
                # A block of columns is within one page.
                page = tl.load(table + slot * table_row + column // PAGE)
                places = columns - column // PAGE * PAGE
            base_k = k + page * k_slot + head * k_head
            base_v = v + page * v_slot + head * v_head
            place_k = base_k + places[None, :] * k_column + widths[:, None]
            place_v = base_v + places[:, None] * v_column + widths[None, :]
            if IS_EDGE:
                found_k = tl.load(place_k, mask=here[None, :], other=0.0)
                found_v = tl.load(place_v, mask=here[:, None], other=0.0)
            else:
                found_k, found_v = tl.load(place_k), tl.load(place_v)
            scores = tl.dot(asked, found_k.to(asked.dtype), input_precision=PRECISION)
            if HAS_SCALES:
                # Integers up to 127 are exact in bfloat16: scales are applied to the products.
                of_k = k_scales + page * ks_slot + head * ks_head + places * ks_column
                scores = scores * tl.load(of_k, mask=here, other=0.0).to(tl.float32)[None, :]
            if IS_EDGE:
                seen = here[None, :] & (columns[None, :] <= ends[:, None])
                scores = tl.where(seen, scores, -float("inf"))
            higher = tl.maximum(best, tl.max(scores, 1) * scale)
            # A query that has not seen a column yet has no maximum to subtract.
            safe = tl.where(higher == -float("inf"), 0.0, higher)
            weights = tl.exp2(scores * scale - safe[:, None])
            shrink = tl.exp2(best - safe)
            total = total * shrink + tl.sum(weights, 1)
            if HAS_SCALES:
                of_v = v_scales + page * vs_slot + head * vs_head + places * vs_column
                weights = weights * tl.load(of_v, mask=here, other=0.0).to(tl.float32)[None, :]
            said = tl.dot(
                weights.to(asked.dtype), found_v.to(asked.dtype), said * shrink[:, None],
                input_precision=PRECISION,
            )  # fmt: skip
            best = higher
    place = ((row * key_heads + head) * splits + split) * (blocks * QUERIES) + queries
    tl.store(part + place[:, None] * WIDTH + widths[None, :], said)
    tl.store(top + place, best)
    tl.store(mass + place, total)


@triton.jit
def join(
    part, top, mass, out, splits, tokens, count,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one query into its result."""
    row, head, query = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    key_heads, groups = tl.num_programs(1), count // tokens
    split, widths = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    here = split < splits
    place = ((row * key_heads + head) * splits + split) * QUERIES + query
    best = tl.load(top + place, mask=here, other=-float("inf"))
    highest = tl.max(best, 0)
    share = tl.exp2(best - tl.where(highest == -float("inf"), 0.0, highest))
    total = tl.sum(tl.load(mass + place, mask=here, other=0.0) * share, 0)
    said = tl.load(part + place[:, None] * WIDTH + widths[None, :], mask=here[:, None], other=0.0)
    mixed = tl.sum(said * share[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    token = (row * tokens + query % tokens) * key_heads * groups
    of_head = out + (token + head * groups + query // tokens) * WIDTH
    tl.store(of_head + widths, mixed.to(out.dtype.element_ty))


@triton.jit
def add_norm(x, added, weight, total, out, eps, width, BLOCK: tl.constexpr):
    """Adds a layer's output to a row, and computes the root mean square norm of the sum. Rounds
    where PyTorch's two operators do."""
    column = tl.arange(0, BLOCK)
    here = column < width
    place = tl.program_id(0) * width + column
    row = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    row += tl.load(added + place, mask=here, other=0.0).to(tl.float32)
    rounded = row.to(total.dtype.element_ty)
    tl.store(total + place, rounded, mask=here)
    row = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / width + eps)
    scaled = row * scale * tl.load(weight + column, mask=here, other=0.0).to(tl.float32)
    tl.store(out + place, scaled.to(out.dtype.element_ty), mask=here)


@triton.jit
def _turned(
    given, weight, cos, sin, eps,
    HAS_NORM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Normalize and rotate a head's vector; rounds where PyTorch's operators do."""
    column = tl.arange(0, WIDTH)
    opposite = (column + WIDTH // 2) % WIDTH
    kind = given.dtype.element_ty
    mine, other = tl.load(given + column), tl.load(given + opposite)
    if HAS_NORM:
        wide = mine.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
        mine = (wide * scale * tl.load(weight + column).to(tl.float32)).to(kind)
        other = other.to(tl.float32) * scale * tl.load(weight + opposite).to(tl.float32)
        other = other.to(kind)
    straight = mine.to(tl.float32) * tl.load(cos + column).to(tl.float32)
    across = other.to(tl.float32) * tl.load(sin + column).to(tl.float32)
    return (straight.to(kind).to(tl.float32) + across).to(kind)


@triton.jit
def _keep(
    vector, kept, scales, place, column,
    HAS_SCALES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store a vector in a cache; if there are scales, quantized as `caches.to_eight_bits`
    does."""
    if HAS_SCALES:
        wide = vector.to(tl.float32)
        scale = tl.max(tl.abs(wide), 0) / 127.0
        scale = tl.minimum(tl.maximum(scale, 1e-6), 65504.0).to(tl.float16)
        tl.store(scales + place, scale)
        # Adding 1.5 times 2 ** 23 rounds to the nearest integer, half to even.
        number = tl.div_rn(wide, scale.to(tl.float32)) + 12582912.0 - 12582912.0
        vector = tl.minimum(tl.maximum(number, -127.0), 127.0)
    tl.store(kept + place * WIDTH + column, vector.to(kept.dtype.element_ty))


@triton.jit
def place_heads(
    q, k, v, q_norm, k_norm, cos, sin, places, queries, keys, values, key_scales, value_scales,
    eps, q_row, k_row, v_row, columns,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """One head of one token: normalize and rotate queries and keys, and write keys and values to
    the cache."""
    token, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    cos += token * WIDTH
    sin += token * WIDTH
    if head < HEADS:
        given = q + token * q_row + head * WIDTH
        turned = _turned(given, q_norm, cos, sin, eps, HAS_NORM, WIDTH)
        tl.store(queries + (token * HEADS + head) * WIDTH + column, turned)
    else:
        key_head = (head - HEADS) % KEY_HEADS
        place = key_head.to(tl.int64) * columns + tl.load(places + token)
        if head < HEADS + KEY_HEADS:
            given = k + token * k_row + key_head * WIDTH
            turned = _turned(given, k_norm, cos, sin, eps, HAS_NORM, WIDTH)
            _keep(turned, keys, key_scales, place, column, HAS_SCALES, WIDTH)
        else:
            value = tl.load(v + token * v_row + key_head * WIDTH + column)
            _keep(value, values, value_scales, place, column, HAS_SCALES, WIDTH)


@triton.jit
def gate(gates, ups, out, width, gate_row, up_row, BLOCK: tl.constexpr):
    """SiLU of gates times the gated values; rounds in between as PyTorch's operators do."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = column < width
    given = tl.load(gates + row * gate_row + column, mask=here, other=0.0).to(tl.float32)
    opened = (given / (1.0 + tl.exp(-given))).to(out.dtype.element_ty).to(tl.float32)
    up = tl.load(ups + row * up_row + column, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (opened * up).to(out.dtype.element_ty), mask=here)


@triton.jit
def _rows_of(x, row, column, rows, columns):
    """A block of columns of some rows of x; zeros outside of it."""
    place = x + row[:, None] * columns + column[None, :]
    return tl.load(place, mask=(row < rows)[:, None], other=0.0)


@triton.jit(do_not_specialize=["rows"])
def few_rows(
    x, first, second, third, first_scales, second_scales, third_scales, out,
    rows, first_outs, both_outs, outs, columns,
    HAS_SCALES: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Products of a few rows with `OUTS` rows of one of three matrices, which are read once."""
    start = tl.program_id(0) * OUTS
    matrix, scales, at = first, first_scales, start
    if start >= both_outs:
        matrix, scales, at = third, third_scales, start - both_outs
    elif start >= first_outs:
        matrix, scales, at = second, second_scales, start - first_outs
    row, one, made = tl.arange(0, ROWS), at + tl.arange(0, OUTS), start + tl.arange(0, OUTS)
    is_row, is_out = row < rows, made < outs
    total = tl.zeros((ROWS, OUTS), tl.float32)
    for place in range(0, columns, BLOCK):
        column = place + tl.arange(0, BLOCK)
        given = _rows_of(x, row, column, rows, columns)
        if HAS_SCALES:
            # e4m3 is converted to float16 in pairs, which is fast, and int8 exactly. Inputs may be
            # too large for float16, so they are divided by 16 first.
            given = (given.to(tl.float32) * 0.0625).to(tl.float16)
        weights = tl.load(
            matrix + one[None, :] * columns + column[:, None], mask=is_out[None, :], other=0.0
        )
        total = tl.dot(given, weights.to(given.dtype), total, input_precision="ieee")
    if HAS_SCALES:
        total = total * (16.0 * tl.load(scales + one, mask=is_out, other=0.0))[None, :]
    tl.store(
        out + row[:, None] * outs + made[None, :],
        total.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_out[None, :],
    )


@triton.jit
def unpacked_rows(packed, scales, out, columns, BLOCK: tl.constexpr):
    """Unpack numbers of one row of a matrix in e4m3."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here, place = column < columns, row.to(tl.int64) * columns + column
    number = tl.load(packed + place, mask=here, other=0.0).to(tl.float32) * tl.load(scales + row)
    tl.store(out + place, number.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows"])
def from_tiles(
    x, packed, order, scales, out, rows, outs, columns,
    GROUP: tl.constexpr, ROWS: tl.constexpr, MORE: tl.constexpr, OUTS: tl.constexpr,
):  # fmt: skip
    """Products of `ROWS` and `MORE` rows with `OUTS` rows of a matrix in 4 bits, which is stored in
    tiles of 8 rows and 128 columns. A block of columns is a group; in it each row has one scale and
    one zero.

    `order` maps each number of a tile to its half byte. A block of rows is a power of two; two
    blocks need less padding.
    """
    row = tl.program_id(1) * (ROWS + MORE) + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, OUTS), tl.float32)
    if MORE > 0:
        other = tl.program_id(1) * (ROWS + MORE) + ROWS + tl.arange(0, MORE)
        rest = tl.zeros((MORE, OUTS), tl.float32)
    one = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    is_out = one < outs
    first_tile, in_tile = one // 8 * (columns // 128), one % 8 * 128
    for group in range(0, columns // GROUP):
        column = group * GROUP + tl.arange(0, GROUP)
        given = _rows_of(x, row, column, rows, columns)
        half = tl.load(order + in_tile[None, :] + (column % 128)[:, None])
        tile = first_tile + group * GROUP // 128
        pair = tl.load(packed + tile[None, :] * 512 + half // 2, mask=is_out[None, :], other=0)
        q = (pair.to(tl.int32) >> (half % 2 * 4)) & 0xF
        of_group = scales + (group * outs + one) * 2
        scale = tl.load(of_group, mask=is_out, other=0.0).to(tl.float32)
        zero = tl.load(of_group + 1, mask=is_out, other=0.0).to(tl.float32)
        weights = ((q.to(tl.float32) - 8.0) * scale[None, :] + zero[None, :]).to(given.dtype)
        total = tl.dot(given, weights, total, input_precision="ieee")
        if MORE > 0:
            given = _rows_of(x, other, column, rows, columns)
            rest = tl.dot(given, weights, rest, input_precision="ieee")
    made = out + row[:, None] * outs + one[None, :]
    is_made = (row < rows)[:, None] & is_out[None, :]
    tl.store(made, total.to(out.dtype.element_ty), mask=is_made)
    if MORE > 0:
        made = out + other[:, None] * outs + one[None, :]
        is_made = (other < rows)[:, None] & is_out[None, :]
        tl.store(made, rest.to(out.dtype.element_ty), mask=is_made)
