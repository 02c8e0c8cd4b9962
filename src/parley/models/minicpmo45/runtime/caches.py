"""Keys and values of many conversations, allocated once.

A `SlotCache` holds, per layer, one tensor of keys and one of values with a row per slot. What a row
remembers is its first `lengths[row]` positions; everything behind is rubbish that the next append
overwrites, so forgetting the newest positions is a change of a number. Positions are compact:
the next one is always the length.

Shapes: `R` rows, `K` key/value heads, `C` capacity in positions, `D` head width, `T` tokens of one
append. Lengths live in Python integers: reading one never waits for a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
    """What one row remembered, kept aside. Shapes (layers, K, length, D)."""

    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        return int(self.keys.shape[2])

    def first(self, count: int) -> CacheCopy:
        """Its first `count` positions."""
        return CacheCopy(self.keys[:, :, :count], self.values[:, :, :count])


class SlotCache:
    """Key/value tensors of shape (R, K, C + 1, D) per layer, and a length per row."""

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
    ) -> None:
        self.capacity = capacity
        # One column more: what must not matter (padding of a batch) is written there.
        # Zeros, not empty: masked positions are multiplied by weight 0, and 0 * nan is nan.
        shape = (layers, rows, heads, capacity + 1, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * rows

    @property
    def layers(self) -> int:
        return int(self.keys.shape[0])

    @property
    def rows(self) -> int:
        return int(self.keys.shape[1])

    @property
    def nbytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def room(self, row: int) -> int:
        """Positions that still fit."""
        return self.capacity - self.lengths[row]

    def write(self, layer: int, span: Span, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of shape (K, T, D) at `span`; the length does not change yet."""
        self.keys[layer, span.row, :, span.start : span.end] = keys
        self.values[layer, span.row, :, span.start : span.end] = values

    def write_even(self, layer: int, batch: Even, keys: Tensor, values: Tensor) -> None:
        """Store an even batch's keys and values of shape (B, n, K, D)."""
        rows = batch.rows
        places = batch.numbers if rows is None else rows
        if places is None:
            places = torch.arange(keys.shape[0], device=keys.device)
        # (B, n) index pairs in front of the head axis: the stored layout is (row, head, column, D).
        self.keys[layer][places[:, None], :, batch.positions] = keys
        self.values[layer][places[:, None], :, batch.positions] = values

    def view(self, layer: int, row: int, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` positions of a row, shapes (K, length, D), without a copy."""
        return self.keys[layer, row, :, :length], self.values[layer, row, :, :length]

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
        length = self.lengths[row]
        return CacheCopy(
            self.keys[:, row, :, :length].clone(), self.values[:, row, :, :length].clone()
        )

    def restore_row(self, row: int, copy: CacheCopy) -> None:
        """Put back what was kept aside."""
        self.keys[:, row, :, : copy.length] = copy.keys
        self.values[:, row, :, : copy.length] = copy.values
        self.lengths[row] = copy.length

    def lift(self, row: int, start: int, count: int) -> CacheCopy:
        """A copy of positions from `start` on."""
        here = slice(start, start + count)
        return CacheCopy(self.keys[:, row, :, here].clone(), self.values[:, row, :, here].clone())

    def put(self, row: int, copy: CacheCopy, source: int, target: int, rope: RopeTable) -> None:
        """Write lifted positions to begin at `target`, turning their keys to the new places.

        A key that was rotated for position p is rotated once more by (target - source), in
        float32, which equals having been rotated for its new position. Source: sessions.md 5.5.
        The length is left to the caller.
        """
        there = slice(target, target + copy.length)
        keys = copy.keys
        if source != target:
            cos, sin = rope.angles_of(target - source, keys.device)
            wide = keys.float()
            keys = rotated(wide, cos, sin).to(keys.dtype)
        self.keys[:, row, :, there] = keys
        self.values[:, row, :, there] = copy.values

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
class Even:
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
    ) -> Even:
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
