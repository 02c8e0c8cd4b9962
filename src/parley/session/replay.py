"""Replays the entries of a session on another slot.

Replay serves two purposes: a worker continues the session of a lost one, and `parley rerun`
compares results. There is one feed for units and one for turns; the same code feeds the view in
live sessions. Inputs follow each other as fast as the model can process them. If an entry contains
the model's choices, the model is given those; else it decides again from the same seed and must get
the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from parley.dialects.events import (
    AudioInput,
    DuplexSetup,
    HalfDuplexSetup,
    InputCommitted,
    ItemCreated,
    ResponseRequested,
    SetupChanged,
    TurnCompleted,
    TurnStarted,
    UnitDone,
)
from parley.engine.work import Window
from parley.errors import InferenceFailed
from parley.media.pcm import Pcm
from parley.protocol.values import Generation
from parley.results import UnitChoices, UnitResult
from parley.session.item_context import ItemContext
from parley.session.opened import Voices, open_frames
from parley.session.tool_calls import AnswerCalls
from parley.session_log.entries import (
    AnswerMade,
    Entry,
    Filled,
    ItemsSoFar,
    Opened,
    Removed,
    TakenBack,
    Truncated,
    Unknown,
    WentBack,
)
from parley.session_log.items import ConversationItem, ItemList
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView


@dataclass(frozen=True, slots=True)
class MadeAnswer:
    """An answer that was generated again.

    Args:
        text: what the model said; `sounds`: the audio of its pieces, without those of function
            calls.
    """

    text: str
    sounds: tuple[Pcm, ...]


Made = UnitResult | MadeAnswer
Compare = Callable[[Entry, Made], None]
View = TypeVar("View", DuplexView, HalfDuplexView)


class ConversationFeed(Protocol):
    """Feeds one conversation to a view."""

    async def redo(self, entry: Any) -> Made | None:
        """Replay the next entry; returns the model's output, if it had to generate any.

        Raises:
            ParleyError: the model refuses input that it once accepted.
        """
        ...

    async def conclude(self) -> None:
        """All entries have been replayed: do deferred work, and work that has no entry."""
        ...


def require_same(entry: Entry, made: Made) -> None:
    """Refuse to continue a conversation that would differ from the original.

    Raises:
        InferenceFailed: the model decides differently than before.
    """
    match entry, made:
        case UnitDone(), UnitResult():
            decided = entry.decided
            is_same = (made.is_listen, made.text) == (decided.is_listen, decided.text)
        case AnswerMade(said=said), _:
            is_same = made.text == said
        case _:
            is_same = True
    if not is_same:
        raise InferenceFailed("The model's result differs from the recorded one.")


async def replay(
    feed: ConversationFeed, entries: Iterable[Entry], compare: Compare = require_same
) -> None:
    """Replay entries, in order. Further entries may follow, or `conclude`.

    Args:
        compare: receives the model's output for an entry.

    Raises:
        ParleyError: an entry cannot be replayed.
    """
    for entry in entries:
        made = await feed.redo(entry)
        if made is not None:
            compare(entry, made)


class _Feed(Generic[View]):
    """Feeds a view, which may defer work while it is given choices."""

    def __init__(self, view: View) -> None:
        self._view: View = view
        self._is_behind = False

    async def catch_up(self) -> None:
        """Do the work that was deferred because the model was given choices."""
        if self._is_behind:
            self._is_behind = False
            await self._view.catch_up()

    async def conclude(self) -> None:
        """See `ConversationFeed`."""
        await self.catch_up()


# ---- units ---------------------------------------------------------------------------------


class UnitFeed(_Feed[DuplexView]):
    """A duplex conversation. `seed`: None: the model draws one."""

    def __init__(self, view: DuplexView, *, voices: Voices, seed: int | None) -> None:
        super().__init__(view)
        self._voices = voices
        self._seed = seed

    async def open(self, asked: DuplexSetup) -> int:
        """Start; returns the prompt's length in tokens.

        Raises:
            BadInput: a voice cannot be used.
            ContextFull: the prompt is too long.
        """
        high, low = asked.slides or (0, 0)
        voice = await self._voices.open(asked.voice, asked.voice_name)
        tts_voice = await self._voices.open(asked.tts_voice, None)
        return await self._view.prepare(
            asked.prompt,
            voice,
            tts_voice,
            options=asked.options,
            max_slice_nums=asked.max_slices,
            window=Window("basic", high, low) if asked.slides else None,
            seed=self._seed,
        )

    async def unit(
        self, heard: AudioInput, due_s: float | None = None, again: UnitChoices | None = None
    ) -> UnitResult:
        """Feed one unit to the model, and have it decide.

        Raises:
            BadInput: a frame is not a picture; nothing was fed.
        """
        frames = await open_frames(heard.frames) if heard.frames else ()
        return await self._view.unit(
            heard.pcm,
            frames,
            heard.text,
            force_listen=heard.force_listen,
            max_slice_nums=heard.max_slices,
            due_s=due_s,
            again=again,
        )

    async def redo(self, entry: DuplexSetup | UnitDone | WentBack) -> UnitResult | None:
        match entry:
            case DuplexSetup():
                await self.open(entry)
            case WentBack(unheard_chars, unsent_units, decided):
                await self._view.cut_answer(unheard_chars, unsent_units, decided)
            case UnitDone(unit=AudioInput() as heard):
                again = entry.decided.chosen
                self._is_behind |= again is not None
                result = await self.unit(heard, again=again)
                await self._view.finalize()
                return result
            case _:
                pass
        return None


# ---- turns ---------------------------------------------------------------------------------


def turns_without_old_sound(log: Sequence[Entry]) -> list[Entry]:
    """See `RebuildableRunner`; for a context that only grows."""
    light, waiting = list(log), []
    for at, entry in enumerate(log):
        match entry:
            case InputCommitted():
                waiting.append(at)
            case Filled(chosen):
                for each in waiting if chosen[-1] is not None else ():
                    asked = light[each]
                    assert isinstance(asked, InputCommitted)
                    light[each] = replace(asked, pcm=asked.pcm.silenced())
                waiting = []
            case _:
                pass
    return light


def generation_of(setup: HalfDuplexSetup, request: ResponseRequested) -> Generation:
    if request.limit_tokens is None:
        return setup.generation
    return replace(setup.generation, max_new_tokens=request.limit_tokens)


class TurnFeed(_Feed[HalfDuplexView]):
    """A conversation of turns.

    Args:
        session_id: for the view's requests.
        in_full: True: if an answer was stopped and its choices are unknown, generate it completely
            first.
    """

    def __init__(
        self,
        items: ItemList,
        context: ItemContext,
        view: HalfDuplexView,
        session_id: str,
        *,
        in_full: bool = False,
    ) -> None:
        super().__init__(view)
        self._items = items
        self._in_full = in_full
        self._context = context
        self._session_id = session_id
        self.setup = HalfDuplexSetup()
        self.answered_setup = self.setup
        """That of the newest answer: a later change applies to the next one."""
        self._current: TurnStarted | None = None
        self._before: list[ConversationItem] = []
        self._is_whole = True
        """True if the entries contain everything since the start."""
        self.is_filled = False
        """True if the context contains everything that the unfinished answer answers."""
        self._is_made = False
        """True if the context contains an answer to that."""
        self._silenced: TurnCompleted | None = None
        """An answer that is over for the client, but was still being generated."""

    async def redo(self, entry: Entry) -> MadeAnswer | None:
        items, context = self._items, self._context
        match entry:
            case (HalfDuplexSetup() as setup) | SetupChanged(setup):
                self.setup = setup
            case Opened():
                await context.open(self.setup)
            case ItemsSoFar(found):
                self._is_whole, self.setup = not found, entry.setup
                for item in found:
                    items.append(item)
            case InputCommitted() | ItemCreated() | Removed() | Truncated():
                self.apply(entry)
            case TakenBack(item_id):
                self._silenced, self.is_filled = None, False
                if self._is_made:
                    await context.take_back(item_id)
                else:
                    # The previous answer was shortened before this one failed.
                    await context.settle()
                    context.without(item_id)
            case Unknown():
                self._silenced, self.is_filled = None, False
                context.invalidate()
            case TurnStarted():
                await self._begin(entry)
            case TurnCompleted():
                self._silenced = entry if self.is_filled else None
                self._add_answer(entry)
            case Filled(chosen) if self._is_whole and self._current is not None:
                await self._fill(self._current, chosen)
            case AnswerMade() if self._is_whole and self._current is not None:
                return await self._answer(self._current, entry)
            case _:
                # Answers from before everything was logged are not generated again.
                self.is_filled = False
        return None

    def apply(self, entry: InputCommitted | ItemCreated | Removed | Truncated) -> None:
        """Change the items as an entry describes, and note it for the context; used live and in
        replays.

        Raises:
            InvalidRequest: the change is not possible; nothing has changed.
        """
        match entry:
            case InputCommitted():
                self.append(ConversationItem.of_user(entry))
            case ItemCreated(item_id, message, after_id):
                self._forget(self._items.insert(ConversationItem(item_id, message), after_id))
            case Removed(item_id):
                self._items.remove(self._items.find(item_id))
            case Truncated(item_id, heard=heard):
                self._context.cut(item_id, self._items.find(item_id).keep(heard))

    def append(self, item: ConversationItem) -> None:
        """Add the newest item of the conversation; used live and in replays."""
        self._forget(self._items.append(item))

    def append_calls(self, turn: TurnCompleted) -> None:
        """Function calls of an answer are items, which the context already contains; used live and
        in replays."""
        self._context.add([item_id for item_id, _ in turn.calls])
        for call in ConversationItem.of_calls(turn.calls):
            self.append(call)

    async def conclude(self) -> None:
        await self._make_silenced()
        await self._context.settle()
        await super().conclude()
        # They contain audio, and would stay in memory as long as the session.
        self._before = []

    async def _make_silenced(self) -> None:
        """Make the context contain the spoken part of an answer whose worker was lost before its
        end."""
        if self._silenced is not None and self._current is not None:
            said = "".join(text for text, _ in self._silenced.spoken)
            await self._answer(self._current, AnswerMade(said, is_whole=False, chosen=None))

    def _forget(self, item_ids: list[str]) -> None:
        for item_id in item_ids:
            self._context.forget(item_id)

    async def _begin(self, entry: TurnStarted) -> None:
        await self._make_silenced()
        self._current, self.is_filled, self._is_made = entry, False, False
        self.answered_setup = self.setup
        answer = ConversationItem.of_answer(entry.item_id)
        if not entry.request.is_apart:
            self.append(answer)
        self._before = self._items.before(answer)

    async def _fill(self, asked: TurnStarted, chosen: tuple[object, ...]) -> None:
        self._is_behind |= any(each is not None for each in chosen)
        await self._context.fill(
            self._before,
            asked.item_id,
            asked.request,
            self.answered_setup,
            speaks=asked.is_spoken,
            again=chosen,
        )
        self.is_filled = True

    async def _answer(self, asked: TurnStarted, answered: AnswerMade) -> MadeAnswer | None:
        """Have the model generate an answer again. If it was stopped and its choices are unknown,
        it is only appended to the context."""
        self.is_filled, self._silenced = False, None
        is_known = answered.is_whole or answered.chosen is not None
        if not (answered.said or is_known):
            self._context.without(asked.item_id)
            return None
        self._is_made = True
        self._is_behind |= answered.chosen is not None
        generation = generation_of(self.answered_setup, asked.request)
        if is_known:
            return await self._generate(asked, generation, speaks=asked.is_spoken, again=answered)
        made = None
        if self._in_full:
            made = await self._generate(asked, generation, speaks=asked.is_spoken)
            await self._view.rollback()
        said = await self._generate(asked, replace(generation, say=answered.said), speaks=False)
        return made or said

    async def _generate(
        self,
        asked: TurnStarted,
        generation: Generation,
        *,
        speaks: bool,
        again: AnswerMade | None = None,
    ) -> MadeAnswer:
        tools = asked.request.tools
        tools = self.answered_setup.tools if tools is None else tools
        # As in a live session, a function call is neither text nor speech.
        calls = AnswerCalls(lambda event: None, bool(tools))
        sounds: list[Pcm] = []
        async for chunk in self._view.generate(
            self._session_id,
            generation,
            generate_audio=speaks,
            again=None if again is None else again.chosen,
        ):
            calls.add(chunk.text_delta or "")
            if chunk.audio is not None and not calls.has_started:
                sounds.append(chunk.audio)
        decoded = self._view.decoded
        return MadeAnswer("" if decoded is None else decoded.text, tuple(sounds))

    def _add_answer(self, turn: TurnCompleted) -> None:
        if turn.is_apart:
            return
        item = self._items.find(turn.item_id)
        for text, begins_ms in turn.spoken:
            item.say(text, begins_ms)
        self.append_calls(turn)
