"""What is logged of a conversation of turns, so that another worker can go on with it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parley.dialects.events import TurnStarted
from parley.protocol.values import Generation
from parley.session.answer_again import answer_again
from parley.session.entries import Answered, Cut
from parley.session.opened import open_turn
from parley.views.half_duplex import HalfDuplexView, TurnRequest


def without_old_sound(log: Sequence[Any]) -> list[Any]:
    """See `RebuildableRunner`."""
    light = list(log)
    for at, (asked, answered) in enumerate(itertools.pairwise(log)):
        is_known = isinstance(answered, Answered) and answered.taken_in is not None
        if isinstance(asked, TurnStarted) and is_known:
            light[at] = replace(asked, utterance=asked.utterance.silenced())
    return light


class TurnRedo:
    """Brings a context to where it was, entry by entry.

    Args:
        session_id: of the view's requests.
        speaks: whether answers were spoken.
    """

    def __init__(
        self, view: HalfDuplexView, session_id: str, generation: Generation, *, speaks: bool
    ) -> None:
        self._view = view
        self._session_id = session_id
        self._generation = generation
        self._speaks = speaks
        self.asked: TurnStarted | None = None
        """A turn that has no answer yet."""

    async def all(self, log: Sequence[TurnStarted | Answered | Cut]) -> None:
        """Everything that was logged.

        Raises:
            InferenceFailed: the model answers otherwise than it did.
        """
        for entry in log:
            await self.entry(entry)
        if any(isinstance(entry, Answered) and entry.chosen is not None for entry in log):
            await self._view.catch_up()

    async def entry(self, entry: TurnStarted | Answered | Cut) -> None:
        """The next entry."""
        view, asked = self._view, self.asked
        match entry:
            case TurnStarted():
                self.asked = entry
            case Answered() if asked is not None:
                self.asked = None
                if not entry.is_heard:
                    return
                message = await open_turn(asked.utterance, asked.text, asked.pictures)
                request = TurnRequest(self._session_id, (message,))
                await view.prefill(request, again=entry.taken_in)
                if entry.said or entry.is_whole or entry.chosen is not None:
                    await answer_again(
                        view,
                        self._session_id,
                        self._generation,
                        said=entry.said,
                        is_whole=entry.is_whole,
                        chosen=entry.chosen,
                        speaks=self._speaks,
                    )
            case Cut(heard):
                await view.cut_answer(heard)
                view.clear_rollback_point()
