"""Steps of the language model on a GPU: padded batches, and the decode step as captured graphs.

On a CPU the packed forward of `network.py` is the fastest and the most exact, so it is used there.
On a GPU a packed forward launches a handful of small kernels per row and layer; a padded batch
launches them once for all rows, and a captured graph (`runtime/graphs.py`) launches a whole decode
step with one call.

Shapes are rounded up so that few of them occur: rows to powers of two, columns read likewise, to at
least `LEAST_COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.runtime.attention import FusedAttention, attending, compare
from parley.models.minicpmo45.runtime.caches import PaddedBatch, RopeTable, SlotCache, Span
from parley.models.minicpmo45.runtime.graphs import (
    CHECKED_ROWS,
    GraphRunner,
    bucket,
    buckets,
    filled,
    power,
    reaches,
    uneven,
)

LEAST_COLUMNS = 512
"""Minimum number of columns that a step reads; more graphs for shorter contexts would gain
nothing."""

LANGUAGE_GRAPHS = ("decode", "feed")
"""Kinds of captured steps; both contain the products of matrices."""

UNIT_TOKENS = 13
"""Number of positions of a row that are captured like single tokens, and to which fewer are padded:
a unit of audio, and the two tokens that end the previous one. The kernel stops at the end of a row,
so these steps read all columns."""

PICTURE_TOKENS = 80
"""The same for a unit with a picture, which has 79: five full blocks of the kernel's queries, each
of which reads the context."""

PICTURE_ROWS = 32
"""Maximum number of rows of such a step; more have too many positions for one prefill step."""

WASTE = 1.5
"""A ragged prefill runs as a padded batch if that costs at most this factor in tokens."""


class LanguageSteps:
    """Forwards of a language model over one cache.

    Args:
        graphs: captures steps; None captures nothing.
        is_padded: run padded batches; None does so only on a GPU, and if steps are captured.
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
        self._all_rows = torch.arange(cache.rows, device=cache.table.device)
        self._graphs = graphs or GraphRunner(llm.device)
        usually = llm.device.type == "cuda" or self._graphs.is_active
        self._is_padded = usually if is_padded is None else is_padded

    def prefill(self, embeds: Tensor, spans: Sequence[Span]) -> Tensor:
        """Feed packed new positions (T, H), and return their states (T, H). The caller commits the
        lengths."""
        count = max(span.count for span in spans)
        usual = self._captured(count, len(spans))
        count = usual or count
        is_wasteful = len(spans) == 1 or count * len(spans) > WASTE * embeds.shape[0]
        if not self._is_padded or (is_wasteful and usual is None):
            return self._llm(embeds, spans, self._cache, self._rope)
        order, cache = _by_row(spans), self._cache
        size = len(spans) if usual is None else bucket(len(spans), cache.rows)
        batch = self._batch([spans[place] for place in order], size, count)
        x = embeds.new_zeros(size, count, embeds.shape[1])
        parts = torch.split(embeds, [span.count for span in spans])
        for line, place in enumerate(order):
            x[line, : spans[place].count] = parts[place]
        if usual is None:
            hidden = self._llm.forward_even(x, batch, cache, self._rope)
        else:
            (hidden,) = self._run("feed", x, replace(batch, reads=cache.capacity))
        lines = dict(zip(order, hidden, strict=False))
        return torch.cat([lines[place][: span.count] for place, span in enumerate(spans)])

    def decode(
        self, ids: Sequence[int], spans: Sequence[Span]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Feed one token per row, and return the states (H) and logits (V) of each. The caller
        commits the lengths."""
        if not self._is_padded:
            hidden = self._llm(self._llm.embed(ids), spans, self._cache, self._rope)
            return hidden.unbind(), self._llm.logits(hidden).unbind()
        order, size = _by_row(spans), len(spans)
        if self._graphs.is_active:
            size = bucket(size, self._cache.rows)
        batch = self._batch([spans[place] for place in order], size, 1)
        fed = [ids[place] for place in order] + [0] * (size - len(order))
        hidden, logits = self._run("decode", torch.tensor(fed), batch)
        lines = sorted(range(len(order)), key=order.__getitem__)
        return [hidden[line] for line in lines], [logits[line] for line in lines]

    def _captured(self, count: int, rows: int) -> int | None:
        """Number of positions to which steps of `count` per row are padded and captured; None if
        they are not."""
        if not (self._graphs.is_active and self._llm.attention.reads_in_place):
            return None
        if count <= UNIT_TOKENS:
            return UNIT_TOKENS
        return PICTURE_TOKENS if count <= PICTURE_TOKENS and rows <= PICTURE_ROWS else None

    def capture(self) -> None:
        """Capture every shape of the decode step, so that none is captured during a conversation.

        All rows write to the spare column, so no conversation's data changes.
        """
        if not self._graphs.is_active:
            return
        cache = self._cache
        with filled(cache.tensors), cache.scattered():
            for reads in reaches(LEAST_COLUMNS, cache.capacity):
                for size in buckets(cache.rows):
                    self._capture(size, 1, reads)
            for count in (PICTURE_TOKENS, UNIT_TOKENS):
                for size in buckets(cache.rows):
                    if self._captured(count, size) == count:
                        self._capture(size, count, cache.capacity)

    def _capture(self, size: int, count: int, reads: int) -> None:
        """Capture one shape, and compare it with the plain step over rows of different lengths."""
        llm, slots = self._llm, tuple(reversed(range(size)))
        spare = torch.full((size, count), self._cache.spare)
        ends = torch.tensor(uneven(size, max(1, reads - count + 1)))
        turns = (ends[:, None] + torch.arange(count)).clamp(max=reads - 1)
        batch = PaddedBatch(torch.tensor(slots), spare, turns, reads, slots)
        ids, is_checked = torch.arange(size * count), size <= CHECKED_ROWS
        if count == 1:
            self._run("decode", ids, batch, is_checked=is_checked)
        else:
            x = llm.embed(ids).view(size, count, -1)
            self._run("feed", x, batch, is_checked=is_checked)

    def again(self, fed: int | Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Feed a span of one position by the plain path, and return its state (H) and logits (V).

        Args:
            fed: the token, or its embedding (H).
        """
        llm = self._llm
        embeds = llm.embed([fed]) if isinstance(fed, int) else fed[None]
        with attending(llm, FusedAttention()):
            hidden = llm(embeds, [span], self._cache, self._rope)[0]
        return hidden, llm.logits(hidden[None])[0]

    def _run(
        self,
        kind: Literal["decode", "feed"],
        given: Tensor,
        batch: PaddedBatch,
        *,
        is_checked: bool = False,
    ) -> tuple[Tensor, ...]:
        """Run a step of a padded batch, by a graph if there is one; inputs may be on the host.

        Args:
            kind: `decode` returns states (B, H) and logits (B, V) of tokens (B,); `feed` returns
                states of embeddings (B, n, H).
            is_checked: compare its attention with PyTorch's first.

        Raises:
            FastPathFailed: they differ.
        """
        llm, cache, rope, reads = self._llm, self._cache, self._rope, batch.reads

        def step(
            slots: tuple[int, ...] | None, given: Tensor, *places: Tensor
        ) -> tuple[Tensor, ...]:
            positions, turns, *rows = places
            here = PaddedBatch(rows[0] if rows else None, positions, turns, reads, slots)
            if kind == "feed":
                return (llm.forward_even(given, here, cache, rope),)
            x = llm.model.embed_tokens(given)[:, None]
            hidden = llm.forward_even(x, here, cache, rope)[:, 0]
            return hidden, llm.logits(hidden)

        inputs = [given, batch.positions, batch.turns]
        if batch.rows is not None or self._graphs.is_active:
            inputs.append(self._all_rows if batch.rows is None else batch.rows)
        shape = (*batch.positions.shape, reads)
        if is_checked:
            checked = partial(step, batch.slots, *(tensor.to(llm.device) for tensor in inputs))
            compare(llm, checked, f"{kind} steps of shape {shape}")
        # A graph serves any rows of its shape, so it must not depend on which they are.
        slots = None if self._graphs.is_active else batch.slots
        return self._graphs.run(kind, shape, partial(step, slots), inputs)

    def _batch(self, spans: Sequence[Span], size: int, count: int) -> PaddedBatch:
        needed = max(span.end for span in spans)
        reads = min(power(max(needed, LEAST_COLUMNS)), self._cache.capacity)
        return PaddedBatch.of(spans, self._cache, batch=size, count=count, reads=reads)


def _by_row(spans: Sequence[Span]) -> list[int]:
    """Indices of the spans, sorted by their rows."""
    return sorted(range(len(spans)), key=lambda place: spans[place].row)
