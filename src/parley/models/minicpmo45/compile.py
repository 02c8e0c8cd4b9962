"""The brain's steps, made fast on a GPU: even batches, and captured graphs for the decode step.

On a CPU the packed forward of `language.py` is the fastest and the most exact, and it is what runs
there. On a GPU a packed forward launches a handful of small kernels per row and layer; an even
batch launches them once for all rows, and a captured graph launches a whole decode step at once.

Shapes are rounded up so that few of them occur: rows to powers of two, columns read likewise from
`LEAST_COLUMNS` on. Graphs are captured when first needed; `capture` makes all of them at start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parley.models.minicpmo45.caches import Even, RopeTable, SlotCache, Span
from parley.models.minicpmo45.language import LanguageModel

log = logging.getLogger(__name__)

LEAST_COLUMNS = 512
"""No step reads fewer columns; more graphs for shorter contexts would gain nothing."""

WASTE = 1.5
"""A ragged prefill is padded to an even batch when that costs at most this factor in tokens."""


@dataclass(slots=True, eq=False)
class _Captured:
    """A decode step of one shape: fill the inputs, replay, read the outputs."""

    graph: torch.cuda.CUDAGraph
    ids: Tensor
    batch: Even
    hidden: Tensor
    logits: Tensor


class BrainSteps:
    """Forwards of a language model over one cache.

    Args:
        uses_graphs: capture decode steps; ignored on a CPU.
        is_even: run even batches; None does so on a GPU only.
    """

    def __init__(
        self,
        llm: LanguageModel,
        cache: SlotCache,
        rope: RopeTable,
        *,
        uses_graphs: bool = False,
        is_even: bool | None = None,
    ) -> None:
        self._llm = llm
        self._cache = cache
        self._rope = rope
        on_gpu = llm.device.type == "cuda"
        self._is_even = on_gpu if is_even is None else is_even
        self._uses_graphs = uses_graphs and on_gpu
        self._captured: dict[tuple[int, bool, int], _Captured] = {}
        self._pool: Any = None

    def prefill(self, embeds: Tensor, spans: Sequence[Span]) -> Tensor:
        """States (T, H) of packed new positions (T, H). Lengths are left to the caller."""
        count = max(span.count for span in spans)
        padded = count * len(spans)
        if not self._is_even or len(spans) == 1 or padded > WASTE * embeds.shape[0]:
            return self._llm(embeds, spans, self._cache, self._rope)
        spans_in_order = sorted(range(len(spans)), key=lambda place: spans[place].row)
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.count)
        batch = self._batch([spans[place] for place in spans_in_order], len(spans), count)
        x = embeds.new_zeros(len(spans), count, embeds.shape[1])
        for line, place in enumerate(spans_in_order):
            x[line, : spans[place].count] = embeds[starts[place] : starts[place + 1]]
        hidden = self._llm.forward_even(x, batch, self._cache, self._rope)
        lines = {place: line for line, place in enumerate(spans_in_order)}
        return torch.cat([hidden[lines[place], : span.count] for place, span in enumerate(spans)])

    def decode(self, ids: Sequence[int], spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        """Feed one token per row: states (B, H) and logits (B, V). Lengths are left to the caller.

        The returned tensors are valid until the next call; keep copies of what is needed longer.
        """
        if not self._is_even:
            hidden = self._llm(self._llm.embed(ids), spans, self._cache, self._rope)
            return hidden, self._llm.logits(hidden)
        order = sorted(range(len(spans)), key=lambda place: spans[place].row)
        sorted_spans = [spans[place] for place in order]
        sorted_ids = [ids[place] for place in order]
        if self._uses_graphs:
            hidden, logits = self._replay(sorted_ids, sorted_spans)
        else:
            batch = self._batch(sorted_spans, len(spans), 1)
            x = self._llm.embed(sorted_ids)[:, None]
            hidden = self._llm.forward_even(x, batch, self._cache, self._rope)[:, 0]
            logits = self._llm.logits(hidden)
        back = [0] * len(order)
        for line, place in enumerate(order):
            back[place] = line
        if back == list(range(len(back))):
            return hidden, logits
        return hidden[back], logits[back]

    def capture(self) -> None:
        """Capture every shape of the decode step, so that none is captured in a conversation."""
        if not self._uses_graphs:
            return
        sizes = sorted({_power(size) for size in range(1, self._cache.rows + 1)})
        columns = LEAST_COLUMNS
        while True:
            reads = min(columns, self._cache.capacity)
            for size in sizes:
                self._graph(min(size, self._cache.rows), reads, everyone=size >= self._cache.rows)
            if reads == self._cache.capacity:
                break
            columns *= 2
        log.info("%d decode steps captured", len(self._captured))

    def _batch(self, spans: Sequence[Span], size: int, count: int) -> Even:
        reads = self._reads(spans)
        return Even.of(spans, self._cache, batch=size, count=count, reads=reads)

    def _reads(self, spans: Sequence[Span]) -> int:
        needed = max(span.end for span in spans)
        return min(_power(max(needed, LEAST_COLUMNS)), self._cache.capacity)

    def _replay(self, ids: Sequence[int], spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        rows = self._cache.rows
        everyone = [span.row for span in spans] == list(range(rows))
        size = rows if everyone else min(_power(len(spans)), rows)
        step = self._graph(size, self._reads(spans), everyone=everyone)
        fresh = Even.of(spans, self._cache, batch=size, count=1, reads=step.batch.reads)
        step.ids.copy_(torch.tensor([*ids, *[0] * (size - len(ids))]), non_blocking=True)
        step.batch.positions.copy_(fresh.positions)
        step.batch.turns.copy_(fresh.turns)
        if step.batch.rows is not None:
            assert fresh.rows is not None
            step.batch.rows.copy_(fresh.rows)
        step.graph.replay()
        return step.hidden[: len(ids)].clone(), step.logits[: len(ids)].clone()

    def _graph(self, size: int, reads: int, *, everyone: bool) -> _Captured:
        key = (size, everyone, reads)
        if key not in self._captured:
            self._captured[key] = self._capture(size, reads, everyone=everyone)
        return self._captured[key]

    def _capture(self, size: int, reads: int, *, everyone: bool) -> _Captured:
        """Capture with all rows writing to the spare column, so that nothing is disturbed."""
        device, spare = self._llm.device, self._cache.capacity
        ids = torch.zeros(size, dtype=torch.int64, device=device)
        batch = Even(
            None if everyone else torch.zeros(size, dtype=torch.int64, device=device),
            torch.full((size, 1), spare, dtype=torch.int64, device=device),
            torch.zeros(size, 1, dtype=torch.int64, device=device),
            reads,
        )

        def step() -> tuple[Tensor, Tensor]:
            x = self._llm.model.embed_tokens(ids)[:, None]
            hidden = self._llm.forward_even(x, batch, self._cache, self._rope)[:, 0]
            return hidden, self._llm.logits(hidden)

        # Libraries pick their kernels and allocate in the first runs; that must not be captured.
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            hidden, logits = step()
        self._pool = graph.pool()
        return _Captured(graph, ids, batch, hidden, logits)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
