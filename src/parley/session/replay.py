"""Does again what the entries of a session say, on another slot.

One replay for two purposes: a worker continues the session of a lost one, and `parley rerun`
compares. Live, in both, and for each kind of conversation, the same code feeds the view. Inputs
follow each other as fast as the model goes; where an entry has what the model chose, the model is
given that, else it decides again from the same seed and has to come to the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from parley.dialects.events import (
    AudioInput,
    DuplexSetup,
    HalfDuplexSetup,
    ItemCreated,
    ResponseRequested,
    TurnStarted,
    UnitDone,
)
from parley.engine.work import Window
from parley.errors import InferenceFailed
from parley.media.pcm import Pcm
from parley.protocol.values import Generation, Tool
from parley.results import UnitChoices, UnitResult
from parley.session.entries import (
    Answered,
    AnswerMade,
    AnswerTold,
    Begun,
    Committed,
    Cut,
    Entry,
    Filled,
    ItemsSoFar,
    Removed,
    TakenBack,
    Truncated,
    Unknown,
    WentBack,
)
from parley.session.item_context import ItemContext
from parley.session.items import ConversationItem, ItemList
from parley.session.opened import Voices, open_frames, open_system, open_turn, open_voice
from parley.session.tool_calls import AnswerCalls
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView, TurnRequest


@dataclass(frozen=True, slots=True)
class MadeAnswer:
    """An answer that was made again.

    Args:
        text: what the model said; `sounds`: of its pieces, without those of calls.
    """

    text: str
    sounds: tuple[Pcm, ...]


Made = UnitResult | MadeAnswer
Compare = Callable[[Entry, Made], None]
View = TypeVar("View", DuplexView, HalfDuplexView)


class ConversationFeed(Protocol):
    """Feeds one conversation to a view."""

    async def redo(self, entry: Any) -> Made | None:
        """Do the next entry again; what the model made, where it had to.

        Raises:
            ParleyError: the model refuses what it once took.
        """
        ...

    async def catch_up(self) -> None:
        """Do what was put off, if the model was given choices."""
        ...


def require_same(entry: Entry, made: Made) -> None:
    """Refuse to continue a conversation that would be another.

    Raises:
        InferenceFailed: the model decides otherwise than it did.
    """
    match entry, made:
        case UnitDone(), UnitResult():
            decided = entry.decided
            is_same = (made.is_listen, made.text) == (decided.is_listen, decided.text)
        case Answered(said=said) | AnswerMade(said=said), _:
            is_same = made.text == said
        case _:
            is_same = True
    if not is_same:
        raise InferenceFailed("The model decides otherwise than it did.")


async def replay(
    feed: ConversationFeed, entries: Iterable[Entry], compare: Compare = require_same
) -> None:
    """Do all entries again, in their order.

    Args:
        compare: takes what the model made of an entry.

    Raises:
        ParleyError: an entry cannot be done again.
    """
    for entry in entries:
        made = await feed.redo(entry)
        if made is not None:
            compare(entry, made)
    await feed.catch_up()


class _Feed(Generic[View]):
    """What feeds a view, and may put work off while it is given choices."""

    def __init__(self, view: View) -> None:
        self._view: View = view
        self._is_behind = False

    async def catch_up(self) -> None:
        """See `ConversationFeed`."""
        if self._is_behind:
            self._is_behind = False
            await self._view.catch_up()


# ---- units ---------------------------------------------------------------------------------


class UnitFeed(_Feed[DuplexView]):
    """A duplex conversation.

    Args:
        voice_s: longest reference voice.
        seed: None: drawn by the model.
    """

    def __init__(
        self, view: DuplexView, *, voices: Voices, voice_s: float, seed: int | None
    ) -> None:
        super().__init__(view)
        self._voices = voices
        self._voice_s = voice_s
        self._seed = seed

    async def open(self, asked: DuplexSetup) -> int:
        """Begin; gives the prompt's length in tokens.

        Raises:
            BadInput: a voice cannot be used.
            ContextFull: the prompt is too long.
        """
        high, low = asked.slides or (0, 0)
        voice = await self._voice(asked.voice, asked.voice_name)
        tts_voice = await self._voice(asked.tts_voice, None)
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
        """Have the model take in one unit, and decide.

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
        """See `ConversationFeed`."""
        match entry:
            case DuplexSetup():
                await self.open(entry)
            case WentBack(unheard_chars, unsent_units):
                await self._view.cut_answer(unheard_chars, unsent_units)
            case UnitDone(unit=AudioInput() as heard):
                again = entry.decided.chosen
                self._is_behind |= again is not None
                result = await self.unit(heard, again=again)
                await self._view.finalize()
                return result
            case _:
                pass
        return None

    async def _voice(self, sound: Any, name: str | None) -> Pcm | None:
        return await open_voice(sound, name, voices=self._voices, limit_s=self._voice_s)


# ---- turns ---------------------------------------------------------------------------------


async def _answer_again(
    view: HalfDuplexView,
    session_id: str,
    generation: Generation,
    answered: Answered | AnswerMade,
    *,
    speaks: bool,
    in_full: bool,
    tools: tuple[Tool, ...] = (),
) -> MadeAnswer:
    """Have the model generate an answer again. One that was stopped and whose choices are unknown
    is only appended to the context.

    Args:
        in_full: generate such an answer completely first, and roll back.
    """

    async def make(generation: Generation, *, speaks: bool) -> MadeAnswer:
        # As in a live session: a function call is neither text nor speech.
        calls = AnswerCalls(lambda event: None, bool(tools))
        sounds: list[Pcm] = []
        async for chunk in view.generate(
            session_id, generation, generate_audio=speaks, again=answered.chosen
        ):
            calls.add(chunk.text_delta or "")
            if chunk.audio is not None and not calls.has_begun:
                sounds.append(chunk.audio)
        return MadeAnswer("" if view.decoded is None else view.decoded.text, tuple(sounds))

    if answered.is_whole or answered.chosen is not None:
        return await make(generation, speaks=speaks)
    made = None
    if in_full:
        made = await make(generation, speaks=speaks)
        await view.rollback()
    said = await make(replace(generation, say=answered.said), speaks=False)
    return made or said


class TurnFeed(_Feed[HalfDuplexView]):
    """A half-duplex conversation.

    Args:
        session_id: of the view's requests.
        voice_s: longest reference voice.
        seed: None: drawn by the model.
        in_full: see `_answer_again`.
    """

    def __init__(
        self,
        view: HalfDuplexView,
        session_id: str,
        *,
        voices: Voices,
        voice_s: float,
        seed: int | None,
        in_full: bool = False,
    ) -> None:
        super().__init__(view)
        self._in_full = in_full
        self._session_id = session_id
        self._voices = voices
        self._voice_s = voice_s
        self._seed = seed
        self.speaks = True
        self.generation = Generation()
        self.asked: TurnStarted | None = None
        """A turn that has no answer yet, after `redo`."""

    async def open(self, prepared: HalfDuplexSetup) -> int:
        """Voice and system prompt; gives the prompt's length in tokens."""
        self.speaks, self.generation = prepared.wants_speech, prepared.generation
        system = await open_system(prepared.system)
        voice = await open_voice(
            prepared.voice, prepared.voice_name, voices=self._voices, limit_s=self._voice_s
        )
        view, session_id = self._view, self._session_id
        view.init_ref_audio_from_data(voice)
        await view.reset_session(session_id, speak=self.speaks, seed=self._seed)
        return (await view.prefill(TurnRequest(session_id, (system,)))).context_tokens

    async def redo(self, entry: HalfDuplexSetup | TurnStarted | Answered | Cut) -> Made | None:
        """See `ConversationFeed`."""
        view = self._view
        match entry:
            case HalfDuplexSetup():
                await self.open(entry)
            case TurnStarted():
                self.asked = entry
            case Answered() if self.asked is not None:
                asked, self.asked = self.asked, None
                if not entry.is_heard:
                    return None
                self._is_behind |= entry.chosen is not None
                message = await open_turn(asked.utterance, asked.text, asked.pictures)
                request = TurnRequest(self._session_id, (message,))
                await view.prefill(request, again=entry.taken_in)
                if entry.said or entry.is_whole or entry.chosen is not None:
                    return await _answer_again(
                        view,
                        self._session_id,
                        self.generation,
                        entry,
                        speaks=self.speaks,
                        in_full=self._in_full,
                    )
            case Cut(heard):
                await view.cut_answer(heard)
                view.clear_rollback_point()
            case _:
                pass
        return None


def turns_without_old_sound(log: Sequence[Entry]) -> list[Entry]:
    """See `RebuildableRunner`."""
    light = list(log)
    for at, (asked, answered) in enumerate(itertools.pairwise(log)):
        is_known = isinstance(answered, Answered) and answered.taken_in is not None
        if isinstance(asked, TurnStarted) and is_known:
            light[at] = replace(asked, utterance=asked.utterance.silenced())
    return light


# ---- items ---------------------------------------------------------------------------------


def generation_of(setup: HalfDuplexSetup, request: ResponseRequested) -> Generation:
    """How an answer is made."""
    if request.limit_tokens is None:
        return setup.generation
    return replace(setup.generation, max_new_tokens=request.limit_tokens)


class ItemFeed(_Feed[HalfDuplexView]):
    """A conversation of items.

    Args:
        session_id: of the view's requests.
        in_full: see `_answer_again`.
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
        self._begun: Begun | None = None
        self._before: list[ConversationItem] = []
        self._is_whole = True
        """True if everything since the beginning is in the entries."""
        self.is_filled = False
        """True if the context holds what an answer in the making answers."""
        self._is_made = False
        """True if the context holds an answer to it."""
        self._silenced: AnswerTold | None = None
        """An answer that is over for the client, and was still being made."""

    async def redo(self, entry: Entry) -> MadeAnswer | None:
        """See `ConversationFeed`."""
        items, context = self._items, self._context
        match entry:
            case HalfDuplexSetup():
                pass
            case ItemsSoFar(found):
                self._is_whole = False
                for item in found:
                    items.append(item)
            case Committed(item_id, pcm):
                self._forget(items.append(ConversationItem.of_user(item_id, pcm)))
            case ItemCreated(item_id, message, after_id):
                self._forget(items.insert(ConversationItem(item_id, message), after_id))
            case Removed(item_id):
                items.remove(items.find(item_id))
            case Truncated(item_id, heard_ms):
                context.cut(item_id, items.find(item_id).truncate(heard_ms))
            case TakenBack(item_id) if self._is_made:
                await context.take_back(item_id)
            case TakenBack(item_id):
                self._silenced = None
                context.without(item_id)
            case Unknown():
                self._silenced = None
                context.invalidate()
            case Begun():
                self._begun, self.is_filled, self._is_made = entry, False, False
                answer = ConversationItem.of_answer(entry.item_id)
                if not entry.request.is_apart:
                    self._forget(items.append(answer))
                self._before = items.before(answer)
            case AnswerTold():
                self._silenced = entry if self.is_filled else None
                self._tell(entry)
            case Filled(chosen) if self._is_whole and self._begun is not None:
                await self._fill(self._begun, chosen)
            case AnswerMade() if self._is_whole and self._begun is not None:
                return await self._answer(self._begun, entry)
            case _:
                # What was answered when not everything was logged is not made again.
                self.is_filled = False
        return None

    async def catch_up(self) -> None:
        """See `ConversationFeed`."""
        if self._silenced is not None and self._begun is not None:
            # The context holds of it what was said.
            said = "".join(text for text, _ in self._silenced.spoken)
            await self._answer(self._begun, AnswerMade(said, is_whole=False, chosen=None))
        await self._context.settle()
        await super().catch_up()

    def _forget(self, item_ids: list[str]) -> None:
        for item_id in item_ids:
            self._context.forget(item_id)

    async def _fill(self, begun: Begun, chosen: tuple[object, ...]) -> None:
        self._is_behind |= any(each is not None for each in chosen)
        await self._context.fill(
            self._before,
            begun.item_id,
            begun.request,
            begun.setup,
            speaks=begun.is_spoken,
            again=chosen,
        )
        self.is_filled = True

    async def _answer(self, begun: Begun, answered: AnswerMade) -> MadeAnswer | None:
        self.is_filled, self._silenced = False, None
        if not (answered.said or answered.is_whole or answered.chosen is not None):
            self._context.without(begun.item_id)
            return None
        self._is_made = True
        self._is_behind |= answered.chosen is not None
        tools = begun.setup.tools if begun.request.tools is None else begun.request.tools
        return await _answer_again(
            self._view,
            self._session_id,
            generation_of(begun.setup, begun.request),
            answered,
            speaks=begun.is_spoken,
            in_full=self._in_full,
            tools=tools,
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
