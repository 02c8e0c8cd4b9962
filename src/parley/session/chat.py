"""Runs chat requests: open one, prefill it, answer it.

Source: chat API; service.md 4.2; docs of the public MiniCPM-o project, realtime API, chat mode.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, Protocol

from parley.dialects.events import (
    AnswerDone,
    ChatOpened,
    ChatRequested,
    ClientEvent,
    Content,
    OutputDelta,
    Prefilled,
    ServerEvent,
    SessionEnded,
    SessionReady,
    StopRequested,
)
from parley.engine.work import PrefillResult
from parley.errors import BadInput, ContextFull, InvalidRequest, WrongPhase
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, in_pieces, join
from parley.media.room import ContextRoom
from parley.protocol.content import Message as AskedMessage
from parley.protocol.kinds import Ending, Phase
from parley.protocol.values import Generation, TokenLogprob, ToolResultPart, WordTime, media_path
from parley.session.opened import Voices, open_messages
from parley.session.session import Session
from parley.session.tool_calls import AnswerCalls, check_tools
from parley.settings import LimitSettings
from parley.views.chat import ChatView
from parley.views.content import AudioPart, Message, VideoPart

STOP_GRACE_S: Final = 0.25
"""Time for which a stopped model is waited for. Source: service.md 4.3, external stop."""


WAITING_MOST: Final = 1
"""Number of requests of a series that may wait for the current answer."""


class Asking(Protocol):
    """Owner of a request: a `Session`, or a comparison."""

    session_id: str

    def log(self, entry: ChatRequested) -> None: ...
    def emit(self, event: ServerEvent) -> None: ...
    def enter(self, phase: Phase) -> None: ...
    async def room(self) -> None: ...
    async def recording_id(self) -> str | None: ...


class RequestRun:
    """One request: opened, prefilled, answered. A stopped request also ends with `AnswerDone`."""

    def __init__(
        self,
        session: Asking,
        view: ChatView,
        asked: ChatRequested,
        *,
        voices: Voices,
        seed: int | None,
    ) -> None:
        self._session = session
        self._view = view
        self._asked = asked
        self._voices = voices
        self._seed = seed
        self.is_stopped = False
        self._has_finished = False
        self._input_tokens = 0
        self._heard = ""
        self._words: tuple[WordTime, ...] = ()
        self._text = ""
        self._sounds: list[Pcm] = []
        self._calls = AnswerCalls(session.emit, bool(asked.tools))
        self._pieces = 0
        self._recording_id: str | None = None

    async def answer(self) -> None:
        """Do everything up to `AnswerDone`.

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
        if asked.generation.top_logprobs is not None and not spec.reports_logprobs:
            raise InvalidRequest(
                "This model reports no probabilities of tokens.", field="top_logprobs"
            )
        voice = await self._voices.open(asked.voice, asked.voice_name)
        messages: Sequence[AskedMessage[Content]] = asked.messages
        while True:
            try:
                prefilled, sound_s = await self._prefill(messages, room, voice)
                break
            except ContextFull as full:
                fewer = without_oldest(messages, full) if asked.drops_oldest else messages
                if len(fewer) == len(messages):
                    raise
                messages = fewer
        self._input_tokens, self._heard = prefilled.context_tokens, prefilled.heard
        self._words = prefilled.words
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
            # If functions may be called, the text is parsed as it arrives: calls are not spoken.
            generate = self._stream if asked.is_streaming or asked.tools else self._whole
            await generate(asked.generation, speaks=asked.wants_speech)
        if self.is_stopped:
            self.finish_stopped()

    async def _prefill(
        self, messages: Sequence[AskedMessage[Content]], room: ContextRoom, voice: Pcm | None
    ) -> tuple[PrefillResult, float]:
        """Put these messages into the context; returns the seconds of sound in them, too."""
        asked = self._asked
        opened = await _opened(messages, room)
        prefilled = await self._view.prefill(
            self._session.session_id,
            opened,
            omni_mode=asked.is_omni,
            max_slice_nums=asked.max_slices,
            use_image_id=asked.numbers_images,
            voice=voice,
            speak=asked.wants_speech,
            tts_mode=asked.tts_mode,
            language=asked.language,
            tools=asked.tools,
            seed=self._seed if asked.seed is None else asked.seed,
            is_seed_chosen=asked.seed is not None,
        )
        return prefilled, sum(map(sound_s_of, opened))

    def stop(self) -> None:
        """End the answer; what was generated so far becomes the whole answer."""
        self.is_stopped = True
        self._view.stop_generation()

    async def _stream(self, generation: Generation, *, speaks: bool) -> None:
        chunks = self._view.streaming_generate(
            self._session.session_id, generation, generate_audio=speaks
        )
        async for chunk in chunks:
            self._emit(
                self._calls.add(chunk.text_delta or ""),
                None if self._calls.has_started else chunk.audio,
                chunk.logprobs,
            )
            await self._session.room()
        self._emit(self._calls.finish(), None)
        decoded = self._view.decoded
        assert decoded is not None
        if not self.is_stopped:
            # Audio that was already sent in pieces would be heard twice.
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

    def _emit(self, text: str, sound: Pcm | None, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        """The next piece; it is kept if the client wants only the whole answer."""
        self._text += text
        if self._asked.is_streaming:
            for piece in in_pieces(sound) or (None,):
                if text or piece is not None or logprobs or not self._asked.tools:
                    delta = OutputDelta(self._pieces, text, piece, logprobs=logprobs)
                    self._session.emit(delta)
                    self._pieces += 1
                text, logprobs = "", ()
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
                words=self._words,
                speech_tokens=answer.decoded.speech_tokens,
            )
        )

    def finish_stopped(self) -> None:
        """The partial result of a stopped answer, returned once."""
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
                speech_tokens=decoded.speech_tokens if decoded is not None else 0,
            )
        )

    def _finish(self, done: AnswerDone) -> None:
        if not self._has_finished:
            self._has_finished = True
            self._session.emit(done)


class ChatRunner:
    """Answers one request, or several on one connection, one after the other. Each contains its
    whole conversation; nothing is remembered between requests.

    Args:
        is_single: True if the connection is for one request, else for a series.
    """

    def __init__(
        self,
        session: Session,
        view: ChatView,
        limits: LimitSettings,
        *,
        is_single: bool,
        voices: Voices,
        seed: int | None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._is_single = is_single
        self._voices = voices
        self._seed = seed
        self._opened = asyncio.Event()
        self._asked = asyncio.Event()
        self._waiting: deque[RequestRun] = deque()
        self._running: RequestRun | None = None

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`. After a single request, everything except a stop is refused."""
        is_series, session = not self._is_single, self._session
        match event:
            case ChatOpened() if is_series:
                session.enter(Phase.PREPARING)
                self._opened.set()
            case ChatRequested() if is_series:
                if len(self._waiting) >= WAITING_MOST + (self._running is None):
                    raise InvalidRequest("A request is being answered, and another one waits.")
                self._ask(event)
            case ChatRequested() if not self._asked.is_set():
                session.enter(Phase.PREPARING)
                self._ask(event)
            case StopRequested() if is_series:
                session.end(SessionEnded("stopped"))
            case StopRequested():
                self.stop_turn()
            case _:
                raise WrongPhase(type(event).__name__, session.phase)

    def _ask(self, request: ChatRequested) -> None:
        self._waiting.append(
            RequestRun(self._session, self._view, request, voices=self._voices, seed=self._seed)
        )
        self._asked.set()

    def expire(self, deadline: str) -> None:
        if deadline == "stop":
            if self._running is not None:
                self._running.finish_stopped()
            self._session.end(SessionEnded("done"))
        else:
            self._session.end(SessionEnded("timeout", elapsed_s=self._limit_s(deadline)))

    def _limit_s(self, deadline: str) -> float:
        limits = self._limits
        return {
            "stop": STOP_GRACE_S,
            "setup": limits.chat_first_message_s,
            "idle": limits.chat_idle_s,
            "session": limits.half_duplex_session_s,
        }[deadline]

    def stop_turn(self) -> bool:
        """End the answer; what was generated so far becomes the whole answer."""
        is_single, running = self._is_single, self._running
        if is_single and self._waiting:
            running = self._waiting[0]
        if running is None:
            if is_single:
                self._session.end(SessionEnded("stopped"))
            return is_single
        if not running.is_stopped:
            running.stop()
            if is_single:
                self._set("stop")
        return True

    async def run(self) -> SessionEnded:
        session = self._session
        self._set("setup")
        if self._is_single:
            await self._next()
            await self._answer()
            return SessionEnded("done")
        await self._opened.wait()
        session.deadlines.clear("setup")
        self._set("session")
        session.enter(Phase.ACTIVE)
        session.emit(SessionReady())
        while True:
            self._set("idle")
            await self._next()
            session.enter(Phase.GENERATING)
            await self._answer()
            session.enter(Phase.ACTIVE)

    def _set(self, deadline: str) -> None:
        due_s = self._session.clock.monotonic() + self._limit_s(deadline)
        self._session.deadlines.set(deadline, due_s)

    async def _next(self) -> None:
        while not self._waiting:
            self._asked.clear()
            await self._asked.wait()
        self._session.deadlines.clear("setup", "idle")
        self._running = self._waiting.popleft()

    async def _answer(self) -> None:
        assert self._running is not None
        try:
            await self._running.answer()
        finally:
            self._running = None

    async def close(self) -> None:
        self._view.stop_generation()


def without_oldest(
    messages: Sequence[AskedMessage[Content]], full: ContextFull
) -> Sequence[AskedMessage[Content]]:
    """The messages without the oldest turns: about the share that did not fit. The system messages
    at the start and the last turn stay; if there is no other, all messages."""
    lead = len([*takewhile(lambda each: each.role == "system", messages)])
    starts = [index for index, each in enumerate(messages) if index > lead and _is_start(each)]
    if not starts:
        return messages
    kept = (full.limit or 0) / max(1, full.needed or 1)
    least = lead + (1 - kept) * (len(messages) - lead)
    start = next((each for each in starts if each >= least), starts[-1])
    return (*messages[:lead], *messages[start:])


def _is_start(message: AskedMessage[Content]) -> bool:
    """True if a turn starts with this message: results of functions belong to their calls."""
    has_results = any(isinstance(part, ToolResultPart) for part in message.parts)
    return message.role == "user" and not has_results


async def _opened(messages: Sequence[AskedMessage[Content]], room: ContextRoom) -> list[Message]:
    """The messages as the view takes them; errors name the field."""
    try:
        return await open_messages(messages, room=room, path_of=media_path)
    except BadInput as error:
        error.field = error.field or "messages"
        raise


def sound_s_of(message: Message) -> float:
    return sum(
        sound.duration_s
        for part in message.parts
        if isinstance(part, AudioPart | VideoPart)
        for sound in ([part.pcm] if isinstance(part, AudioPart) else part.clip.sounds)
    )
