"""Keys and values of many conversations, allocated once.

A `SlotCache` stores one tensor of keys and one of values per layer. A row has one page of them, or
takes pages as it grows (`pages.py`). The contents of a row are its first `lengths[row]` positions;
everything behind them is undefined and overwritten by the next append, so forgetting the newest
positions only changes a number. Positions are compact: the next one is always the length.

Shapes: `R` rows, `K` key/value heads, `C` capacity in positions, `P` positions of a page, `D` head
width, `T` tokens of one append. Lengths are Python integers: reading one never waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Final
from weakref import WeakSet

import torch
from torch import Tensor

from parley.errors import ContextFull
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.pages import RESERVED, SPARE, ZEROS, PagePool, PageTable


@dataclass(frozen=True, slots=True)
class Span:
    """`count` consecutive new positions of one row, starting at `start`."""

    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True, eq=False)
class CacheCopy:
    """A copy of one row's contents as they were stored: keys and values, shapes (layers, K, length,
    D), and their scales, if any, (layers, K, length)."""

    tensors: tuple[Tensor, ...]

    @property
    def length(self) -> int:
        return int(self.tensors[0].shape[2])

    def part(self, start: int, end: int) -> CacheCopy:
        """Positions from `start` up to `end`."""
        return CacheCopy(tuple(kept[:, :, start:end] for kept in self.tensors))

    def turn(self, cos: Tensor, sin: Tensor) -> None:
        """Rotate the keys further, in float32, by the angles of `rotary`'s tables. Layer by layer,
        because in float32 the keys of all take gigabytes (6,000 positions of the published model:
        3.4 with what is made of them)."""
        keys, _, *scales = self.tensors
        for mine, *scale in zip(keys, *scales[:1], strict=True):
            wide = from_eight_bits(mine, scale[0], torch.float32) if scale else mine.float()
            turned = rotated(wide, cos, sin)
            given = to_eight_bits(turned) if scale else (turned,)
            for kept, new in zip((mine, *scale), given, strict=True):
                kept.copy_(new)


@dataclass(slots=True, eq=False, weakref_slot=True)
class CacheCheckpoint:
    """The first `length` positions of a row. They stay in the cache; before something overwrites
    them, they are saved in `copy`."""

    length: int
    copy: CacheCopy | None = None


class SlotCache:
    """Key/value tensors of shape (K, columns, D) per layer, and a length per row.

    The columns are those of all pages, one page after the other. Without a pool every row has one
    page of `C + 1` positions; with one it has a page for every `P` positions that it contains.

    Args:
        dtype: of keys and values that are written and read.
        is_eight_bit: store keys and values in 8 bits (`to_eight_bits`), with scales of shape (K,
            columns) per layer. Reading then returns an unpacked copy.
        pool: rows take pages from it; None: each row has one page for its whole capacity.
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
        pool: PagePool | None = None,
    ) -> None:
        self.capacity = capacity
        self.dtype = dtype
        self.pages = None if pool is None else PageTable(pool, rows=rows, capacity=capacity)
        if self.pages is None:
            # One more column, where the padding of a batch is written.
            self.page, pages, self.spare = capacity + 1, rows, capacity
            self._table = [[row] for row in range(rows)]
        else:
            assert pool is not None
            self.page, pages = self.pages.page, RESERVED + pool.pages
            self.spare = self.pages.width * self.page
            self._table = [self._line([]) for _ in range(rows)]
        # Zeros, not empty: masked positions are multiplied by weight 0, and 0 * nan is nan.
        shape = (layers, heads, pages * self.page, head_dim)
        stored = torch.int8 if is_eight_bit else dtype
        self.keys = torch.zeros(shape, dtype=stored, device=device)
        self.values = torch.zeros(shape, dtype=stored, device=device)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if is_eight_bit:
            self.key_scales = torch.zeros(shape[:-1], dtype=SCALE_DTYPE, device=device)
            self.value_scales = torch.zeros(shape[:-1], dtype=SCALE_DTYPE, device=device)
        self._by_layer = [[kept[layer] for kept in self.tensors] for layer in range(layers)]
        self.table = torch.tensor(self._table, device=device)
        """(R, pages of a row), int64: the page of each stretch of positions, for the device."""
        self.lengths = [0] * rows
        self._checkpoints: list[WeakSet[CacheCheckpoint]] = [WeakSet() for _ in range(rows)]
        self._found: dict[tuple[int, int, int], Tensor] = {}

    @property
    def layers(self) -> int:
        return int(self.keys.shape[0])

    @property
    def heads(self) -> int:
        return int(self.keys.shape[1])

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors on the device, except the tables."""
        scales = [kept for kept in (self.key_scales, self.value_scales) if kept is not None]
        return (self.keys, self.values, *scales)

    @property
    def is_eight_bit(self) -> bool:
        """True if keys and values are stored in 8 bits."""
        return self.key_scales is not None

    # Pages.

    def reach(self, row: int) -> int:
        """Maximum number of positions that a row may have now."""
        return self.capacity if self.pages is None else self.pages.reach(row)

    def reserve(self, row: int, length: int) -> None:
        """Make room for the first `length` positions of a row, or for `capacity` if that is less.

        Raises:
            ContextFull: the pool has no page left for it; nothing has changed.
        """
        if self.pages is None:
            return
        taken = self.pages.reserve(row, min(length, self.capacity))
        for page in taken:
            # Another row's values are left there, and 0 * nan is nan.
            for kept in self.tensors:
                kept[:, :, page * self.page : (page + 1) * self.page].zero_()
        if taken:
            self._show(row, self._line(self.pages.held[row]))

    def has_room(self, row: int) -> bool:
        """Reserve one more position of a row; returns False if there is no room for it."""
        try:
            self.reserve(row, self.lengths[row] + 1)
        except ContextFull:
            return False
        return self.lengths[row] < self.capacity

    def release(self, row: int) -> None:
        """Return the pages behind a row's length to the pool."""
        if self.pages is not None and self.pages.release(row, self.lengths[row]):
            self._show(row, self._line(self.pages.held[row]))

    def _line(self, held: Sequence[int]) -> list[int]:
        """A row of the table: its pages, `ZEROS` for the rest, and the page for padding."""
        assert self.pages is not None
        return [*held, *[ZEROS] * (self.pages.width - len(held)), SPARE]

    def _show(self, row: int, line: list[int]) -> None:
        self._table[row] = line
        self.table[row] = torch.tensor(line).to(self.table.device, non_blocking=True)
        self._found.clear()

    @contextmanager
    def scattered(self) -> Iterator[None]:
        """Within the context every row has random pages of the pool. All rows must be empty."""
        if self.pages is None:
            yield
            return
        random = Random(1)
        last = self.keys.shape[2] // self.page
        try:
            for row in range(self.rows):
                line = [random.randrange(RESERVED, last) for _ in range(self.pages.width)]
                self._show(row, self._line(line))
            yield
        finally:
            for row, held in enumerate(self.pages.held):
                self._show(row, self._line(held))

    def _columns(self, row: int, start: int, end: int) -> slice | Tensor:
        """Columns of the positions from `start` up to `end`: a slice if their pages are neighbours,
        else a tensor (end - start,) int64."""
        if self.pages is None:
            return slice(row * self.page + start, row * self.page + end)
        pages = self._table[row][start // self.page : max(1, -(-end // self.page))]
        first = pages[0] * self.page + start % self.page
        if pages == list(range(pages[0], pages[0] + len(pages))):
            return slice(first, first + end - start)
        known = self._found.get((row, start, end))
        if known is None:
            places = torch.tensor(pages)[:, None] * self.page + torch.arange(self.page)
            skipped = start % self.page
            here = places.flatten()[skipped : skipped + end - start]
            known = to_device(here, self.keys.device)
            # Every layer of a step requests the same columns.
            self._found = {**dict(list(self._found.items())[-15:]), (row, start, end): known}
        return known

    def placed(self, batch: PaddedBatch) -> PaddedBatch:
        """A copy of the batch with the `columns` of its new positions; called once per step."""
        rows = batch.rows
        if rows is None:
            rows = torch.arange(self.rows, device=self.table.device)
        pages = self.table[rows[:, None], batch.positions // self.page]
        columns = pages * self.page + batch.positions % self.page
        return replace(batch, columns=columns.flatten())

    # Keys and values.

    def paged(self, layer: int) -> Paged:
        """Views of a layer in the form that the attention kernel reads."""
        keys, values, *scales = self.layer(layer)
        of_keys, of_values = (None if one is None else self._by_page(one) for one in scales)
        table = None if self.pages is None else self.table
        return Paged(self._by_page(keys), self._by_page(values), of_keys, of_values, table)

    def layer(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Keys and values of a layer, (K, columns, D), and their scales, (K, columns); views."""
        keys, values, *scales = self._by_layer[layer]
        of_keys, of_values = scales or (None, None)
        return keys, values, of_keys, of_values

    def _by_page(self, columns: Tensor) -> Tensor:
        """(K, columns, …) as (pages, K, P, …)."""
        return torch.unflatten(columns, 1, (-1, self.page)).transpose(0, 1)

    def write(self, layer: int, span: Span, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of shape (K, T, D) at `span`, for which there must be room; the
        length does not change yet."""
        self._store(layer, self._columns(span.row, span.start, span.end), keys, values)

    def write_padded(self, layer: int, batch: PaddedBatch, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of a batch that was `placed`, of shape (B n, K, D)."""
        assert batch.columns is not None
        self._store(layer, batch.columns, keys.transpose(0, 1), values.transpose(0, 1))

    def _store(self, layer: int, where: slice | Tensor, keys: Tensor, values: Tensor) -> None:
        given = [keys, values]
        if self.is_eight_bit:
            numbers, scales = to_eight_bits(torch.stack((keys, values)))
            given = [*numbers, *scales]
        for kept, new in zip(self._by_layer[layer], given, strict=True):
            if isinstance(where, Tensor):
                kept.index_copy_(1, where, new)
            else:
                kept[:, where] = new

    def view(self, layer: int, row: int, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` positions of a row, shapes (K, length, D); views, unless they are
        stored in 8 bits or their pages are not neighbours."""
        where = self._columns(row, 0, length)
        return self._loaded(layer, lambda kept: kept[:, where])

    def columns(self, layer: int, rows: Tensor | None, reads: int) -> tuple[Tensor, Tensor]:
        """The first `reads` positions of rows (None: all), shapes (rows, K, reads, D); views if
        `rows` is None, unless they are stored in 8 bits or in pages."""
        if self.pages is None:
            chosen = slice(None) if rows is None else rows
            return self._loaded(layer, lambda kept: self._by_page(kept)[chosen, :, :reads])
        pages = self.table[slice(None) if rows is None else rows, : -(-reads // self.page)]
        offsets = torch.arange(self.page, device=pages.device)
        places = (pages[..., None] * self.page + offsets).flatten(1)[:, :reads]
        return self._loaded(layer, lambda kept: kept[:, places].transpose(0, 1))

    def _loaded(self, layer: int, chosen: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        keys, values, *scales = map(chosen, self._by_layer[layer])
        if not scales:
            return keys, values
        of_keys, of_values = scales
        return (
            from_eight_bits(keys, of_keys, self.dtype),
            from_eight_bits(values, of_values, self.dtype),
        )

    def commit(self, spans: Sequence[Span]) -> None:
        """Add written spans to the contents of their rows."""
        for span in spans:
            self.lengths[span.row] = span.end

    def truncate(self, row: int, length: int) -> None:
        """Forget everything from position `length` on."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"cannot cut row {row} of {self.lengths[row]} positions to {length}")
        self.lengths[row] = length
        self.release(row)

    def checkpoint(self, row: int, length: int) -> CacheCheckpoint:
        """Take a checkpoint of a row's first positions. Copies nothing yet."""
        checkpoint = CacheCheckpoint(length)
        if length:
            self._checkpoints[row].add(checkpoint)
        return checkpoint

    def save(self, row: int, start: int) -> None:
        """Save what checkpoints that are still referenced need, before positions from `start` on
        are overwritten."""
        for checkpoint in list(self._checkpoints[row]):
            if checkpoint.copy is None and checkpoint.length > start:
                checkpoint.copy = self.lift(row, 0, checkpoint.length)

    def roll_back(self, row: int, checkpoint: CacheCheckpoint) -> None:
        """Return to a checkpoint of this row; it stays valid."""
        if checkpoint.copy is not None:
            self.save(row, 0)
            self.write_copy(row, checkpoint.copy, 0)
        self.lengths[row] = checkpoint.length

    def empty(self, row: int) -> None:
        """Forget a row's contents, except those of checkpoints."""
        self.save(row, 0)
        self.truncate(row, 0)

    def lift(self, row: int, start: int, count: int) -> CacheCopy:
        """A copy of `count` positions from `start` on."""
        here = self._columns(row, start, start + count)
        if isinstance(here, Tensor):
            return CacheCopy(tuple(kept[:, :, here] for kept in self.tensors))
        return CacheCopy(tuple(kept[:, :, here].clone() for kept in self.tensors))

    def put(self, row: int, copy: CacheCopy, source: int, target: int, rope: RopeTable) -> None:
        """Write lifted positions from `target` on, with their keys, also those of `copy`, rotated
        to the new positions.

        A key that was rotated for position p is rotated again by (target - source), in
        float32, which is equal to a rotation for its new position. Source: sessions.md 5.5. The
        caller sets the length.
        """
        if source != target:
            copy.turn(*rope.angles_of(target - source, self.keys.device))
        self.write_copy(row, copy, target)

    def write_copy(self, row: int, copy: CacheCopy, start: int) -> None:
        """Write lifted positions unchanged from `start` on; the length does not change."""
        self.reserve(row, start + copy.length)
        there = self._columns(row, start, start + copy.length)
        for kept, given in zip(self.tensors, copy.tensors, strict=True):
            kept[:, :, there] = given

    def move(self, row: int, source: int, count: int, target: int, rope: RopeTable) -> None:
        """Move `count` positions so that they start at `target`; see `put`."""
        if count > 0 and source != target:
            self.put(row, self.lift(row, source, count), source, target, rope)

    def drop(self, row: int, start: int, count: int, rope: RopeTable) -> None:
        """Forget `count` positions from `start` on and close the gap."""
        length = self.lengths[row]
        if start < 0 or count < 0 or start + count > length:
            raise ValueError(f"cannot drop [{start}, {start + count}) of {length} positions")
        self.move(row, start + count, length - start - count, start, rope)
        self.truncate(row, length - count)


@dataclass(frozen=True, slots=True, eq=False)
class Paged:
    """A layer's keys and values by page, (pages, K, P, D), their scales (pages, K, P), and the
    pages of every row; `table` is None if each row is one page."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None
    table: Tensor | None


class RopeTable:
    """Cosines and sines of rotary positions for `rotated`, float32, computed once.

    Args:
        base: `rope_theta`.
        rounds: round the frequencies to bfloat16, as the published demo does by casting the whole
            module; logits then match it; the difference grows with the position. Moving keys always
            uses the frequencies with which the keys were rotated. Source: model.md 9.
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
        """Cosine and sine of a rotation by `shift` positions, which may be negative, (D,) each."""
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
    """A batch in which every row has the same number of new tokens; rows with fewer are padded.

    Everything that a network needs is in tensors of fixed shape, so that a pass can be captured as
    a graph and replayed with other values in them.

    Args:
        rows: (B,) int64; None if they are all rows of the cache in order, or the single one of
            `slots`.
        positions: (B, n) int64, where the new keys are written; padding has the spare position.
        turns: (B, n) int64, their rotary positions.
        reads: number of columns that attention reads; on the host.
        slots: the rows on the host; None if only the device knows them.
        first: (B,) int64, the first column that a row sees; None: 0.
        mask, numbers: shared by the layers of a step; which one is set depends on the kernel
            (`FusedAttention.prepared`).
        columns: (B n,) int64, columns of the positions; shared likewise (`SlotCache.placed`).
    """

    rows: Tensor | None
    positions: Tensor
    turns: Tensor
    reads: int
    slots: tuple[int, ...] | None = None
    first: Tensor | None = None
    mask: Tensor | None = None
    numbers: Tensor | None = None
    columns: Tensor | None = None

    @classmethod
    def of(
        cls,
        spans: Sequence[Span],
        cache: SlotCache,
        *,
        batch: int,
        count: int,
        reads: int,
    ) -> PaddedBatch:
        """A batch of `batch` rows of `count` tokens with these spans; the rest is padding."""
        for span in spans:
            cache.reserve(span.row, span.end)
        spare = cache.spare
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
        return cls(
            None
            if rows == list(range(cache.rows))
            else torch.tensor(rows).to(device, non_blocking=True),
            torch.tensor(positions).to(device, non_blocking=True),
            torch.tensor(turns).to(device, non_blocking=True),
            reads,
            tuple(rows),
        )

    def divided(self, parts: int, slots: tuple[int, ...] | None) -> list[PaddedBatch]:
        """The batch split into `parts` batches of equal size, all of the same slots."""
        given = (self.rows, self.positions, self.turns, self.first, self.mask, self.numbers)
        lines = [
            [None] * parts if one is None else one.chunk(parts) for one in (*given, self.columns)
        ]
        return [
            PaddedBatch(rows, positions, turns, self.reads, slots, *others)
            for rows, positions, turns, *others in zip(*lines, strict=True)
        ]


SCALE_DTYPE: Final = torch.float16
"""Type of the scales of vectors in 8 bits. A scale is rounded to it before the numbers are, so that
its error does not add to theirs: a number is off by half a scale at most, which is 1/254 of the
largest number of its vector."""

_MOST: Final = 127
_LEAST_SCALE: Final = 1e-6
_MOST_SCALE: Final = 65504.0


def to_eight_bits(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize vectors (..., D) to integers from -127 to 127, int8 (..., D), and a scale per vector
    (...)."""
    wide = vectors.float()
    scales = (wide.abs().amax(-1) / _MOST).clamp(_LEAST_SCALE, _MOST_SCALE).to(SCALE_DTYPE)
    numbers = (wide / scales.float()[..., None]).round().clamp(-_MOST, _MOST)
    return numbers.to(torch.int8), scales


def from_eight_bits(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The dequantized vectors, (..., D)."""
    # Multiplied in float32 and rounded last, in one kernel without an intermediate tensor.
    out = torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    return torch.mul(numbers, scales.float()[..., None], out=out)
