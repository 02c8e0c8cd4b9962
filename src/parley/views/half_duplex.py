"""Half-duplex: a growing context, one turn after another.

The system prompt is prefilled once, followed by the user's turns and the answers. Checkpoints for
rollback are taken after the system prompt and before each answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.engine import work
from parley.engine.engine import PendingResult, SlotHandle
from parley.engine.segments import Mark, Marker, Segment
from parley.errors import BadInput, ContextFull, InferenceFailed, InvalidRequest, SlotLost
from parley.media.pcm import Pcm, Samples
from parley.media.reference import read_voice, require_length
from parley.protocol.values import Generation
from parley.results import HeardWords
from parley.views.content import AudioPart, Layout, Message
from parley.views.plain import sound_of
from parley.views.prompts import with_voice
from parley.views.turns import StreamingChunk, TurnView, command

WINDOW = work.Window(kind="basic", high_tokens=8000, low_tokens=6000)
"""Source: sessions.md 5.4."""

EARLY_TOKENS_PER_S = 30
EARLY_TOKENS = 128
"""Upper bound of the tokens of a turn, per second of audio and in addition: an early prefill must
not move the window, because it could not be rolled back then."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Messages to prefill, in order.

    Args:
        session_id: a new id starts a new conversation.
        omni_mode: True: no separators between the parts of a message, instead of line breaks.
        max_slice_nums: for pictures; None: the model decides.
    """

    session_id: str
    messages: tuple[Message, ...]
    omni_mode: bool = True
    max_slice_nums: int | None = None


@dataclass(frozen=True, slots=True)
class Rollback:
    """Result of a rollback.

    Args:
        reason: why it failed; "" on success.
        restored_position: current length of the context.
    """

    success: bool
    reason: str
    restored_position: int


@dataclass(frozen=True, slots=True)
class RollbackCheck:
    """Tells if a view can roll back: approximately as a boolean, exactly if awaited."""

    has_point: bool
    exactly: Callable[[], Coroutine[Any, Any, bool]]

    def __bool__(self) -> bool:
        return self.has_point

    def __await__(self) -> Generator[Any, None, bool]:
        return self.exactly().__await__()


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    checkpoint: work.Checkpoint
    turn_is_open: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Early:
    """A prefill of what may become the user's turn; `before` is the checkpoint for rolling back."""

    request: TurnRequest
    result: work.PrefillResult
    before: _Point


@dataclass(slots=True, eq=False)
class _EarlyAnswer:
    """An answer that was not requested yet; `before` is the checkpoint for rolling back."""

    command: work.Generate
    decoding: PendingResult[work.GenerateResult]
    before: _Point
    is_stopped: bool = False

    def stop(self) -> None:
        self.is_stopped = True
        self.decoding.cancel()


class HalfDuplexView(TurnView):
    """`init_ref_audio…`, `prefill` the system prompt, then per turn `prefill` and `generate`."""

    def __init__(self, slot: SlotHandle) -> None:
        super().__init__(slot)
        self._voice: Pcm | None = None
        self._speaks = True
        self._point: _Point | None = None
        self._turn_is_open = False
        self._window = WINDOW
        self._early: _Early | None = None
        self._early_answer: _EarlyAnswer | None = None
        self._early_work = asyncio.Lock()
        self._conversations = 0
        """Number of conversations started or cleared so far."""

    def init_ref_audio(self, path: Path | str) -> None:
        """Read the voice for later conversations from a file."""
        voice = read_voice(path, limit_s=60.0)
        require_length(voice)
        self.init_ref_audio_from_data(voice)

    def init_ref_audio_from_data(self, voice: Pcm | Samples | None) -> None:
        """Set the voice of later conversations; None: the model's own.

        Args:
            voice: of any rate, or an array of float32 samples at 16 kHz, shape (N,).

        Raises:
            InvalidPayload: neither.
        """
        self._voice = sound_of(voice)

    async def reset_session(
        self,
        session_id: str,
        *,
        speak: bool = True,
        seed: int | None = None,
        window: work.Window = WINDOW,
    ) -> None:
        """Start a conversation: an empty context and a new voice.

        Args:
            speak: False: no voice is prepared; answers are text only.
        """
        self.forget()
        self._speaks, self._window = speak, window
        await self._slot.start(
            work.StartSession(
                "half_duplex", voice=self._voice, speak=speak, seed=seed, window=window
            )
        )
        self.session_id = session_id

    def _with_voice(self, message: Message) -> Message:
        """A system prompt that contains the model's voice, if it speaks with its own."""
        if message.role != "system" or not self._speaks or self._voice is not None:
            return message
        return with_voice(message, self.spec.prompt_voice)

    async def prefill(
        self, request: TurnRequest, *, due_s: float | None = None, again: object = None
    ) -> work.PrefillResult:
        """Prefill messages; a system message creates a checkpoint.

        User turns stay open: further messages of the same role continue them until an answer was
        given. After a failure, the context is as before the call. The prefill of `prefill_early`
        is kept if it has the same content, and rolled back otherwise.

        Args:
            again: `chosen` of the same request in another slot; `catch_up` must be called before
                any request without `again`.
        """
        async with self._early_work:
            early, self._early = self._early, None
            if early is not None and early.request == request:
                return early.result
            await self._give_back(early)
            return await self._prefill(request, due_s, again)

    async def prefill_early(
        self,
        request: TurnRequest,
        *,
        due_s: float | None = None,
        answer: Generation | None = None,
        generate_audio: bool = True,
    ) -> bool:
        """Prefill what will be the user's turn if they say no more; `prefill` confirms or discards
        it.

        Args:
            answer: options for also starting the answer, which `generate` continues if it gets the
                same options; ignored if the model does not support it (`ModelSpec.answers_early`).
                None: do not start it.
            generate_audio: as in `generate`.

        Returns:
            True if it was prefilled; False if the window might have to move for it, or if it
            failed, which leaves the context unchanged.
        """
        if self._early_work.locked() or request.session_id != self.session_id:
            return False
        async with self._early_work:
            if self._early is not None and self._early.request == request:
                return True
            early, self._early = self._early, None
            await self._give_back(early)
            seconds = sum(
                part.pcm.duration_s
                for message in request.messages
                for part in message.parts
                if isinstance(part, AudioPart)
            )
            needed = round(EARLY_TOKENS_PER_S * seconds) + EARLY_TOKENS
            if self.kv_cache_length + needed > self._window.high_tokens:
                return False
            conversation = self._conversations
            before = _Point(await self._slot.checkpoint(), self._turn_is_open)
            if conversation != self._conversations:
                return False
            try:
                result = await self._prefill(request, due_s)
            except SlotLost:
                raise
            except (BadInput, ContextFull, InferenceFailed):
                return False
            if conversation != self._conversations:
                return False
            self._early = _Early(request, result, before)
            if answer is not None and self.spec.answers_early:
                await self._answer_early(_reply(answer, generate_audio), due_s)
            return True

    @property
    def early_words(self) -> HeardWords | None:
        """The words in the prefill of `prefill_early`; None if there is none."""
        if self._early is None:
            return None
        return HeardWords(self._early.result.heard, self._early.result.is_whole)

    async def _answer_early(self, reply: work.Generate, due_s: float | None) -> None:
        needed = reply.max_new_tokens + EARLY_TOKENS
        if self._slot.context_tokens + needed > self._window.high_tokens:
            return
        conversation = self._conversations
        before = _Point(await self._slot.checkpoint(), self._turn_is_open)
        if conversation == self._conversations and self._early is not None:
            decoding = self._slot.generate(reply, due_s=due_s)
            self._early_answer = _EarlyAnswer(reply, decoding, before)

    def stop_early(self) -> None:
        """The user continues: stop the early answer."""
        if self._early is not None and self._early_answer is not None:
            self._early_answer.stop()

    def stop_generation(self) -> bool:
        """See `TurnView`; also stops an answer that was started before it was requested."""
        if self._early is None and self._early_answer is not None:
            self._early_answer.stop()
        return super().stop_generation()

    async def _give_back(self, early: _Early | None = None) -> None:
        """Roll back the early answer and the early turn that were not confirmed."""
        answer, self._early_answer = self._early_answer, None
        if answer is not None:
            answer.stop()
        before = early or answer
        if before is not None:
            # After the answer's end, because work on a slot runs in order.
            await self._return_to(before.before)

    @property
    def kv_cache_length(self) -> int:
        """Number of tokens in the context, without an answer that was not requested."""
        if self._early_answer is not None:
            return self._early_answer.before.checkpoint.context_tokens
        return super().kv_cache_length

    @property
    def kept_tokens(self) -> int:
        """Number of tokens in the context, without early prefills."""
        if self._early is not None:
            return self._early.before.checkpoint.context_tokens
        return self.kv_cache_length

    async def _return_to(self, point: _Point) -> None:
        """Roll back to a checkpoint.

        Raises:
            InferenceFailed: the context can no longer be rolled back to it.
        """
        if not await self._slot.can_roll_back(point.checkpoint):
            raise InferenceFailed("The context cannot go back to before the user's turn.")
        await self._slot.roll_back(point.checkpoint)
        self._turn_is_open = point.turn_is_open

    async def _prefill(
        self, request: TurnRequest, due_s: float | None, again: object = None
    ) -> work.PrefillResult:
        if not request.messages:
            raise InvalidRequest("messages must not be empty.", field="messages")
        if request.session_id != self.session_id:
            await self.reset_session(request.session_id)
        before: work.Checkpoint | None = None
        was_open = self._turn_is_open
        added = slices = tokens = 0
        heard = ""
        known = again if isinstance(again, tuple) else ()
        chosen: list[object] = []
        try:
            for index, given in enumerate(request.messages):
                message = self._with_voice(given)
                # The next message of the other role closes a user's turn: this is history.
                closes = any(each.role != "user" for each in request.messages[index + 1 :][:1])
                segments = self._lay_out(message, request, closes=closes)
                prefilled = await self._slot.prefill(
                    segments,
                    takes_checkpoint=before is None,
                    due_s=due_s,
                    again=known[index] if index < len(known) else None,
                )
                chosen.append(prefilled.chosen)
                heard = " ".join(filter(None, (heard, prefilled.heard)))
                before = before or prefilled.checkpoint
                added += prefilled.added_tokens
                slices += prefilled.vision_slices
                tokens += prefilled.vision_tokens
                self._turn_is_open = message.role == "user" and not closes
        except (BadInput, ContextFull, InferenceFailed) as failure:
            self._turn_is_open = was_open
            if before is not None and not isinstance(failure, SlotLost):
                await self._slot.roll_back(before)
            raise
        if request.messages[-1].role == "system":
            self._point = _Point(await self._slot.checkpoint(), self._turn_is_open)
        return work.PrefillResult(
            added,
            prefilled.context_tokens,
            slices,
            tokens,
            prefilled.timings,
            heard=heard,
            is_whole=prefilled.is_whole,
            chosen=None if None in chosen else tuple(chosen),
        )

    async def generate(
        self,
        session_id: str,
        generation: Generation | None = None,
        *,
        generate_audio: bool = True,
        due_s: float | None = None,
        again: object = None,
    ) -> AsyncGenerator[StreamingChunk, None]:
        """The answer in chunks, followed by an empty chunk with `is_final`.

        Args:
            again: `decoded.chosen` of the same answer in another slot; its audio is silence then.

        After a failure: use `can_rollback` and `rollback`, then ask again or continue.
        """
        self._check_session(session_id)
        async with self._early_work:
            early, self._early = self._early, None
            reply = dataclasses.replace(
                _reply(generation or Generation(), generate_audio), again=again
            )
            started = self._early_answer
            is_this = started is not None and not started.is_stopped and started.command == reply
            if early is not None or not is_this:
                # The early prefill was not confirmed: it is not part of what is answered.
                await self._give_back(early)
                started = None
            self._early_answer = None
        if started is None:
            self._point = _Point(await self._slot.checkpoint(), self._turn_is_open)
        else:
            self._point = started.before
        index = -1
        # Even if the reader leaves early: the words so far end the user's turn.
        self._turn_is_open = False
        async for chunk in self._stream(
            reply, due_s, None if started is None else started.decoding
        ):
            index = chunk.chunk_index
            yield chunk
        yield StreamingChunk(index + 1, is_final=True)

    async def catch_up(self) -> None:
        """Do work that was deferred while turns were replayed. Call between two turns."""
        await self._give_back()
        await self._slot.prefill(())

    async def read_answer(self) -> None:
        """Do work that the newest answer deferred, if the model reports its choices: while the user
        speaks, not while they wait."""
        if self.decoded is not None and self.decoded.chosen is not None:
            await self._slot.prefill(())

    def can_rollback(self) -> RollbackCheck:
        """True if there is a checkpoint: `if view.can_rollback():`. If awaited, it also checks that
        the window has not moved past it; `rollback` reports that too."""
        return RollbackCheck(self._point is not None, self._can_rollback)

    async def _can_rollback(self) -> bool:
        return self._point is not None and await self._slot.can_roll_back(self._point.checkpoint)

    async def rollback(self) -> Rollback:
        """Roll back to the checkpoint, which can be used once. Does not raise if there is none."""
        await self._give_back()
        point, self._point = self._point, None
        if point is None:
            return Rollback(False, "there is no point to return to", self.kv_cache_length)
        if not await self._slot.can_roll_back(point.checkpoint):
            return Rollback(False, "the context has moved past it", self.kv_cache_length)
        length = await self._slot.roll_back(point.checkpoint)
        self._turn_is_open = point.turn_is_open
        self.decoded = None
        return Rollback(True, "", length)

    def ends_with_answer(self, text: str) -> bool:
        """True if the newest answer is complete and has this text."""
        return bool(text) and self.decoded is not None and self.decoded.text == text

    async def cut_answer(self, heard: str) -> bool:
        """Make the context contain only `heard` of the answer; needs the checkpoint before it.

        If `heard` is empty, the user's turn is open again. Returns False if there is no checkpoint:
        the context then contains the whole answer.
        """
        async with self._early_work:
            if self.session_id is None or not await self.can_rollback():
                return False
            self._early = None
            await self.rollback()
        if heard:
            self._turn_is_open = False
            reply = command(Generation(say=heard), speak=False, streaming=True)
            async for _ in self._stream(reply, None):
                pass
        return True

    def clear_rollback_point(self) -> None:
        """The turn was successful: the checkpoint is no longer needed."""
        self._point = None

    def forget(self) -> None:
        super().forget()
        if self._early_answer is not None:
            self._early_answer.stop()
        self._point = None
        self._early = self._early_answer = None
        self._conversations += 1
        self._turn_is_open = False

    def _lay_out(self, message: Message, request: TurnRequest, *, closes: bool) -> list[Segment]:
        layout = Layout("turn", not request.omni_mode, request.max_slice_nums)
        if message.role != "user":
            return layout.message(message)
        if self._turn_is_open:
            end = [Marker(Mark.TURN_END, message.role)] if closes else []
            return [*layout.content(message.parts), *end]
        return layout.message(message, is_closed=closes)


def _reply(generation: Generation, generate_audio: bool) -> work.Generate:
    return command(generation, speak=generate_audio, streaming=True)
