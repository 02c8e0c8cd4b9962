"""Steps of the language model on a GPU: padded batches, and the decode step as captured graphs.

On a CPU the packed forward of `network.py` is the fastest and the most exact, and it is what runs
there. On a GPU a packed forward launches a handful of small kernels per row and layer; a padded
batch launches them once for all rows, and a captured graph (`runtime/graphs.py`) launches a whole
decode step in one go.

Shapes are rounded up so that few of them occur: rows to powers of two, columns read likewise from
`LEAST_COLUMNS` on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, RopeTable, SlotCache, Span
from parley.models.minicpmo45.runtime.graphs import (
    CHECKED_ROWS,
    GraphRunner,
    bucket,
    buckets,
    filled,
    power,
    reaches,
    row_counts,
)

LEAST_COLUMNS = 512
"""No step reads fewer columns; more graphs for shorter contexts would gain nothing."""

LANGUAGE_GRAPHS = ("decode", "feed")
"""Kinds of captured steps; both hold the matrices' products."""

FED_TOGETHER = (2, 11)
"""Positions of a row whose steps are captured, single tokens apart: the ends of a unit, and a unit
of sound. The kernel takes so many, and stops where a row ends, so these read all columns."""

WASTE = 1.5
"""A ragged prefill is padded to a padded batch when that costs at most this factor in tokens."""


class LanguageSteps:
    """Forwards of a language model over one cache.

    Args:
        graphs: who captures decode steps; None captures nothing.
        is_padded: run padded batches; None does so on a GPU only, and where steps are captured.
    """

    def __init__(
        self,
        llm: LanguageModel,
        cache: SlotCache,
        rope: RopeTable,
        *,
        graphs: GraphRunner | None = None,
        is_padded: bool | None = None,
    ) -> None:
        self._llm = llm
        self._cache = cache
        self._rope = rope
        self._graphs = graphs or GraphRunner(llm.device)
        usually = llm.device.type == "cuda" or self._graphs.is_active
        self._is_padded = usually if is_padded is None else is_padded

    def prefill(self, embeds: Tensor, spans: Sequence[Span]) -> Tensor:
        """States (T, H) of packed new positions (T, H). Lengths are left to the caller."""
        count = max(span.count for span in spans)
        is_wasteful = count * len(spans) > WASTE * embeds.shape[0]
        is_beyond = max(span.start for span in spans) + count > self._cache.capacity
        is_single = len(spans) == 1 and not self._captures(count)
        if not self._is_padded or is_single or is_wasteful or is_beyond:
            return self._llm(embeds, spans, self._cache, self._rope)
        spans_in_order = sorted(range(len(spans)), key=lambda place: spans[place].row)
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.count)
        size = bucket(len(spans), self._cache.rows) if self._captures(count) else len(spans)
        batch = self._batch([spans[place] for place in spans_in_order], size, count)
        x = embeds.new_zeros(size, count, embeds.shape[1])
        for line, place in enumerate(spans_in_order):
            x[line, : spans[place].count] = embeds[starts[place] : starts[place + 1]]
        hidden = self._fed(x, batch)
        lines = {place: line for line, place in enumerate(spans_in_order)}
        return torch.cat([hidden[lines[place], : span.count] for place, span in enumerate(spans)])

    def decode(
        self, ids: Sequence[int], spans: Sequence[Span]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Feed one token per row: states (H) and logits (V) of each. Lengths are left to the
        caller."""
        if not self._is_padded:
            hidden = self._llm(self._llm.embed(ids), spans, self._cache, self._rope)
            return hidden.unbind(), self._llm.logits(hidden).unbind()
        order = sorted(range(len(spans)), key=lambda place: spans[place].row)
        sorted_spans = [spans[place] for place in order]
        fed = [ids[place] for place in order]
        lines = {place: line for line, place in enumerate(order)}
        if self._takes_everyone(len(spans)):
            # Unused rows write to the spare column, and all rows are read without a copy.
            lines = {place: spans[place].row for place in order}
            by_row = {span.row: token for span, token in zip(sorted_spans, fed, strict=True)}
            fed = [by_row.get(row, 0) for row in range(self._cache.rows)]
            batch = self._batch(sorted_spans, self._cache.rows, 1, everyone=True)
        else:
            size = len(spans)
            if self._graphs.is_active:
                size = bucket(size, self._cache.rows)
            batch = self._batch(sorted_spans, size, 1)
            fed += [0] * (size - len(fed))
        hidden, logits = self._step(torch.tensor(fed), batch)
        places = range(len(spans))
        return [hidden[lines[p]] for p in places], [logits[lines[p]] for p in places]

    def _captures(self, count: int) -> bool:
        """True if steps that feed so many positions of each row are captured."""
        in_place = self._llm.attention.reads_in_place
        return self._graphs.is_active and in_place and count in FED_TOGETHER

    def _fed(self, x: Tensor, batch: PaddedBatch, *, is_checked: bool = False) -> Tensor:
        """States (B, n, H) of a padded batch's embeddings, by a graph where there is one.

        Args:
            is_checked: compare with the plain step when it is captured.
        """
        llm, cache, rope = self._llm, self._cache, self._rope
        if not self._captures(x.shape[1]):
            return llm.forward_even(x, batch, cache, rope)

        def states(slots: tuple[int, ...] | None, *given: Tensor) -> tuple[Tensor, ...]:
            x, positions, turns, rows = given
            here = PaddedBatch(rows, positions, turns, cache.capacity, slots)
            return (llm.forward_even(x, here, cache, rope),)

        def plain(*given: Tensor) -> tuple[Tensor, ...]:
            with plainly(llm):
                return states(batch.slots, *given)

        rows = torch.arange(cache.rows) if batch.rows is None else batch.rows
        (hidden,) = self._graphs.run(
            "feed",
            tuple(x.shape[:2]),
            partial(states, None),
            [x, batch.positions, batch.turns, rows],
            reference=plain if is_checked else None,
        )
        return hidden

    def _takes_everyone(self, rows: int) -> bool:
        """True if a step of so many rows runs over all slots. A kernel that copies what rows
        remember before it reads it moves three times their bytes, one over all slots theirs."""
        slots = self._cache.rows
        if rows == slots:
            return True
        copies = self._graphs.is_active and not self._llm.attention.reads_in_place
        return copies and slots <= 3 * rows

    def capture(self) -> None:
        """Capture every shape of the decode step, so that none is captured in a conversation.

        All rows write to the spare column, so nothing that anybody reads is disturbed.
        """
        if not self._graphs.is_active:
            return
        cache = self._cache
        with filled(cache.tensors), cache.scattered():
            # Largest first: the space of a large graph serves all smaller ones after it.
            for reads in reversed(reaches(LEAST_COLUMNS, cache.capacity)):
                for size, everyone in reversed(row_counts(cache.rows)):
                    if everyone or not self._takes_everyone(size):
                        self._capture(size, reads, everyone=everyone)
            for count in FED_TOGETHER if self._llm.attention.reads_in_place else ():
                for size in reversed(buckets(cache.rows, cache.rows)):
                    self._capture_fed(size, count)

    def _capture_fed(self, size: int, count: int) -> None:
        llm, capacity = self._llm, self._cache.capacity
        spare = torch.full((size, count), self._cache.spare)
        ends = [(capacity - count, 0, 63, 64, capacity // 2)[place % 5] for place in range(size)]
        turns = torch.tensor(ends)[:, None] + torch.arange(count)
        slots = tuple(reversed(range(size)))
        batch = PaddedBatch(torch.tensor(slots), spare, turns, capacity, slots)
        x = llm.embed(torch.arange(size * count)).view(size, count, -1)
        self._fed(x, batch, is_checked=size <= CHECKED_ROWS)

    def _capture(self, size: int, reads: int, *, everyone: bool) -> None:
        """One shape, compared with the plain step over rows of different lengths."""
        spare = torch.full((size, 1), self._cache.spare)
        slots = tuple(reversed(range(size))) if not everyone else tuple(range(size))
        ends = [(reads - 1, 0, 63, 64, reads // 2)[place % 5] for place in range(size)]
        rows = None if everyone else torch.tensor(slots)
        batch = PaddedBatch(rows, spare, torch.tensor(ends)[:, None], reads, slots)
        self._step(torch.arange(size), batch, is_checked=size <= CHECKED_ROWS)

    def again(self, fed: int | Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Feed the position of a span of one by the plain path: its state (H) and logits (V).

        Args:
            fed: the token, or its embedding (H).
        """
        llm = self._llm
        embeds = llm.embed([fed]) if isinstance(fed, int) else fed[None]
        with plainly(llm):
            hidden = llm(embeds, [span], self._cache, self._rope)[0]
        return hidden, llm.logits(hidden[None])[0]

    def _step(
        self, ids: Tensor, batch: PaddedBatch, *, is_checked: bool = False
    ) -> tuple[Tensor, Tensor]:
        """One token of every row of a padded batch; inputs may be on the host.

        Args:
            is_checked: compare with the plain step when it is captured.
        """
        llm, cache, rope, reads = self._llm, self._cache, self._rope, batch.reads

        def states(slots: tuple[int, ...] | None, *given: Tensor) -> tuple[Tensor, ...]:
            ids, positions, turns, *rows = given
            here = PaddedBatch(rows[0] if rows else None, positions, turns, reads, slots)
            x = llm.model.embed_tokens(ids)[:, None]
            hidden = llm.forward_even(x, here, cache, rope)[:, 0]
            return hidden, llm.logits(hidden)

        def plain(*given: Tensor) -> tuple[Tensor, ...]:
            with plainly(llm):
                return states(batch.slots, *given)

        inputs = [ids, batch.positions, batch.turns]
        if batch.rows is not None:
            inputs.append(batch.rows)
        shape = (ids.shape[0], batch.rows is None, reads)
        # A graph serves all rows of its shape, so it must not know which they are.
        slots = None if self._graphs.is_active else batch.slots
        hidden, logits = self._graphs.run(
            "decode",
            shape,
            partial(states, slots),
            inputs,
            reference=plain if is_checked else None,
        )
        return hidden, logits

    def _batch(
        self, spans: Sequence[Span], size: int, count: int, *, everyone: bool = False
    ) -> PaddedBatch:
        needed = max(span.end for span in spans)
        reads = min(power(max(needed, LEAST_COLUMNS)), self._cache.capacity)
        return PaddedBatch.of(
            spans, self._cache, batch=size, count=count, reads=reads, everyone=everyone
        )


@contextmanager
def plainly(llm: LanguageModel) -> Iterator[None]:
    """Within it the language model attends by PyTorch."""
    chosen, llm.attention = llm.attention, FusedAttention()
    try:
        yield
    finally:
        llm.attention = chosen
