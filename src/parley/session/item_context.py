"""Keeps a model's context up to date with the items of a conversation.

If the past is unchanged, only new items are prefilled. The unheard part of the newest answer is
removed. If anything else changes (a deleted item, other instructions), the context is filled from
the start. Once it was opened (`open`, half-duplex) it only grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from parley import logs
from parley.clock import Clock
from parley.dialects.events import Content, HalfDuplexSetup, ResponseRequested, Sound, TokenCounts
from parley.engine.work import PrefillResult
from parley.errors import BadInput, ContextFull, InferenceFailed, InvalidRequest, SlotLost
from parley.media.pcm import Pcm
from parley.media.segments import stretches_of
from parley.protocol import content
from parley.protocol.content import Message
from parley.protocol.openai import CANNOT_TRANSCRIBE
from parley.protocol.values import Generation, TextPart, Tool, ToolCallPart, ToolResultPart
from parley.results import HeardWords
from parley.session.opened import Voices, open_messages
from parley.session_log.items import ConversationItem
from parley.views.content import AudioPart, Part, with_tools
from parley.views.half_duplex import HalfDuplexView, TurnRequest

TURN_DUE_S: Final = 5.0
"""Deadline of an answer: ahead of requests without a waiting user, and behind units of live
calls."""

TRANSCRIPT_TOKENS: Final = 1024
"""Length in tokens; half a minute of speech has a third of it."""

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class FilledContext:
    """Cost of bringing the context up to date.

    Args:
        fresh: items whose audio was prefilled for the first time.
        heard: the words of that audio, if the model transcribes it.
        chosen: the model's choices, for `again`.
    """

    tokens: TokenCounts
    fresh: tuple[ConversationItem, ...]
    heard: str
    chosen: tuple[object, ...] = ()


@dataclass(slots=True)
class _Started:
    """A context that was filled from the start, up to the last answer."""

    chosen: list[object]
    vision_tokens: int = 0


class ItemContext:
    """See the module's text.

    Args:
        seed: None: the model draws one.
    """

    def __init__(
        self,
        session_id: str,
        view: HalfDuplexView,
        clock: Clock,
        *,
        voices: Voices,
        seed: int | None,
    ) -> None:
        self._session_id = session_id
        self._clock = clock
        self._view = view
        self._voices = voices
        self._seed = seed
        self._synced: list[str] | None = None
        """Ids of the items in the context; None: it must be filled again."""
        self._opened_for: tuple[object, ...] = ()
        self._started: _Started | None = None
        """Items prefilled early that are not in a `FilledContext` yet."""
        self._only_grows = False
        """True if it cannot be filled from the start."""
        self._cut: str | None = None
        """The part of the newest answer that was heard; None: all of it."""
        self._changing = asyncio.Lock()

    async def open(self, setup: HalfDuplexSetup) -> int:
        """Open the context with the setup; from then on it only grows. Returns the prompt's length
        in tokens.

        Raises:
            BadInput: a voice or other audio cannot be used.
            ContextFull: the prompt is too long.
        """
        opened = await self._open(setup.system, setup, setup.tools, speaks=setup.wants_speech)
        self._synced, self._only_grows = [], True
        return opened.context_tokens

    def invalidate(self) -> None:
        if not self._only_grows:
            self._synced = self._cut = None

    def cut(self, item_id: str, heard: str) -> None:
        """Only `heard` of an answer was heard; `settle` changes the context accordingly."""
        if self._synced is not None and self._synced[-1:] == [item_id]:
            self._cut = heard
        elif self._synced is None or item_id in self._synced:
            self.invalidate()

    @property
    def _is_cut(self) -> bool:
        """True if the context contains more than was heard. Some clients truncate every answer when
        the user speaks, even one that was heard completely."""
        return self._cut is not None and not self._view.ends_with_answer(self._cut)

    def without(self, answer_id: str) -> bool:
        """Remove an answer from the context; returns False if the content of the context is
        unknown."""
        self._cut = None
        if self._synced is not None and self._synced[-1:] == [answer_id]:
            self._synced.pop()
        return self._synced is not None

    async def take_back(self, answer_id: str) -> bool:
        """Undo the generation of an answer. Returns False if that fails: then the content of the
        context is unknown or, if it only grows, still includes the answer."""
        async with self._changing:
            view = self._view
            is_last = self._synced is not None and self._synced[-1:] == [answer_id]
            is_gone = is_last and await view.can_rollback() and (await view.rollback()).success
            if not is_gone:
                self.invalidate()
            return self.without(answer_id) and is_gone

    async def settle(self) -> str | None:
        """Called between answers: make the context contain only what was heard. If the model fails
        while it shortens an answer, the context will contain nothing of it, and its id is
        returned."""
        async with self._changing:
            return await self._settle()

    async def _settle(self) -> str | None:
        is_cut, heard, self._cut = self._is_cut, self._cut, None
        # The client may change older items meanwhile, which invalidates the context.
        synced = self._synced
        if not is_cut or heard is None or synced is None:
            return None
        try:
            if not await self._view.cut_answer(heard):
                self.invalidate()
            elif not heard:
                # Its item may have been forgotten since: a replay shortens it only here.
                del synced[-1:]
            return None
        except SlotLost:
            raise
        except InferenceFailed:
            _log.warning("answer_truncation_failed", exc_info=True)
            lost = synced.pop() if synced else None
            self.invalidate()
            return lost

    def forget(self, item_id: str) -> None:
        """An old item is no longer stored. It remains in the context, unless the context is filled
        again."""
        if self._synced and self._synced[0] == item_id:
            self._synced.pop(0)

    def add(self, item_ids: Sequence[str]) -> None:
        """These items were generated with the answer: they are in the context."""
        if self._synced is not None:
            self._synced += item_ids

    async def fill(
        self,
        items: Sequence[ConversationItem],
        answer_id: str,
        request: ResponseRequested,
        setup: HalfDuplexSetup,
        *,
        speaks: bool,
        again: Sequence[object] = (),
    ) -> FilledContext:
        """Bring the context up to date with what is to be answered.

        Args:
            items: the conversation so far.
            answer_id: of the next answer.
            again: `chosen` of the same operation on the same context in another slot.

        Raises:
            InferenceFailed: the context is as before, or unknown.
        """
        async with self._changing:
            await self._settle()
            return await self._fill(items, answer_id, request, setup, speaks, again)

    async def _fill(
        self,
        items: Sequence[ConversationItem],
        answer_id: str,
        request: ResponseRequested,
        setup: HalfDuplexSetup,
        speaks: bool,
        again: Sequence[object],
    ) -> FilledContext:
        view = self._view
        past, now = again[-2:] or (None, None)
        instructions, items = _instructions(items, request, setup)
        if self._only_grows:
            known = self._synced
            items = [item for item in items if not item.is_answer]
        else:
            known = await self._begin(instructions, items, request, setup, speaks, again)
        if known is None:
            raise InferenceFailed("The context cannot be restored.")
        started = self._started
        cached = view.kept_tokens if known and started is None else 0
        fresh = [item for item in items if item.item_id not in known]
        answered = _answered(fresh)
        # Until everything is prefilled, the content is unknown.
        self._synced = None
        # Items that were answered before are not new.
        chosen: list[object] = [] if started is None else started.chosen
        images = 0 if started is None else started.vision_tokens
        try:
            if started is None:
                before = await self._prefill(fresh[:answered], past)
                chosen, images = [before.chosen], before.vision_tokens
            prefilled = await self._prefill(fresh[answered:], now)
        except (BadInput, InferenceFailed):
            if not answered:
                # The view has restored the context.
                self._synced = known
            raise
        self._started = None
        is_apart = request.items is not None or request.is_apart
        fresh_ids = [item.item_id for item in fresh]
        self._synced = None if is_apart else [*known, *fresh_ids, answer_id]
        heard_s = sum(item.sound.duration_s for item in fresh if item.sound is not None)
        tokens = TokenCounts(
            input=view.kv_cache_length,
            cached=cached,
            audio=round(heard_s * view.spec.audio_tokens_per_s),
            image=images + prefilled.vision_tokens,
        )
        sounds = tuple(item for item in fresh[answered:] if item.sound is not None)
        return FilledContext(tokens, sounds, prefilled.heard, (*chosen, prefilled.chosen))

    async def begin_early(self, items: Sequence[ConversationItem], setup: HalfDuplexSetup) -> None:
        """The user has started to speak: do the first part of `fill` now."""
        request = ResponseRequested()
        async with self._changing:
            if self._is_cut:
                return
            instructions, items = _instructions(items, request, setup)
            try:
                if not self._only_grows:
                    await self._begin(instructions, items, request, setup, self._speaks(setup), ())
                await self._view.read_answer()
            except SlotLost:
                raise
            except (BadInput, ContextFull, InferenceFailed):
                # `fill` tries again and reports the failure.
                _log.debug("early_beginning_failed", exc_info=True)

    def _speaks(self, setup: HalfDuplexSetup) -> bool:
        return setup.wants_speech and self._view.spec.can_speak

    async def _begin(
        self,
        instructions: tuple[TextPart | Sound, ...],
        items: Sequence[ConversationItem],
        request: ResponseRequested,
        setup: HalfDuplexSetup,
        speaks: bool,
        again: Sequence[object],
    ) -> list[str]:
        """Fill the context from the start, up to the last answer, unless it already contains these
        instructions and a prefix of these items. Returns the ids of the items in it."""
        if request.voice_name is not None:
            setup = replace(setup, voice=None, voice_name=request.voice_name or None)
        tools = setup.tools if request.tools is None else request.tools
        opened_for = (instructions, setup.voice_name, speaks, tools)
        known = None if len(again) > 2 else self._known(items)
        if known is not None and request.items is None and opened_for == self._opened_for:
            return known
        how, past = (again[0], again[1]) if len(again) > 2 else (None, None)
        opened = await self._open(instructions, setup, tools, speaks=speaks, again=how)
        answered = _answered(items)
        before = await self._prefill(items[:answered], past)
        # Prefilled text is not an answer of the model, and cannot be shortened like one.
        self._view.clear_rollback_point()
        self._started = _Started([opened.chosen, before.chosen], before.vision_tokens)
        self._opened_for = opened_for
        self._synced = [item.item_id for item in items[:answered]]
        return self._synced

    def _known(self, items: Sequence[ConversationItem]) -> list[str] | None:
        """Ids of the items in the context; None if they are not a prefix of these items."""
        known = self._synced
        if known is None or self._only_grows:
            return known
        return known if known == [item.item_id for item in items][: len(known)] else None

    async def answer_early(self, pcm: Pcm, setup: HalfDuplexSetup) -> HeardWords | None:
        """Prefill what will be the user's turn if they say no more; returns its words. None: that
        is not possible now."""
        if self._synced is None or self._is_cut or self._changing.locked():
            return None
        due_s = self._clock.monotonic() + TURN_DUE_S
        asked: content.Message[Part] = content.Message("user", (AudioPart(pcm),))
        request = TurnRequest(self._session_id, (asked,))
        await self._view.prefill_early(
            request,
            due_s=due_s,
            answer=setup.generation,
            generate_audio=self._speaks(setup),
        )
        return self._view.early_words

    async def words_of(self, sound: Pcm, setup: HalfDuplexSetup) -> AsyncGenerator[str, None]:
        """Transcribe audio: the words of each part between two pauses, or all words if the
        recogniser takes the audio as a whole. They are not answered and leave no trace in the
        context.

        Raises:
            InvalidRequest: the model does not transcribe.
            InferenceFailed, ContextFull: as `fill`.
        """
        spec = self._view.spec
        if not (spec.transcription_prompt or spec.transcribes):
            raise InvalidRequest(CANNOT_TRANSCRIBE, field="session.type")
        for start_s, end_s in await asyncio.to_thread(stretches_of, sound):
            start, end = round(start_s * sound.rate_hz), round(end_s * sound.rate_hz)
            piece = Pcm(sound.samples[start:end], sound.rate_hz)
            text = await self._words_of(piece, spec.transcription_prompt, setup)
            if text.strip():
                yield text.strip()

    async def _words_of(self, piece: Pcm, prompt: str, setup: HalfDuplexSetup) -> str:
        parts: tuple[Content, ...] = (TextPart(prompt), piece) if prompt else (piece,)
        item = ConversationItem("", Message("user", parts))
        self.invalidate()
        filled = await self.fill([item], "", ResponseRequested(), setup, speaks=False)
        self.invalidate()
        if not prompt:
            return filled.heard
        generation = Generation(max_new_tokens=TRANSCRIPT_TOKENS, do_sample=False)
        chunks = self._view.generate(self._session_id, generation, generate_audio=False)
        return "".join([chunk.text_delta or "" async for chunk in chunks])

    async def _prefill(
        self, items: Sequence[ConversationItem], again: object = None
    ) -> PrefillResult:
        """Prefill items; there may be none."""
        if not items:
            return PrefillResult(0, self._view.kv_cache_length)
        opened = await open_messages(_joined([item.message for item in items]))
        due_s = self._clock.monotonic() + TURN_DUE_S
        request = TurnRequest(self._session_id, tuple(opened))
        return await self._view.prefill(request, due_s=due_s, again=again)

    async def _open(
        self,
        instructions: tuple[TextPart | Sound, ...],
        setup: HalfDuplexSetup,
        tools: tuple[Tool, ...],
        *,
        speaks: bool,
        again: object = None,
    ) -> PrefillResult:
        """Reset the context to the instructions alone."""
        self._synced = self._started = None
        voice = await self._voices.open(setup.voice, setup.voice_name)
        self._view.init_ref_audio_from_data(voice)
        session_id = self._session_id
        await self._view.reset_session(session_id, speak=speaks, seed=self._seed)
        opened = await open_messages([Message("system", instructions)])
        if tools:
            opened = with_tools(opened, tools)
        request = TurnRequest(session_id, tuple(opened))
        return await self._view.prefill(request, again=again)


def _joined(messages: Sequence[Message[Content]]) -> list[Message[Content]]:
    """Function calls belong to the preceding message, and consecutive tool results to one
    message."""
    joined: list[Message[Content]] = []
    for message in messages:
        before = joined[-1] if joined else None
        is_tool = isinstance(message.parts[0], ToolCallPart | ToolResultPart)
        if is_tool and before is not None and before.role == message.role:
            kept = tuple(part for part in before.parts if part != TextPart(""))
            joined[-1] = Message(message.role, (*kept, *message.parts))
        else:
            joined.append(message)
    return joined


def _answered(items: Sequence[ConversationItem]) -> int:
    """Number of items up to the last answer."""
    return max((i + 1 for i, item in enumerate(items) if item.is_answer), default=0)


def _instructions(
    items: Sequence[ConversationItem], request: ResponseRequested, setup: HalfDuplexSetup
) -> tuple[tuple[TextPart | Sound, ...], list[ConversationItem]]:
    """System messages, which always come first, and all other items."""
    instructions = setup.system
    if request.instructions is not None:
        instructions = (TextPart(request.instructions),)
    if request.items is not None:
        items = [ConversationItem("", message) for message in request.items]
    said = [item for item in items if item.message.role == "system"]
    instructions += tuple(
        part for item in said for part in item.message.parts if isinstance(part, TextPart)
    )
    return instructions, [
        item for item in items if item.message.role != "system" and not item.is_unheard
    ]
