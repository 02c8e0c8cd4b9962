"""Runs a conversation of turns: listen until somebody has finished, answer, listen again.

One task does everything in order: it takes sound out of a bounded buffer, looks for utterances,
and answers each one that it finds. While it answers, sound from the client is thrown away as it
comes; when the answer is out, the detector begins anew.

Source: half-duplex API; service.md 4.3; sessions.md 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from parley import logs
from parley.errors import InferenceFailed, SeatLost, WrongPhase
from parley.media.pcm import Pcm
from parley.session.events import (
    ClientEvent,
    Ended,
    Heard,
    Ready,
    Said,
    StopAsked,
    TurnBegan,
    TurnDone,
    TurnsPrepared,
    VoiceChanged,
)
from parley.session.life import Life
from parley.session.opened import Voices, no_voices, open_system, open_voice
from parley.vad import (
    DetectorFactory,
    SpeechBegan,
    SpeechEnded,
    Utterance,
    UtteranceFinder,
    VadEvent,
)
from parley.views.content import AudioPart, Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest
from parley.views.turns import Generation, StreamingChunk

STOP_GRACE_S: Final = 0.25
"""A model that has not stopped by then is not waited for. Source: service.md 7, stop to silence."""

BUFFER_S: Final = 120.0
"""Sound that may wait for the detector, which is a hundred times faster than speech; beyond it the
oldest is dropped."""

TURN_DUE_S: Final = 5.0
"""An answer goes before requests nobody waits at, and after the units of live conversations."""


_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What a server allows.

    Args:
        setup_s: from the beginning to `prepare`.
        session_s: from `Ready` to the end.
        voice_s: longest reference voice.
        guard_s: for so long after `Ready` nothing is heard, because opening a microphone clicks.
    """

    setup_s: float = 30.0
    session_s: float = 1800.0
    voice_s: float = 60.0
    guard_s: float = 0.5


class HalfDuplexDriver:
    """See the module's text."""

    def __init__(
        self,
        life: Life,
        view: HalfDuplexView,
        limits: TurnLimits,
        *,
        detectors: DetectorFactory,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._life = life
        self._view = view
        self._limits = limits
        self._detectors = detectors
        self._voices = voices
        self._seed = seed
        self._prepared: asyncio.Future[TurnsPrepared] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._buffer: deque[Pcm] = deque()
        self._buffered_s = 0.0
        self._begun_s = life.clock.monotonic()
        self._guarded_until_s = 0.0
        self._idle_s = 0.0
        self._idle_since_s = self._begun_s
        self._playing_until_s = 0.0
        self._speaks = True
        self._generation = Generation()
        self._turn = 0
        self._turn_is_open = False
        self._text = ""
        self._audio_ms = 0
        self._is_interrupted = False
        self._ends_after_turn = False

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        """See `Driver`."""
        life = self._life
        match event:
            case TurnsPrepared() if not self._prepared.done():
                life.enter("preparing")
                self._prepared.set_result(event)
            case Heard(pcm) if life.phase == "active":
                self._hear(pcm)
            case Heard() if life.phase == "generating":
                # The microphone hears the loudspeaker now.
                return
            case StopAsked() if life.phase == "generating":
                self._ends_after_turn = True
                self.stop_turn()
            case StopAsked():
                life.end(Ended("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, life.phase)

    def _hear(self, pcm: Pcm) -> None:
        now_s = self._life.clock.monotonic()
        self._be_idle_from(now_s)
        if now_s < self._guarded_until_s:
            return
        self._buffer.append(pcm)
        self._buffered_s += pcm.duration_s
        while self._buffered_s > BUFFER_S and len(self._buffer) > 1:
            self._buffered_s -= self._buffer.popleft().duration_s
        self._changed.set()

    def _be_idle_from(self, since_s: float) -> None:
        self._idle_since_s = since_s
        self._life.deadlines.set("idle", since_s + self._idle_s)

    # ---- what time does --------------------------------------------------------------------

    def expire(self, deadline: str) -> None:
        """See `Driver`."""
        now_s = self._life.clock.monotonic()
        if deadline == "stop":
            # The model is late. For the client the turn is over; sound stays unheard until the
            # model has really stopped.
            self._finish_turn()
            if self._ends_after_turn:
                self._life.end(Ended("stopped"))
        elif deadline == "idle":
            self._life.end(Ended("timeout", elapsed_s=now_s - self._idle_since_s))
        else:
            self._life.end(Ended("timeout", elapsed_s=now_s - self._begun_s))

    def stop_turn(self) -> bool:
        """Silence the answer in progress."""
        if self._life.phase != "generating":
            return False
        if not self._is_interrupted:
            self._is_interrupted = True
            self._view.stop_generation()
            self._life.deadlines.set("stop", self._life.clock.monotonic() + STOP_GRACE_S)
        return True

    # ---- the conversation ------------------------------------------------------------------

    async def run(self) -> Ended:
        """See `Driver`."""
        life = self._life
        life.deadlines.set("setup", self._begun_s + self._limits.setup_s)
        prepared = await self._prepared
        life.deadlines.clear("setup")
        finder = UtteranceFinder(self._detectors(), prepared.vad)
        prompt_tokens = await self._prepare(prepared)

        now_s = self._begun_s = life.clock.monotonic()
        self._guarded_until_s = now_s + self._limits.guard_s
        life.deadlines.set("session", now_s + self._limits.session_s)
        self._be_idle_from(now_s)
        life.enter("active")
        life.emit(Ready(prompt_tokens=prompt_tokens, idle_s=prepared.idle_s))

        while not self._ends_after_turn:
            pcm = await self._next_sound()
            # The detector takes a few milliseconds per second of sound: not on the event loop.
            await self._follow(await asyncio.to_thread(finder.feed, pcm), finder)
        return Ended("stopped")

    async def close(self) -> None:
        """See `Driver`."""
        self._view.stop_generation()

    async def _prepare(self, prepared: TurnsPrepared) -> int:
        """Voice and system prompt; gives the prompt's length in tokens."""
        self._idle_s = prepared.idle_s
        self._speaks = prepared.wants_speech
        self._generation = prepared.generation
        session_id = self._life.session_id
        system = await open_system(prepared.system)
        voice = await open_voice(
            prepared.voice, None, voices=self._voices, limit_s=self._limits.voice_s
        )
        self._view.init_ref_audio_from_data(voice)
        await self._view.reset_session(session_id, speak=self._speaks, seed=self._seed)
        prefilled = await self._view.prefill(TurnRequest(session_id, (system,)))
        return prefilled.context_tokens

    async def _next_sound(self) -> Pcm:
        while not self._buffer:
            self._changed.clear()
            await self._changed.wait()
        pcm = self._buffer.popleft()
        self._buffered_s -= pcm.duration_s
        return pcm

    async def _follow(self, events: list[VadEvent], finder: UtteranceFinder) -> None:
        """Act on what the detector found in one stretch of sound, utterance by utterance."""
        has_answered = False
        for index, event in enumerate(events):
            match event:
                case SpeechBegan():
                    # Speech that goes on when the answers are out is not followed any further.
                    if index + 1 < len(events) or not has_answered:
                        self._life.emit(VoiceChanged(True))
                case SpeechEnded(utterance=utterance):
                    self._life.emit(VoiceChanged(False))
                    if utterance is not None and not self._ends_after_turn:
                        await self._take_turn(utterance)
                        has_answered = True
        if has_answered:
            finder.reset()

    # ---- one turn --------------------------------------------------------------------------

    async def _take_turn(self, utterance: Utterance) -> None:
        """Answer an utterance, and be ready for the next.

        Raises:
            InferenceFailed: the model failed and its context could not be restored.
            ContextFull: there is no room for the utterance.
        """
        life = self._life
        self._text, self._audio_ms = "", 0
        self._is_interrupted, self._turn_is_open = False, True
        life.enter("generating")
        life.deadlines.clear("idle")
        life.emit(TurnBegan(utterance.speech_ms, utterance.pcm))
        has_failed = not await self._answer(utterance.pcm)
        self._finish_turn(has_failed=has_failed)
        self._be_idle_from(max(life.clock.monotonic(), self._playing_until_s))
        life.enter("active")

    async def _answer(self, pcm: Pcm) -> bool:
        """Prefill and answer; False if the model failed and is as it was before."""
        view, session_id = self._view, self._life.session_id
        due_s = self._life.clock.monotonic() + TURN_DUE_S
        try:
            spoken = Message("user", (AudioPart(pcm),))
            # When this fails, the view has already put the context back.
            await view.prefill(TurnRequest(session_id, (spoken,)), due_s=due_s)
        except SeatLost:
            raise
        except InferenceFailed:
            _log.warning("turn failed", during="prefill", turn=self._turn, exc_info=True)
            return False
        if self._is_interrupted:
            return True
        try:
            await self._stream(due_s)
        except SeatLost:
            raise
        except InferenceFailed:
            _log.warning("turn failed", during="generate", turn=self._turn, exc_info=True)
            if not await view.can_rollback() or not (await view.rollback()).success:
                raise
            return False
        view.clear_rollback_point()
        return True

    async def _stream(self, due_s: float) -> None:
        chunks = self._view.generate(
            self._life.session_id,
            self._generation,
            generate_audio=self._speaks,
            due_s=due_s,
        )
        async for chunk in chunks:
            if self._turn_is_open:
                self._say(chunk)
                await self._life.room()

    def _say(self, chunk: StreamingChunk) -> None:
        self._text += chunk.text_delta or ""
        self._audio_ms += chunk.duration_ms
        if chunk.duration_ms:
            now_s = self._life.clock.monotonic()
            self._playing_until_s = max(self._playing_until_s, now_s) + chunk.duration_ms / 1000
        self._life.emit(
            Said(
                chunk.chunk_index,
                chunk.text_delta or "",
                chunk.audio,
                is_final=chunk.is_final,
                duration_ms=chunk.duration_ms,
            )
        )

    def _finish_turn(self, *, has_failed: bool = False) -> None:
        """Tell that the turn is over; once per turn."""
        self._life.deadlines.clear("stop")
        if not self._turn_is_open:
            return
        self._turn_is_open = False
        if self._is_interrupted:
            # The client throws away what it has not played.
            self._playing_until_s = self._life.clock.monotonic()
        self._life.emit(
            TurnDone(
                self._turn,
                self._text,
                audio_ms=self._audio_ms,
                is_interrupted=self._is_interrupted,
                has_failed=has_failed,
            )
        )
        self._turn += 1
