"""The language model's steps: prefill, decode, and the terminators of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from parley.errors import InferenceFailed
from parley.models.minicpmo45.conversation.prefill import Feed
from parley.models.minicpmo45.conversation.turn_prefill import TurnPrefill
from parley.models.minicpmo45.conversation.units import SettleJob
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.stages.eviction import slide
from parley.models.minicpmo45.stages.parts import LastInput, StepParts

PREFILL_STEP_TOKENS = 4096
"""Positions that one prefill step takes in, of all rows together: what it needs while it runs does
not grow with the number of conversations."""


class FeedingJob(Protocol):
    """A job at PREFILL."""

    row: int
    feed: Feed | None
    wants_logits: bool

    def begin_feed(self) -> None: ...

    def fed(self, logits: Tensor | None) -> None: ...


class DecodingJob(Protocol):
    """A job at DECODE."""

    row: int
    logits: Tensor | None

    def ask(self) -> Ask: ...

    def consider(self, choice: Choice) -> int | None: ...

    def advance(self, hidden: Tensor | None, logits: Tensor | None) -> None: ...


def prefill(model: StepParts, jobs: Sequence[FeedingJob]) -> None:
    """PREFILL: up to `prefill_piece_tokens` positions of each job, packed."""
    for job in jobs:
        if job.feed is None:
            if isinstance(job, TurnPrefill) and job.window_is_due:
                model.slide_turns(job.conversation)
                job.window_is_due = False
            job.begin_feed()
    feeds = [(job, job.feed) for job in jobs if job.feed is not None]
    limit = min(model.spec.prefill_piece_tokens, max(1, PREFILL_STEP_TOKENS // len(feeds)))
    pieces = [feed.next(limit) for _, feed in feeds]
    spans = [
        Span(job.row, model.context.lengths[job.row], int(piece.shape[0]))
        for (job, _), piece in zip(feeds, pieces, strict=True)
    ]
    hidden = model.steps.prefill(torch.cat(pieces), spans)
    parts = torch.split(hidden, [span.count for span in spans])
    asking = [
        place
        for place, (job, feed) in enumerate(feeds)
        if job.wants_logits and feed.done + spans[place].count >= feed.count
    ]
    scores = dict(zip(asking, _last_logits(model, [parts[place] for place in asking]), strict=True))
    model.context.commit(spans)
    for place, ((job, feed), span) in enumerate(zip(feeds, spans, strict=True)):
        ids = feed.ids[feed.done : feed.done + span.count]
        feed.done += span.count
        if feed.is_complete:
            # A view would keep the whole piece.
            last = pieces[place][-1].clone()
            model.last_inputs[job.row] = LastInput(last, span.end - 1, parts[place][-1])
        model.observer.fed(job.row, ids, pieces[place], span.start, parts[place])
        if feed.is_complete:
            job.fed(scores.get(place))


def _last_logits(model: StepParts, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Logits of the last position of each part."""
    if not parts:
        return ()
    return model.network.llm.logits(torch.stack([part[-1] for part in parts])).unbind()


def decode(model: StepParts, jobs: Sequence[DecodingJob]) -> None:
    """DECODE: choose a token per job from the waiting logits, feed it, compute the next ones."""
    logits = torch.stack([job.logits for job in jobs if job.logits is not None])
    asks = [job.ask() for job in jobs]
    choices = model.chooser.choose(logits, asks)
    if not all(choice.is_finite for choice in choices):
        _choose_again(model, [job.row for job in jobs], asks, choices)
    tokens = [job.consider(choice) for job, choice in zip(jobs, choices, strict=True)]
    going = [place for place, token in enumerate(tokens) if token is not None]
    rows = [jobs[place].row for place in going]
    spans = [Span(row, model.context.lengths[row], 1) for row in rows]
    if any(span.end > model.context.capacity for span in spans):
        raise InferenceFailed("The context has no room for an answer.")
    fed = [token for token in tokens if token is not None]
    states: dict[int, tuple[Tensor, Tensor]] = {}
    if fed:
        hidden, scores = model.steps.decode(fed, spans)
        states = {place: (hidden[at], scores[at]) for at, place in enumerate(going)}
    model.context.commit(spans)
    for at, span in enumerate(spans):
        model.last_inputs[span.row] = LastInput(fed[at], span.start, hidden[at])
    for row, choice in zip((job.row for job in jobs), choices, strict=True):
        model.observer.chose(row, choice)
    for at, span in enumerate(spans):
        model.observer.fed(span.row, (fed[at],), None, span.start, hidden[at][None])
    for place, job in enumerate(jobs):
        job.advance(*states.get(place, (None, None)))


def _choose_again(
    model: StepParts, rows: Sequence[int], asks: Sequence[Ask], choices: list[Choice]
) -> None:
    """Replace choices whose scores were not finite, by scores of the plain path.

    Raises:
        InferenceFailed: those of a row are not finite either.
    """
    for place, choice in enumerate(choices):
        if not choice.is_finite:
            choices[place] = _chosen_plainly(model, rows[place], asks[place]) or choice
    is_repaired = all(choice.is_finite for choice in choices)
    model.not_finite("decode", is_repaired=is_repaired)
    if not is_repaired:
        raise InferenceFailed("The model's scores are not finite.")


def _chosen_plainly(model: StepParts, row: int, ask: Ask) -> Choice | None:
    """A row's choice, of scores that the plain path computes of its last position; None if that
    position is gone."""
    last = model.last_inputs.get(row)
    if last is None or last.position != model.context.lengths[row] - 1:
        return None
    hidden, logits = model.steps.again(last.fed, Span(row, last.position, 1))
    # The speech decoder is conditioned on this very tensor.
    last.hidden.copy_(hidden)
    (choice,) = model.chooser.choose(logits[None], [ask])
    return choice


def finalize(model: StepParts, jobs: Sequence[SettleJob]) -> None:
    """FINALIZE: terminators of all jobs, packed, and their windows."""
    llm = model.network.llm
    spans = [Span(job.row, model.context.lengths[job.row], len(job.ids)) for job in jobs]
    hidden = model.steps.prefill(llm.embed([token for job in jobs for token in job.ids]), spans)
    model.context.commit(spans)
    first = 0
    for job, span in zip(jobs, spans, strict=True):
        mine = slice(first, first + span.count)
        first += span.count
        model.observer.fed(job.row, tuple(job.ids), None, span.start, hidden[mine])
        job.settled()
        job.slid(slide(model, job.conversation))
