"""Keys and values of many conversations, allocated once.

A `SlotCache` holds, per layer, one tensor of keys and one of values with a row per slot. What a row
remembers is its first `lengths[row]` positions; everything behind is rubbish that the next append
overwrites, so forgetting the newest positions is a change of a number. Positions are compact:
the next one is always the length.

Shapes: `R` rows, `K` key/value heads, `C` capacity in positions, `D` head width, `T` tokens of one
append. Lengths live in Python integers: reading one never waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.eight_bits import (
    SCALE_DTYPE,
    from_eight_bits,
    to_eight_bits,
)


@dataclass(frozen=True, slots=True)
class Span:
    """`count` consecutive new positions of one row, beginning at `start`."""

    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True, eq=False)
class CacheCopy:
    """What one row remembered, kept aside as it was stored. Shapes (layers, K, length, D); scales
    (layers, K, length), None where there are none."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def length(self) -> int:
        return int(self.keys.shape[2])

    def first(self, count: int) -> CacheCopy:
        """Its first `count` positions."""
        return self.part(0, count)

    def part(self, start: int, end: int) -> CacheCopy:
        """Positions from `start` up to `end`."""
        return self.map(lambda kept: kept[:, :, start:end])

    def map(self, change: Callable[[Tensor], Tensor]) -> CacheCopy:
        """The same with each tensor changed."""
        key_scales = None if self.key_scales is None else change(self.key_scales)
        value_scales = None if self.value_scales is None else change(self.value_scales)
        return CacheCopy(change(self.keys), change(self.values), key_scales, value_scales)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Keys, values, and the scales of both."""
        return self.keys, self.values, self.key_scales, self.value_scales


class SlotCache:
    """Key/value tensors of shape (R, K, C + 1, D) per layer, and a length per row.

    Args:
        dtype: of what is written and read.
        is_eight_bit: keep keys and values in 8 bits (`eight_bits.py`), with scales of shape
            (R, K, C + 1) per layer. What is read is then a copy, made for the reader.
    """

    def __init__(
        self,
        *,
        layers: int,
        rows: int,
        heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        is_eight_bit: bool = False,
    ) -> None:
        self.capacity = capacity
        self.dtype = dtype
        # One column more: what must not matter (padding of a batch) is written there.
        # Zeros, not empty: masked positions are multiplied by weight 0, and 0 * nan is nan.
        shape = (layers, rows, heads, capacity + 1, head_dim)
        stored = torch.int8 if is_eight_bit else dtype
        self.keys = torch.zeros(shape, dtype=stored, device=device)
        self.values = torch.zeros(shape, dtype=stored, device=device)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if is_eight_bit:
            self.key_scales = torch.zeros(shape[:-1], dtype=SCALE_DTYPE, device=device)
            self.value_scales = torch.zeros(shape[:-1], dtype=SCALE_DTYPE, device=device)
        self.lengths = [0] * rows

    @property
    def layers(self) -> int:
        return int(self.keys.shape[0])

    @property
    def rows(self) -> int:
        return int(self.keys.shape[1])

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that it keeps on the device."""
        scales = [kept for kept in (self.key_scales, self.value_scales) if kept is not None]
        return (self.keys, self.values, *scales)

    @property
    def is_eight_bit(self) -> bool:
        """Whether keys and values are kept in 8 bits."""
        return self.key_scales is not None

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Scales of a layer's keys and values, (R, K, C + 1) each; None where there are none."""
        keys, values = self.key_scales, self.value_scales
        return None if keys is None else keys[layer], None if values is None else values[layer]

    def room(self, row: int) -> int:
        """Positions that still fit."""
        return self.capacity - self.lengths[row]

    def write(self, layer: int, span: Span, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of shape (K, T, D) at `span`; the length does not change yet."""
        self._store((layer, span.row, slice(None), slice(span.start, span.end)), keys, values)

    def write_padded(self, layer: int, batch: PaddedBatch, keys: Tensor, values: Tensor) -> None:
        """Store a padded batch's keys and values of shape (B, n, K, D)."""
        rows = batch.rows
        places = batch.numbers if rows is None else rows
        if places is None:
            places = torch.arange(keys.shape[0], device=keys.device)
        # (B, n) index pairs in front of the head axis: the stored layout is (row, head, column, D).
        self._store((layer, places[:, None], slice(None), batch.positions), keys, values)

    def _store(self, where: Any, keys: Tensor, values: Tensor) -> None:
        if self.key_scales is None or self.value_scales is None:
            self.keys[where[0]][where[1:]] = keys
            self.values[where[0]][where[1:]] = values
            return
        for numbers, scales, given in (
            (self.keys, self.key_scales, keys),
            (self.values, self.value_scales, values),
        ):
            numbers[where[0]][where[1:]], scales[where[0]][where[1:]] = to_eight_bits(given)

    def view(self, layer: int, row: int, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` positions of a row, shapes (K, length, D); without a copy unless they
        are kept in 8 bits."""
        return self._loaded((layer, row, slice(None), slice(length)))

    def columns(self, layer: int, rows: Tensor | slice | None, reads: int) -> tuple[Tensor, Tensor]:
        """The first `reads` columns of rows (None: all), shapes (rows, K, reads, D); views for a
        slice or None unless they are kept in 8 bits."""
        chosen = slice(None) if rows is None else rows
        return self._loaded((layer, chosen, slice(None), slice(reads)))

    def _loaded(self, where: Any) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[where[0]][where[1:]], self.values[where[0]][where[1:]]
        if self.key_scales is None or self.value_scales is None:
            return keys, values
        key_scales = self.key_scales[where[0]][where[1:]]
        value_scales = self.value_scales[where[0]][where[1:]]
        return (
            from_eight_bits(keys, key_scales, self.dtype),
            from_eight_bits(values, value_scales, self.dtype),
        )

    def commit(self, spans: Sequence[Span]) -> None:
        """Make written spans part of what their rows remember."""
        for span in spans:
            self.lengths[span.row] = span.end

    def truncate(self, row: int, length: int) -> None:
        """Forget everything from position `length` on."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"cannot cut row {row} of {self.lengths[row]} positions to {length}")
        self.lengths[row] = length

    def copy_row(self, row: int) -> CacheCopy:
        """Keep aside what a row remembers."""
        return self.lift(row, 0, self.lengths[row])

    def restore_row(self, row: int, copy: CacheCopy) -> None:
        """Put back what was kept aside."""
        self._write_copy(row, copy, 0)
        self.lengths[row] = copy.length

    def lift(self, row: int, start: int, count: int) -> CacheCopy:
        """A copy of positions from `start` on."""
        here = slice(start, start + count)
        everything = CacheCopy(self.keys, self.values, self.key_scales, self.value_scales)
        return everything.map(lambda kept: kept[:, row, :, here].clone())

    def put(self, row: int, copy: CacheCopy, source: int, target: int, rope: RopeTable) -> None:
        """Write lifted positions to begin at `target`, turning their keys to the new places.

        A key that was rotated for position p is rotated once more by (target - source), in
        float32, which equals having been rotated for its new position. Source: sessions.md 5.5.
        The length is left to the caller.
        """
        if source != target:
            cos, sin = rope.angles_of(target - source, copy.keys.device)
            if copy.key_scales is None:
                turned = rotated(copy.keys.float(), cos, sin).to(copy.keys.dtype)
                copy = replace(copy, keys=turned)
            else:
                wide = from_eight_bits(copy.keys, copy.key_scales, torch.float32)
                keys, scales = to_eight_bits(rotated(wide, cos, sin))
                copy = replace(copy, keys=keys, key_scales=scales)
        self._write_copy(row, copy, target)

    def _write_copy(self, row: int, copy: CacheCopy, start: int) -> None:
        there = slice(start, start + copy.length)
        mine = (self.keys, self.values, self.key_scales, self.value_scales)
        for kept, given in zip(mine, copy.parts, strict=True):
            if kept is not None and given is not None:
                kept[:, row, :, there] = given

    def move(self, row: int, source: int, count: int, target: int, rope: RopeTable) -> None:
        """Move `count` positions to begin at `target`; see `put`."""
        if count > 0 and source != target:
            self.put(row, self.lift(row, source, count), source, target, rope)

    def drop(self, row: int, start: int, count: int, rope: RopeTable) -> None:
        """Forget `count` positions from `start` on and close the gap."""
        length = self.lengths[row]
        if start < 0 or count < 0 or start + count > length:
            raise ValueError(f"cannot drop [{start}, {start + count}) of {length} positions")
        self.move(row, start + count, length - start - count, start, rope)
        self.lengths[row] = length - count


class RopeTable:
    """Cosines and sines of rotary positions, float32, built once; for `rotated`.

    Args:
        base: `rope_theta`.
        rounds: round the frequencies to bfloat16, as the published demo does by casting the whole
            module; logits then match it, increasingly noticeable with the position. Moving keys
            always uses the same frequencies the keys were made with. Source: model.md 9.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        base: float,
        positions: int,
        device: torch.device,
        rounds: bool = False,
    ) -> None:
        steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / (base**steps)
        if rounds:
            frequencies = frequencies.to(torch.bfloat16).float()
        self.frequencies = frequencies.to(device)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        self.cos, self.sin = (table.to(device) for table in rotary(angles))

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Tables for positions (T,): two tensors (T, D)."""
        return self.cos[positions].to(dtype), self.sin[positions].to(dtype)

    def angles_of(self, shift: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine of turning by `shift` positions (may be negative), (D,) each."""
        return rotary(self.frequencies.to(device) * float(shift))


def rotary(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Tables of `rotated` for angles (..., D / 2): cosines, and sines that are negative in their
    first half; both (..., D)."""
    sin = angles.sin()
    return torch.cat((angles, angles), dim=-1).cos(), torch.cat((-sin, sin), dim=-1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + D / 2) of the last axis by the angles of `rotary`'s tables."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBatch:
    """A batch in which every row has the same number of new tokens, padded where it has fewer.

    Everything a network needs to know about it is in tensors of fixed shape, so that a pass can be
    captured as a graph and repeated with other numbers in them.

    Args:
        rows: (B,) int64, or None when they are all rows of the cache in order.
        positions: (B, n) int64, where the new keys go; padding has the spare column.
        turns: (B, n) int64, their rotary positions.
        reads: how many columns attention looks at; a number of the host.
        slots: the rows as the host knows them; None where only the device does.
        mask, numbers, first: shared by a step's layers, by kernel (`AttentionMethod.prepared`).
    """

    rows: Tensor | None
    positions: Tensor
    turns: Tensor
    reads: int
    slots: tuple[int, ...] | None = None
    mask: Tensor | None = None
    numbers: Tensor | None = None
    first: Tensor | None = None

    @classmethod
    def of(
        cls,
        spans: Sequence[Span],
        cache: SlotCache,
        *,
        batch: int,
        count: int,
        reads: int,
        everyone: bool = False,
    ) -> PaddedBatch:
        """Lay spans out for `batch` rows of `count` tokens; what is left over is padding.

        Args:
            everyone: a line for each row of the cache, in order; rows without a span are padding.
        """
        if everyone:
            by_row = {span.row: span for span in spans}
            nobody = [Span(row, 0, 0) for row in range(cache.rows)]
            spans = [by_row.get(row, nobody[row]) for row in range(cache.rows)]
        spare = cache.capacity
        positions = [
            [span.start + step if step < span.count else spare for step in range(count)]
            for span in spans
        ]
        turns = [
            [span.start + max(0, min(step, span.count - 1)) for step in range(count)]
            for span in spans
        ]
        rows = [span.row for span in spans]
        for _ in range(batch - len(spans)):
            positions.append([spare] * count)
            turns.append([0] * count)
            rows.append(0)
        device = cache.keys.device
        everyone = everyone or rows == list(range(cache.rows))
        return cls(
            None if everyone else torch.tensor(rows).to(device, non_blocking=True),
            torch.tensor(positions).to(device, non_blocking=True),
            torch.tensor(turns).to(device, non_blocking=True),
            reads,
            tuple(rows),
        )
