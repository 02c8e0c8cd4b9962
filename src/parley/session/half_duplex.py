"""Runs a conversation of turns: listen until somebody has finished, answer, listen again.

One task does everything in order: it takes sound out of a bounded buffer, looks for utterances,
and answers each one that it finds. While it answers, sound from the client is thrown away as it
comes; when the answer is out, the detector begins anew. With `interruption` on, sound is heard
while the answer is made and until it has been played: speech then ends the answer, the context
holds what was heard of it, and what was said is the beginning of the next turn.

Source: half-duplex API; service.md 4.3; sessions.md 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from parley import logs
from parley.dialects.events import (
    AudioInput,
    ClientEvent,
    HalfDuplexSetup,
    InterruptionChanged,
    OutputDelta,
    SessionEnded,
    SessionReady,
    SpeechChanged,
    StopRequested,
    TextInput,
    TurnCompleted,
    TurnStarted,
    UserTranscribed,
)
from parley.errors import InferenceFailed, InvalidRequest, SlotLost, WrongPhase
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Phase
from parley.protocol.values import FRAMES_LIMIT, Generation, InterruptionState
from parley.session.interruption import InterruptionWatch, Playback
from parley.session.opened import Voices, no_voices, open_system, open_turn, open_voice
from parley.session.session import Session
from parley.vad import (
    DetectorFactory,
    SpeechBegan,
    SpeechEnded,
    Utterance,
    UtteranceFinder,
    VadEvent,
)
from parley.vad.interruption import Interrupted, InterruptionEvent, SpeechOver
from parley.views.content import Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest
from parley.views.turns import StreamingChunk

STOP_GRACE_S: Final = 0.25
"""A model that has not stopped by then is not waited for. Source: service.md 7, stop to silence."""

BUFFER_S: Final = 120.0
"""Sound that may wait for the detector, which is a hundred times faster than speech; beyond it the
oldest is dropped."""

TYPED_LIMIT: Final = 8
"""Written messages that may wait for their answer."""

TURN_DUE_S: Final = 5.0
"""An answer goes before requests nobody waits at, and after the units of live conversations."""


_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What a server allows.

    Args:
        setup_s: from the beginning to `prepare`.
        session_s: from `SessionReady` to the end.
        voice_s: longest reference voice.
        guard_s: for so long after `SessionReady` nothing is told, and the clicks of a microphone
        that
            opens are forgotten; speech in that time is heard when it is over.
    """

    setup_s: float
    session_s: float
    voice_s: float
    guard_s: float


class HalfDuplexRunner:
    """See the module's text."""

    def __init__(
        self,
        session: Session,
        view: HalfDuplexView,
        limits: TurnLimits,
        *,
        detectors: DetectorFactory,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._detectors = detectors
        self._voices = voices
        self._seed = seed
        self._prepared: asyncio.Future[HalfDuplexSetup] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._buffer: deque[Pcm] = deque()
        self._buffered_s = 0.0
        self._typed: deque[TextInput] = deque()
        self._begun_s = session.clock.monotonic()
        self._guard_over = asyncio.Event()
        self._idle_s = 0.0
        self._idle_since_s = self._begun_s
        self._playback = Playback(session.clock)
        self._watch: InterruptionWatch | None = None
        self._is_watching = False
        self._is_cut = False
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
        """See `Runner`."""
        session = self._session
        match event:
            case HalfDuplexSetup() if not self._prepared.done():
                session.enter(Phase.PREPARING)
                self._prepared.set_result(event)
            case AudioInput(pcm) if self._is_watching and self._watch is not None:
                self._watch.hear(pcm)
            case AudioInput(pcm) if session.phase is Phase.ACTIVE:
                if self._watch is not None:
                    self._watch.learn(pcm)
                self._hear(pcm)
            case AudioInput() if session.phase is Phase.GENERATING:
                # The microphone hears the loudspeaker now.
                return
            case TextInput() if session.phase in (Phase.ACTIVE, Phase.GENERATING):
                self._read(event)
            case StopRequested() if session.phase is Phase.GENERATING:
                self._ends_after_turn = True
                self.stop_turn()
            case StopRequested():
                session.end(SessionEnded("stopped"))
            case _:
                raise WrongPhase(type(event).__name__, session.phase)

    def _hear(self, pcm: Pcm) -> None:
        now_s = self._session.clock.monotonic()
        self._be_idle_from(now_s)
        self._buffer.append(pcm)
        self._buffered_s += pcm.duration_s
        while self._buffered_s > BUFFER_S and len(self._buffer) > 1:
            self._buffered_s -= self._buffer.popleft().duration_s
        self._changed.set()

    def _read(self, written: TextInput) -> None:
        if len(self._typed) >= TYPED_LIMIT:
            raise InvalidRequest(
                f"{TYPED_LIMIT} written messages wait for an answer; send this one later.",
                field="text",
            )
        self._typed.append(written)
        if self._session.phase is Phase.ACTIVE:
            self._be_idle_from(self._session.clock.monotonic())
        self._changed.set()

    def _be_idle_from(self, since_s: float) -> None:
        self._idle_since_s = since_s
        self._session.deadlines.set("idle", since_s + self._idle_s)

    # ---- what time does --------------------------------------------------------------------

    def expire(self, deadline: str) -> None:
        """See `Runner`."""
        now_s = self._session.clock.monotonic()
        if deadline == "guard":
            self._guard_over.set()
        elif deadline == "played":
            self._changed.set()
        elif deadline == "stop":
            # The model is late. For the client the turn is over; sound stays unheard until the
            # model has really stopped.
            self._finish_turn()
            if self._ends_after_turn:
                self._session.end(SessionEnded("stopped"))
        elif deadline == "idle":
            self._session.end(SessionEnded("timeout", elapsed_s=now_s - self._idle_since_s))
        else:
            self._session.end(SessionEnded("timeout", elapsed_s=now_s - self._begun_s))

    def stop_turn(self) -> bool:
        """Silence the answer in progress."""
        if self._session.phase is not Phase.GENERATING:
            return False
        if not self._is_interrupted:
            self._is_interrupted = True
            self._view.stop_generation()
            self._session.deadlines.set("stop", self._session.clock.monotonic() + STOP_GRACE_S)
        return True

    # ---- the conversation ------------------------------------------------------------------

    async def run(self) -> SessionEnded:
        """See `Runner`."""
        session = self._session
        session.deadlines.set("setup", self._begun_s + self._limits.setup_s)
        prepared = await self._prepared
        session.deadlines.clear("setup")
        finder = UtteranceFinder(self._detectors(), prepared.vad)
        prompt_tokens = await self._prepare(prepared)
        recording_id = await session.recording_id()

        now_s = self._begun_s = session.clock.monotonic()
        session.deadlines.set("session", now_s + self._limits.session_s)
        self._be_idle_from(now_s)
        session.enter(Phase.ACTIVE)
        session.emit(SessionReady(prompt_tokens, prepared.idle_s, recording_id, reads=True))

        session.deadlines.set("guard", now_s + self._limits.guard_s)
        await self._guard_over.wait()
        watching = None if self._watch is None else asyncio.create_task(self._watch.run())
        try:
            await self._follow(await self._guarded_events(finder), finder)
            while not self._ends_after_turn:
                pcm = await self._next_sound(reads=not finder.is_speaking)
                if pcm is None:
                    await self._take_turn(None)
                    finder.reset()
                    continue
                # The detector takes a few milliseconds per second of sound: not on the event loop.
                await self._follow(await asyncio.to_thread(finder.feed, pcm), finder)
        finally:
            if watching is not None:
                watching.cancel()
        return SessionEnded("stopped")

    async def _guarded_events(self, finder: UtteranceFinder) -> list[VadEvent]:
        """What the detector found in the first `guard_s` of sound, without the noise of a
        microphone that opens: bursts too short to be an utterance.

        The text wants the detector's results ignored for so long, not the sound: whoever speaks at
        once, or sends a file without pauses, is heard from the first word.
        Source: half-duplex API, "Cold start guard".
        """
        left = round(self._limits.guard_s * INPUT_RATE_HZ)
        events: list[VadEvent] = []
        while left > 0:
            pcm = await self._next_sound()
            if pcm is None:
                break
            if len(pcm) > left:
                rest = pcm.slice(left)
                self._buffer.appendleft(rest)
                self._buffered_s += rest.duration_s
                pcm = pcm.slice(0, left)
            left -= len(pcm)
            events += await asyncio.to_thread(finder.feed, pcm)
        finder.drop_noise()
        kept: list[VadEvent] = []
        for event in events:
            match event:
                case SpeechEnded(utterance=None):
                    kept.pop()
                case _:
                    kept.append(event)
        if kept and isinstance(kept[-1], SpeechBegan) and not finder.is_speaking:
            kept.pop()
        return kept

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()

    async def _prepare(self, prepared: HalfDuplexSetup) -> int:
        """Voice and system prompt; gives the prompt's length in tokens."""
        self._idle_s = prepared.idle_s
        self._speaks = prepared.wants_speech
        self._generation = prepared.generation
        if prepared.interruption.mode != "off":
            self._watch = InterruptionWatch(
                prepared.interruption, self._detectors, self._on_interruption
            )
        session_id = self._session.session_id
        system = await open_system(prepared.system)
        voice = await open_voice(
            prepared.voice,
            prepared.voice_name,
            voices=self._voices,
            limit_s=self._limits.voice_s,
        )
        self._view.init_ref_audio_from_data(voice)
        await self._view.reset_session(session_id, speak=self._speaks, seed=self._seed)
        prefilled = await self._view.prefill(TurnRequest(session_id, (system,)))
        return prefilled.context_tokens

    async def _next_sound(self, *, reads: bool = True) -> Pcm | None:
        """The next piece of sound; None when something written is to be answered first, which
        waits while somebody speaks (`reads` False) and is answered with what they say."""
        while True:
            if reads and any(written.text for written in self._typed):
                return None
            if self._buffer:
                break
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
                        self._session.emit(SpeechChanged(True))
                case SpeechEnded(utterance=utterance):
                    self._session.emit(SpeechChanged(False))
                    if utterance is not None and not self._ends_after_turn:
                        await self._take_turn(utterance)
                        has_answered = True
        if has_answered:
            finder.reset()

    # ---- one turn --------------------------------------------------------------------------

    async def _take_turn(self, utterance: Utterance | None) -> None:
        """Answer an utterance and what was written, and be ready for the next.

        Args:
            utterance: None: only what was written.

        Raises:
            InferenceFailed: the model failed and its context could not be restored.
            ContextFull: there is no room for it.
        """
        session = self._session
        self._text, self._audio_ms = "", 0
        self._is_interrupted, self._turn_is_open, self._is_cut = False, True, False
        self._playback.begin()
        self._is_watching = self._watch is not None
        session.enter(Phase.GENERATING)
        session.deadlines.clear("idle")
        written, pictures = self._take_written()
        pcm = Pcm.empty(INPUT_RATE_HZ) if utterance is None else utterance.pcm
        speech_ms = 0 if utterance is None else utterance.speech_ms
        session.emit(TurnStarted(speech_ms, pcm, written, pictures))
        has_failed = not await self._answer(await open_turn(pcm, written, pictures))
        self._finish_turn(has_failed=has_failed)
        self._be_idle_from(max(session.clock.monotonic(), self._playback.ends_s))
        session.enter(Phase.ACTIVE)
        if self._watch is not None:
            await self._hear_out(self._watch)

    def _take_written(self) -> tuple[str, tuple[bytes, ...]]:
        """Everything that was written since the last turn, and the newest pictures."""
        text = "\n".join(written.text for written in self._typed if written.text)
        pictures = tuple(file for written in self._typed for file in written.pictures)
        self._typed.clear()
        return text, pictures[-FRAMES_LIMIT:]

    async def _hear_out(self, watch: InterruptionWatch) -> None:
        """Until the answer has been played or interrupted; what was said meanwhile comes next."""
        self._session.deadlines.set("played", self._playback.ends_s)
        while (
            self._playback.is_heard
            and not self._is_cut
            and not self._ends_after_turn
            and not any(written.text for written in self._typed)
        ):
            self._changed.clear()
            await self._changed.wait()
        self._session.deadlines.clear("played")
        spoken = await watch.hand_over()
        self._is_watching = False
        if self._is_cut:
            _, heard = self._playback.heard()
            try:
                await self._view.cut_answer(heard)
            except SlotLost:
                raise
            except InferenceFailed:
                # The context is as it was before the answer: what was heard of it is forgotten.
                _log.warning("an answer could not be cut", turn=self._turn_shown, exc_info=True)
        self._view.clear_rollback_point()
        for pcm in spoken:
            self._hear(pcm)

    def _on_interruption(self, event: InterruptionEvent) -> None:
        """What the watch has found while the answer is made or played."""
        watch = self._watch
        if watch is None or not self._is_watching or self._is_cut:
            return
        state: InterruptionState = "suspected"
        if isinstance(event, SpeechOver):
            state = "dismissed"
        elif isinstance(event, Interrupted):
            if watch.options.mode != "stop":
                return
            state = "stopped"
            # The fence: nothing of this answer is sent from here on.
            self._is_cut = True
            self._playback.cut()
            self._session.drop_output()
        heard_ms, text = self._playback.heard()
        self._session.emit(InterruptionChanged(state, self._turn_shown, heard_ms, text))
        if self._is_cut:
            self.stop_turn()
            self._changed.set()

    async def _answer(self, asked: Message) -> bool:
        """Prefill and answer; False if the model failed and is as it was before."""
        view, session_id = self._view, self._session.session_id
        due_s = self._session.clock.monotonic() + TURN_DUE_S
        try:
            # When this fails, the view has already put the context back.
            prefilled = await view.prefill(TurnRequest(session_id, (asked,)), due_s=due_s)
        except SlotLost:
            raise
        except InferenceFailed:
            _log.warning("turn failed", during="prefill", turn=self._turn, exc_info=True)
            return False
        self._transcribed(prefilled.heard)
        if self._is_interrupted:
            return True
        try:
            await self._stream(due_s)
            if not prefilled.heard and view.decoded is not None:
                self._transcribed(view.decoded.heard)
        except SlotLost:
            raise
        except InferenceFailed:
            _log.warning("turn failed", during="generate", turn=self._turn, exc_info=True)
            if not await view.can_rollback() or not (await view.rollback()).success:
                raise
            return False
        if self._watch is None:
            view.clear_rollback_point()
        return True

    def _transcribed(self, text: str) -> None:
        if text:
            self._session.emit(UserTranscribed(self._turn, text))

    async def _stream(self, due_s: float) -> None:
        chunks = self._view.generate(
            self._session.session_id,
            self._generation,
            generate_audio=self._speaks,
            due_s=due_s,
        )
        async for chunk in chunks:
            if self._turn_is_open and not self._is_cut:
                self._say(chunk)
                await self._session.room()

    def _say(self, chunk: StreamingChunk) -> None:
        self._text += chunk.text_delta or ""
        self._audio_ms += chunk.duration_ms
        self._playback.send(chunk.text_delta or "", chunk.duration_ms)
        if self._watch is not None and chunk.audio is not None:
            self._watch.play(chunk.audio)
        self._session.emit(
            OutputDelta(
                chunk.chunk_index,
                chunk.text_delta or "",
                chunk.audio,
                is_final=chunk.is_final,
                duration_ms=chunk.duration_ms,
            )
        )

    def _finish_turn(self, *, has_failed: bool = False) -> None:
        """Tell that the turn is over; once per turn."""
        self._session.deadlines.clear("stop")
        if not self._turn_is_open:
            return
        self._turn_is_open = False
        if self._is_interrupted and not self._is_cut:
            # The client throws away what it has not played.
            self._playback.cut()
        if self._is_cut:
            heard_ms, self._text = self._playback.heard()
            self._audio_ms = heard_ms
        self._session.emit(
            TurnCompleted(
                self._turn,
                self._text,
                audio_ms=self._audio_ms,
                is_interrupted=self._is_interrupted,
                has_failed=has_failed,
            )
        )
        self._turn += 1

    @property
    def _turn_shown(self) -> int:
        """The number of the answer that is made or played."""
        return self._turn if self._turn_is_open else self._turn - 1
