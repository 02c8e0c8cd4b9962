"""Brings a model's context up to the items of a conversation.

As long as the past stays as it is, only what is new is prefilled; when it changes (an answer of
which only a part was heard, an item that was deleted, other instructions), the context is filled
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parley.clock import Clock
from parley.dialects.events import Content, HalfDuplexSetup, ResponseRequested, Sound, TokenCounts
from parley.engine.work import PrefillResult
from parley.media.pcm import Pcm
from parley.protocol import content
from parley.protocol.content import Message
from parley.protocol.values import TextPart, Tool, ToolCallPart, ToolResultPart
from parley.session.items import ConversationItem
from parley.session.opened import Voices, open_messages, open_voice
from parley.session.turn import TURN_DUE_S
from parley.views.content import AudioPart, Part, with_tools
from parley.views.half_duplex import HalfDuplexView, TurnRequest


@dataclass(frozen=True, slots=True)
class FilledContext:
    """What bringing the context up to date took.

    Args:
        fresh: items whose sound was heard for the first time.
        heard: the words of that sound, where the model makes any.
        chosen: what the model decided in it, for `again`.
    """

    tokens: TokenCounts
    fresh: tuple[ConversationItem, ...]
    heard: str
    chosen: tuple[object, ...] = ()


class ItemContext:
    """See the module's text.

    Args:
        voice_s: longest reference voice.
        seed: None: drawn by the model.
    """

    def __init__(
        self,
        session_id: str,
        view: HalfDuplexView,
        clock: Clock,
        *,
        voices: Voices,
        voice_s: float,
        seed: int | None,
    ) -> None:
        self._session_id = session_id
        self._clock = clock
        self._view = view
        self._voices = voices
        self._voice_s = voice_s
        self._seed = seed
        self._synced: list[str] | None = None
        """Ids of the items in the context; None: it has to be filled again."""
        self._opened_for: tuple[object, ...] = ()

    def invalidate(self) -> None:
        """The past has changed."""
        self._synced = None

    def forget(self, item_id: str) -> None:
        """An old item is not kept any more. The context still has it; only what was changed behind
        it would lose it."""
        if self._synced and self._synced[0] == item_id:
            self._synced.pop(0)

    def add(self, item_ids: Sequence[str]) -> None:
        """These items were made with the answer: the context has them."""
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
        """Bring the context up to what is to be answered.

        Args:
            items: the conversation so far.
            answer_id: of the answer that follows.
            again: `chosen` of when this was done in another slot, with the same context.
        """
        view = self._view
        instructions, items = _instructions(items, request, setup)
        tools = setup.tools if request.tools is None else request.tools
        opened_for = (instructions, setup.voice_name, speaks, tools)
        wanted = [item.item_id for item in items]
        known = self._synced
        chosen: list[object] = []
        if (
            known is None
            or request.items is not None
            or opened_for != self._opened_for
            or known != wanted[: len(known)]
        ):
            opened = again[0] if again else None
            chosen = [await self._open(instructions, setup, tools, speaks=speaks, again=opened)]
            self._opened_for, known = opened_for, []
        cached = view.kept_tokens if known else 0
        fresh = items[len(known) :]
        answered = max((i + 1 for i, item in enumerate(fresh) if item.is_answer), default=0)
        # Until all of it is there, what is there is unknown.
        self._synced = None
        # What was answered before is not heard for the first time.
        past, now = again[len(chosen) : len(chosen) + 2] or (None, None)
        before = await self._prefill(fresh[:answered], past)
        prefilled = await self._prefill(fresh[answered:], now)
        chosen += [before.chosen, prefilled.chosen]
        image_tokens = before.vision_tokens
        is_apart = request.items is not None or request.is_apart
        self._synced = None if is_apart else [*wanted, answer_id]
        heard_s = sum(item.sound.duration_s for item in fresh if item.sound is not None)
        tokens = TokenCounts(
            input=view.kv_cache_length,
            cached=cached,
            audio=round(heard_s * view.spec.audio_tokens_per_s),
            image=image_tokens + prefilled.vision_tokens,
        )
        sounds = tuple(item for item in fresh[answered:] if item.sound is not None)
        return FilledContext(tokens, sounds, prefilled.heard, tuple(chosen))

    async def answer_early(self, pcm: Pcm, setup: HalfDuplexSetup) -> None:
        """What will be the user's turn, if they say no more."""
        if self._synced is None:
            return
        due_s = self._clock.monotonic() + TURN_DUE_S
        asked: content.Message[Part] = content.Message("user", (AudioPart(pcm),))
        request = TurnRequest(self._session_id, (asked,))
        await self._view.prefill_early(
            request,
            due_s=due_s,
            answer=setup.generation,
            generate_audio=setup.wants_speech and self._view.spec.can_speak,
        )

    async def _prefill(
        self, items: Sequence[ConversationItem], again: object = None
    ) -> PrefillResult:
        """Items into the context; none is fine."""
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
    ) -> object:
        """An empty context with the instructions in it; gives what the model decided about them."""
        self._synced = None
        voice = await open_voice(
            setup.voice, setup.voice_name, voices=self._voices, limit_s=self._voice_s
        )
        self._view.init_ref_audio_from_data(voice)
        session_id = self._session_id
        await self._view.reset_session(session_id, speak=speaks, seed=self._seed)
        opened = await open_messages([Message("system", instructions)])
        if tools:
            opened = with_tools(opened, tools)
        request = TurnRequest(session_id, tuple(opened))
        return (await self._view.prefill(request, again=again)).chosen


def _joined(messages: Sequence[Message[Content]]) -> list[Message[Content]]:
    """Calls belong to the message before them, and results of tools to one message."""
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


def _instructions(
    items: Sequence[ConversationItem], request: ResponseRequested, setup: HalfDuplexSetup
) -> tuple[tuple[TextPart | Sound, ...], list[ConversationItem]]:
    """What the system says, which stands in front whenever it was said, and all other items."""
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
