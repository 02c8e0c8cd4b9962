"""What the window drops from a row's context, and how the gap closes."""

from __future__ import annotations

from collections.abc import Sequence

from parley.engine.context import Eviction
from parley.models.minicpmo45.conversation.state import Conversation
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.stages.parts import StepParts


def slide_turns(model: StepParts, conversation: Conversation) -> None:
    """The turn-based window looks."""
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
    """The window looks; gives how many tokens it dropped."""
    eviction = conversation.ledger.plan()
    if eviction is None:
        return 0
    if eviction.previous is None:
        _close_gaps(model, conversation.row, eviction)
    else:
        _rewrite(model, conversation.row, eviction, eviction.previous)
    conversation.ledger.commit(eviction)
    model.observer.slid(conversation.row, eviction.dropped_tokens, eviction.dropped_entries)
    return eviction.dropped_tokens


def _close_gaps(model: StepParts, row: int, eviction: Eviction) -> None:
    target = eviction.keep[0][1]
    for start, end in eviction.keep[1:]:
        model.context.move(row, start, end - start, target, model.rope)
        target += end - start
    model.context.truncate(row, target)


def _rewrite(model: StepParts, row: int, eviction: Eviction, previous: Sequence[int]) -> None:
    """Run what dropped units said through the model, between the head and the kept units."""
    context, llm = model.context, model.network.llm
    length, head = context.lengths[row], eviction.keep[0][1]
    behind = context.lift(row, head, length - head)
    kept = sum(end - start for start, end in eviction.keep[1:])
    # A prompt that came without the usual end has no suffix to write again.
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
