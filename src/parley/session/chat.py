"""Runs one chat request: open it, prefill it, answer it.

Source: chat API; service.md 4.2.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    ClientEvent,
    OutputDelta,
    Prefilled,
    ServerEvent,
    SessionEnded,
    StopRequested,
)
from parley.errors import InvalidRequest, WrongPhase
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.media.room import ContextRoom
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import Generation
from parley.session.opened import Voices, no_voices, open_messages, open_voice
from parley.session.session import Session
from parley.session.tool_calls import AnswerCalls, check_tools
from parley.views.chat import ChatView
from parley.views.content import AudioPart, Message, VideoPart

STOP_GRACE_S: Final = 0.25
"""A model that has not stopped by then is not waited for. Source: service.md 7, stop to silence."""


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """`setup_s`: until the request is there. `voice_s`: longest reference voice."""

    setup_s: float
    voice_s: float


class Asking(Protocol):
    """What a request is answered for: a `Session`, or what compares."""

    session_id: str

    def log(self, entry: ChatRequested) -> None: ...
    def emit(self, event: ServerEvent) -> None: ...
    def enter(self, phase: Phase) -> None: ...
    async def room(self) -> None: ...
    async def recording_id(self) -> str | None: ...


class RequestRun:
    """One request: opened, prefilled, answered. A stopped one has its `AnswerDone`, too."""

    def __init__(
        self,
        session: Asking,
        view: ChatView,
        asked: ChatRequested,
        limits: ChatLimits,
        *,
        voices: Voices,
        seed: int | None,
    ) -> None:
        self._session = session
        self._view = view
        self._asked = asked
        self._limits = limits
        self._voices = voices
        self._seed = seed
        self.is_stopped = False
        self._has_finished = False
        self._input_tokens = 0
        self._heard = ""
        self._text = ""
        self._sounds: list[Pcm] = []
        self._calls = AnswerCalls(session.emit, bool(asked.tools))
        self._pieces = 0
        self._recording_id: str | None = None

    async def answer(self) -> None:
        """Everything up to `AnswerDone`.

        Raises:
            ParleyError: it cannot be answered.
        """
        session, asked, spec = self._session, self._asked, self._view.spec
        session.log(asked)
        if asked.generation.say is not None and not spec.reads_aloud:
            raise InvalidRequest("The loaded model cannot read text aloud.", field="say")
        room = ContextRoom(spec.context_limit_tokens, spec.image_tokens, spec.audio_tokens_per_s)
        check_tools(asked.tools, spec)
        if asked.generation.answer_format is not None and not spec.keeps_formats:
            raise InvalidRequest(
                "This model cannot keep to an answer format.", field="answer_format"
            )
        messages = await open_messages(asked.messages, room=room)
        sound_s = sum(sound_s_of(message) for message in messages)
        voice = await open_voice(
            asked.voice, asked.voice_name, voices=self._voices, limit_s=self._limits.voice_s
        )
        prefilled = await self._view.prefill(
            session.session_id,
            messages,
            omni_mode=asked.is_omni,
            max_slice_nums=asked.max_slices,
            use_image_id=asked.numbers_images,
            voice=voice,
            speak=asked.wants_speech,
            tts_mode=asked.tts_mode,
            language=asked.language,
            tools=asked.tools,
            seed=self._seed if asked.seed is None else asked.seed,
        )
        # Pictures and clips may be large, and the answer may take minutes.
        del messages
        self._input_tokens, self._heard = prefilled.context_tokens, prefilled.heard
        self._recording_id = await session.recording_id()
        session.enter(Phase.GENERATING)
        session.emit(
            Prefilled(
                self._input_tokens,
                audio_tokens=round(sound_s * spec.audio_tokens_per_s),
                image_tokens=prefilled.vision_tokens,
            )
        )
        if not self.is_stopped:
            # Where functions may be called, it is read as it comes: calls are not spoken.
            told = self._stream if asked.is_streaming or asked.tools else self._whole
            await told(asked.generation, speaks=asked.wants_speech)
        if self.is_stopped:
            self.finish_stopped()

    def stop(self) -> None:
        """End the answer; what there is of it becomes the whole."""
        self.is_stopped = True
        self._view.stop_generation()

    async def _stream(self, generation: Generation, *, speaks: bool) -> None:
        chunks = self._view.streaming_generate(
            self._session.session_id, generation, generate_audio=speaks
        )
        async for chunk in chunks:
            self._tell(
                self._calls.add(chunk.text_delta or ""),
                None if self._calls.has_begun else chunk.audio,
            )
            await self._session.room()
        self._tell(self._calls.finish(), None)
        decoded = self._view.decoded
        assert decoded is not None
        if not self.is_stopped:
            # Sound that went out in the pieces would be heard twice.
            self._finish(
                AnswerDone(
                    self._text if self._asked.tools else decoded.text,
                    decoded.text_tokens,
                    self._input_tokens,
                    join(self._sounds, OUTPUT_RATE_HZ) if self._sounds else None,
                    recording_id=self._recording_id,
                    ending=decoded.ending,
                    heard=self._heard or decoded.heard,
                    speech_tokens=decoded.speech_tokens,
                    calls=self._calls.calls,
                )
            )

    def _tell(self, text: str, sound: Pcm | None) -> None:
        """The next piece; kept where the client wants the whole."""
        self._text += text
        if self._asked.is_streaming:
            if text or sound is not None or not self._asked.tools:
                self._session.emit(OutputDelta(self._pieces, text, sound))
                self._pieces += 1
        elif sound is not None:
            self._sounds.append(sound)

    async def _whole(self, generation: Generation, *, speaks: bool) -> None:
        answer = await self._view.generate(
            self._session.session_id, generation, generate_audio=speaks
        )
        self._finish(
            AnswerDone(
                answer.text,
                answer.decoded.text_tokens,
                self._input_tokens,
                answer.audio,
                is_stopped=self.is_stopped,
                recording_id=self._recording_id,
                ending=answer.decoded.ending,
                heard=self._heard or answer.decoded.heard,
                speech_tokens=answer.decoded.speech_tokens,
            )
        )

    def finish_stopped(self) -> None:
        """What there is of a stopped answer, once."""
        decoded = self._view.decoded
        self._finish(
            AnswerDone(
                decoded.text if decoded is not None else self._text,
                decoded.text_tokens if decoded is not None else self._pieces,
                self._input_tokens,
                is_stopped=True,
                recording_id=self._recording_id,
                ending=Ending.CANCELLED,
                heard=self._heard,
            )
        )

    def _finish(self, done: AnswerDone) -> None:
        if not self._has_finished:
            self._has_finished = True
            self._session.emit(done)


class ChatRunner:
    """See the module's text."""

    def __init__(
        self,
        session: Session,
        view: ChatView,
        limits: ChatLimits,
        *,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._voices = voices
        self._seed = seed
        self._asked: asyncio.Future[RequestRun] = asyncio.get_running_loop().create_future()

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`. A second request is ignored, as everything but a stop."""
        match event:
            case ChatRequested() if not self._asked.done():
                self._session.enter(Phase.PREPARING)
                self._asked.set_result(
                    RequestRun(
                        self._session,
                        self._view,
                        event,
                        self._limits,
                        voices=self._voices,
                        seed=self._seed,
                    )
                )
            case StopRequested():
                self.stop_turn()
            case _:
                raise WrongPhase(type(event).__name__, self._session.phase)

    def expire(self, deadline: str) -> None:
        """See `Runner`."""
        if deadline == "stop":
            self._asked.result().finish_stopped()
            self._session.end(SessionEnded("done"))
        else:
            self._session.end(SessionEnded("timeout", elapsed_s=self._limits.setup_s))

    def stop_turn(self) -> bool:
        """End the answer; what there is of it becomes the whole."""
        if not self._asked.done():
            self._session.end(SessionEnded("stopped"))
            return True
        asked = self._asked.result()
        if not asked.is_stopped:
            asked.stop()
            self._session.deadlines.set("stop", self._session.clock.monotonic() + STOP_GRACE_S)
        return True

    async def run(self) -> SessionEnded:
        """See `Runner`."""
        session = self._session
        session.deadlines.set("setup", session.clock.monotonic() + self._limits.setup_s)
        asked = await asyncio.shield(self._asked)
        session.deadlines.clear("setup")
        await asked.answer()
        return SessionEnded("done")

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()


def sound_s_of(message: Message) -> float:
    """Seconds of sound in a message."""
    return sum(
        sound.duration_s
        for part in message.parts
        if isinstance(part, AudioPart | VideoPart)
        for sound in ([part.pcm] if isinstance(part, AudioPart) else part.clip.sounds)
    )
