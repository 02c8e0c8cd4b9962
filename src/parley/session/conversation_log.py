"""What is logged of a conversation of items, so that another worker can go on with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parley.dialects.events import HalfDuplexSetup, ItemCreated, ResponseRequested
from parley.protocol.values import Generation
from parley.session.answer_again import answer_again
from parley.session.entries import (
    AnswerMade,
    AnswerTold,
    Begun,
    Committed,
    Filled,
    ItemsSoFar,
    Removed,
    Truncated,
    Unknown,
)
from parley.session.item_context import ItemContext
from parley.session.items import ConversationItem, ItemList
from parley.views.half_duplex import HalfDuplexView


def generation_of(setup: HalfDuplexSetup, request: ResponseRequested) -> Generation:
    """How an answer is made."""
    if request.limit_tokens is None:
        return setup.generation
    return replace(setup.generation, max_new_tokens=request.limit_tokens)


class ConversationRedo:
    """Brings items and context to where they were, entry by entry.

    Args:
        session_id: of the view's requests.
    """

    def __init__(
        self, items: ItemList, context: ItemContext, view: HalfDuplexView, session_id: str
    ) -> None:
        self._items = items
        self._context = context
        self._view = view
        self._session_id = session_id
        self._begun: Begun | None = None
        self._before: list[ConversationItem] = []
        self._is_whole = True
        """Whether everything since the beginning is in the log."""
        self.is_filled = False
        """Whether the context holds what an answer in the making answers."""
        self._has_chosen = False

    async def all(self, log: list[Any]) -> None:
        """Everything that was logged.

        Raises:
            InferenceFailed: the model answers otherwise than it did.
        """
        for entry in log:
            await self._redo(entry)
        if self._has_chosen:
            await self._view.catch_up()

    async def _redo(self, entry: Any) -> None:
        items, context = self._items, self._context
        match entry:
            case HalfDuplexSetup():
                return
            case ItemsSoFar(found):
                self._is_whole = False
                for item in found:
                    items.append(item)
            case Committed(item_id, pcm):
                self._forget(items.append(ConversationItem.of_sound(item_id, pcm)))
            case ItemCreated(item_id, message, after_id):
                self._forget(items.insert(ConversationItem(item_id, message), after_id))
            case Removed(item_id, is_unsaid):
                items.remove(items.find(item_id))
                if is_unsaid:
                    context.invalidate()
            case Truncated(item_id, heard_ms):
                items.find(item_id).truncate(heard_ms)
                context.invalidate()
            case Unknown():
                context.invalidate()
            case Begun():
                self._begun, self._before, self.is_filled = entry, list(items), False
                if not entry.request.is_apart:
                    item = ConversationItem.of_answer(entry.item_id)
                    self._forget(items.append(item))
            case AnswerTold():
                self._tell(entry)
            case Filled(chosen) if self._is_whole and self._begun is not None:
                await self._fill(self._begun, chosen)
            case AnswerMade() if self._is_whole and self._begun is not None:
                await self._answer(self._begun, entry)
            case _:
                # What was answered when not everything was logged is not made again.
                self.is_filled = False

    def _forget(self, item_ids: list[str]) -> None:
        for item_id in item_ids:
            self._context.forget(item_id)

    async def _fill(self, begun: Begun, chosen: tuple[object, ...]) -> None:
        self._has_chosen |= any(each is not None for each in chosen)
        await self._context.fill(
            self._before,
            begun.item_id,
            begun.request,
            begun.setup,
            speaks=begun.is_spoken,
            again=chosen,
        )
        self.is_filled = True

    async def _answer(self, begun: Begun, answered: AnswerMade) -> None:
        self.is_filled = False
        if not (answered.said or answered.is_whole or answered.chosen is not None):
            self._context.invalidate()
            return
        self._has_chosen |= answered.chosen is not None
        await answer_again(
            self._view,
            self._session_id,
            generation_of(begun.setup, begun.request),
            said=answered.said,
            is_whole=answered.is_whole,
            chosen=answered.chosen,
            speaks=begun.is_spoken,
        )

    def _tell(self, told: AnswerTold) -> None:
        if told.is_apart:
            return
        item = self._items.find(told.item_id)
        for text, begins_ms in told.spoken:
            item.say(text, begins_ms)
        self._context.add([each.item_id for each in told.calls])
        for each in told.calls:
            self._forget(self._items.append(each))
