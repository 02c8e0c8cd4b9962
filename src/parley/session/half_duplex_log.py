"""What is logged of a conversation of turns, so that another worker can go on with it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from parley.media.pcm import Pcm
from parley.protocol.values import Generation
from parley.session.answer_again import answer_again
from parley.session.opened import open_turn
from parley.views.half_duplex import HalfDuplexView, TurnRequest


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A turn of the user, in the log of a session."""

    pcm: Pcm
    text: str
    pictures: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of it, in the log of a session.

    Args:
        is_heard: whether the context holds the user's turn.
        said: what it holds of the answer.
        is_whole: whether that is all that the model had to say.
        taken_in, chosen: what the model decided about the turn and its answer, where it can be told
            again; None: it decides once more, from the same seed, and has to come to the same.
    """

    is_heard: bool
    said: str
    is_whole: bool
    taken_in: object = None
    chosen: object = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Somebody interrupted the answer, in the log of a session: the context holds only `heard`."""

    heard: str


def without_old_sound(log: Sequence[Any]) -> list[Any]:
    """See `RebuildableRunner`."""
    light = list(log)
    for at, (asked, answered) in enumerate(itertools.pairwise(log)):
        is_known = isinstance(answered, Answered) and answered.taken_in is not None
        if isinstance(asked, Asked) and is_known:
            light[at] = replace(asked, pcm=asked.pcm.silenced())
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
        self.asked: Asked | None = None
        """A turn that has no answer yet."""

    async def all(self, log: Sequence[Asked | Answered | Cut]) -> None:
        """Everything that was logged.

        Raises:
            InferenceFailed: the model answers otherwise than it did.
        """
        for entry in log:
            await self.entry(entry)
        if any(isinstance(entry, Answered) and entry.chosen is not None for entry in log):
            await self._view.catch_up()

    async def entry(self, entry: Asked | Answered | Cut) -> None:
        """The next entry."""
        view, asked = self._view, self.asked
        match entry:
            case Asked():
                self.asked = entry
            case Answered() if asked is not None:
                self.asked = None
                if not entry.is_heard:
                    return
                message = await open_turn(asked.pcm, asked.text, asked.pictures)
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
