"""The language model's steps: prefill, decode, and its window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from parley.engine.context import Eviction
from parley.errors import InferenceFailed
from parley.models.minicpmo45.conversation.prefill import ConversationJob
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.conversation.turn_prefill import TurnPrefill
from parley.models.minicpmo45.conversation.units import SettleJob
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.stages.parts import LastInput, StepParts

PREFILL_STEP_TOKENS = 4096
"""Maximum number of positions of a prefill step, of all rows together, so that the memory it needs
does not grow with the number of conversations."""


def prefill(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
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
            # A view would keep the whole piece in memory.
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


def decode(model: StepParts, jobs: Sequence[ConversationJob]) -> None:
    """DECODE: choose a token per job from the waiting logits, feed it, and compute the next
    logits."""
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
    """Replace choices whose scores were not finite by choices from scores of the plain path.

    Raises:
        InferenceFailed: those of the plain path are not finite either.
    """
    for place, choice in enumerate(choices):
        if not choice.is_finite:
            choices[place] = _chosen_plainly(model, rows[place], asks[place]) or choice
    is_repaired = all(choice.is_finite for choice in choices)
    model.not_finite("decode", is_repaired=is_repaired)
    if not is_repaired:
        raise InferenceFailed("The model's scores are not finite.")


def _chosen_plainly(model: StepParts, row: int, ask: Ask) -> Choice | None:
    """A row's choice from scores that the plain path computes for its last position; None if the
    input of that position is not known."""
    last = model.last_inputs.get(row)
    if last is None or last.position != model.context.lengths[row] - 1:
        return None
    hidden, logits = model.steps.again(last.fed, Span(row, last.position, 1))
    # Changed in place, because the speech decoder is conditioned on this tensor.
    last.hidden.copy_(hidden)
    (choice,) = model.chooser.choose(logits[None], [ask])
    return choice


def finalize(model: StepParts, jobs: Sequence[SettleJob]) -> None:
    """FINALIZE: apply the windows of all jobs."""
    read_ends(model, [job.conversation for job in jobs])
    for job in jobs:
        job.slid(slide(model, job.conversation))


def slide_turns(model: StepParts, conversation: Conversation) -> None:
    if model.behaviour.counts_window_exactly:
        slide(model, conversation)
        return
    window = conversation.opening.window
    if window.kind != "basic":
        return
    row, state = conversation.row, conversation.state
    length = model.context.lengths[row]
    state.rounds, gone = state.rounds.plan(length, window.high_tokens, window.low_tokens)
    if not gone:
        return
    model.context.drop(row, state.rounds.protected_tokens, gone, model.rope)
    conversation.replace_ledger(model.context.lengths[row])
    model.observer.slid(row, gone, 1)


def slide(model: StepParts, conversation: Conversation) -> int:
    """Apply the window; returns the number of dropped tokens."""
    eviction = conversation.ledger.plan()
    if eviction is None:
        return 0
    read_ends(model, [conversation])
    if eviction.previous is None:
        _close_gaps(model, conversation.row, eviction)
    else:
        _rewrite(model, conversation.row, eviction, eviction.previous)
    conversation.ledger.commit(eviction)
    model.observer.slid(conversation.row, eviction.dropped_tokens, eviction.dropped_entries)
    return eviction.dropped_tokens


def read_ends(model: StepParts, conversations: Sequence[Conversation]) -> None:
    """Feed the ends of the last units without waiting for the next units. This is needed before a
    window moves, because the ends must attend to what it drops."""
    lengths = model.context.lengths
    ends = [(one, one.state.unread) for one in conversations if one.state.unread]
    if not ends:
        return
    spans = [Span(one.row, lengths[one.row], len(ids)) for one, ids in ends]
    embeds = model.llm.embed([token for _, ids in ends for token in ids])
    hidden = torch.split(model.steps.prefill(embeds, spans), [span.count for span in spans])
    model.context.commit(spans)
    for (one, ids), span, states in zip(ends, spans, hidden, strict=True):
        one.state.unread = ()
        model.observer.fed(one.row, ids, None, span.start, states)


def _close_gaps(model: StepParts, row: int, eviction: Eviction) -> None:
    target = eviction.keep[0][1]
    for start, end in eviction.keep[1:]:
        model.context.move(row, start, end - start, target, model.rope)
        target += end - start
    model.context.truncate(row, target)


def _rewrite(model: StepParts, row: int, eviction: Eviction, previous: Sequence[int]) -> None:
    """Feed the text of dropped units to the model, between the head and the kept units."""
    context, llm = model.context, model.network.llm
    length, head = context.lengths[row], eviction.keep[0][1]
    behind = context.lift(row, head, length - head)
    kept = sum(end - start for start, end in eviction.keep[1:])
    # A prompt without the usual end has no suffix to write again.
    count = eviction.length_tokens - head - kept
    ids = [*model.marker_ids, *previous, *model.suffix_ids][:count]
    try:
        context.lengths[row] = head
        span = Span(row, head, len(ids))
        llm(llm.embed(ids), [span], context, model.rope)
    except Exception:
        context.put(row, behind, head, head, model.rope)
        context.lengths[row] = length
        raise
    target = span.end
    for start, end in eviction.keep[1:]:
        part = behind.part(start - head, end - head)
        context.put(row, part, start, target, model.rope)
        target += end - start
    context.lengths[row] = target
    context.release(row)
