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
    SessionEnded,
    SessionReady,
    SpeechChanged,
    StopRequested,
    TextInput,
    TurnStarted,
)
from parley.errors import InferenceFailed, InvalidRequest, SlotLost, WrongPhase
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Phase
from parley.protocol.values import FRAMES_LIMIT, Generation
from parley.session.early import EarlyPrefill
from parley.session.interruption import Interruptions
from parley.session.listening import ColdStart, SoundQueue, find
from parley.session.opened import Voices, no_voices, open_system, open_turn, open_voice
from parley.session.session import Session
from parley.session.silence import DEADLINE, MODEL_S, SPEECH_S, SilenceWatch
from parley.session.turn import TurnAnswer
from parley.vad import (
    DetectorFactory,
    SpeechBegan,
    SpeechEnded,
    Utterance,
    UtteranceFinder,
    VadEvent,
)
from parley.views.half_duplex import HalfDuplexView, TurnRequest

_log = logs.get(__name__)

TYPED_LIMIT: Final = 8
"""Written messages that may wait for their answer."""


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
        self._sounds = SoundQueue()
        self._typed: deque[TextInput] = deque()
        self._begun_s = session.clock.monotonic()
        self._guard_over = asyncio.Event()
        self._idle_s = 0.0
        self._idle_since_s = self._begun_s
        self._interruptions = Interruptions(
            session, index=lambda: self._turns - 1, stop=lambda _: self._be_cut()
        )
        self._silence = SilenceWatch(session)
        self._early = EarlyPrefill(session, view)
        self._speaks = True
        self._generation = Generation()
        self._turns = 0
        self._answer: TurnAnswer | None = None
        self._ends_after_turn = False

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`."""
        session = self._session
        match event:
            case HalfDuplexSetup() if not self._prepared.done():
                session.enter(Phase.PREPARING)
                self._prepared.set_result(event)
            case AudioInput(pcm) if self._interruptions.is_watching:
                self._interruptions.hear(pcm)
            case AudioInput(pcm) if session.phase is Phase.ACTIVE:
                self._interruptions.learn(pcm)
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
        self._sounds.put(pcm)
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
        if deadline == DEADLINE:
            self._silence.expire()
        elif deadline == "guard":
            self._guard_over.set()
        elif deadline == "played":
            self._changed.set()
        elif deadline == "stop":
            # The model is late. For the client the turn is over; sound stays unheard until the
            # model has really stopped.
            if self._answer is not None:
                self._answer.finish()
            if self._ends_after_turn:
                self._session.end(SessionEnded("stopped"))
        elif deadline == "idle":
            self._session.end(SessionEnded("timeout", elapsed_s=now_s - self._idle_since_s))
        else:
            self._session.end(SessionEnded("timeout", elapsed_s=now_s - self._begun_s))

    def stop_turn(self) -> bool:
        """Silence the answer in progress."""
        if self._session.phase is not Phase.GENERATING or self._answer is None:
            return False
        self._answer.stop()
        return True

    def _be_cut(self) -> None:
        """Somebody interrupts the answer that is made or heard."""
        self.stop_turn()
        self._changed.set()

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

        if prepared.wants_speech and not self._view.spec.can_speak:
            self._silence.tell("no_voice")
        session.deadlines.set("guard", now_s + self._limits.guard_s)
        await self._guard_over.wait()
        watching = asyncio.create_task(self._interruptions.run())
        try:
            await self._follow(await self._start_cold(finder), finder)
            while not self._ends_after_turn:
                pcm = await self._next_sound(reads=not finder.is_speaking)
                if pcm is None:
                    await self._take_turn(None)
                    finder.reset()
                    continue
                await self._follow(await find(finder, pcm), finder)
                self._early.follow(finder)
        finally:
            self._early.stop()
            watching.cancel()
        return SessionEnded("stopped")

    async def _start_cold(self, finder: UtteranceFinder) -> list[VadEvent]:
        """What the detector found in the first `guard_s` of sound."""
        start = ColdStart(self._limits.guard_s)
        while not start.is_over:
            pcm = await self._next_sound()
            if pcm is None:
                break
            rest = await start.feed(pcm, finder)
            if rest is not None:
                self._sounds.put_back(rest)
        return start.events(finder)

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()

    async def _prepare(self, prepared: HalfDuplexSetup) -> int:
        """Voice and system prompt; gives the prompt's length in tokens."""
        self._idle_s = prepared.idle_s
        self._speaks = prepared.wants_speech
        self._generation = prepared.generation
        self._interruptions.arm(prepared.interruption, self._detectors)
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
            if self._sounds:
                return self._sounds.take()
            self._changed.clear()
            await self._changed.wait()

    async def _follow(self, events: list[VadEvent], finder: UtteranceFinder) -> None:
        """Act on what the detector found in one stretch of sound, utterance by utterance."""
        has_answered = False
        for index, event in enumerate(events):
            match event:
                case SpeechBegan():
                    # Speech that goes on when the answers are out is not followed any further.
                    if index + 1 < len(events) or not has_answered:
                        self._session.emit(SpeechChanged(True))
                        self._silence.begin("speech_is_heard", SPEECH_S)
                case SpeechEnded(utterance=utterance):
                    self._silence.end()
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
        self._early.begin_turn()
        answer = self._answer = TurnAnswer(
            session, self._view, self._interruptions, self._turns, says=self._silence.end
        )
        self._turns += 1
        session.enter(Phase.GENERATING)
        session.deadlines.clear("idle")
        written, pictures = self._take_written()
        pcm = Pcm.empty(INPUT_RATE_HZ) if utterance is None else utterance.pcm
        speech_ms = 0 if utterance is None else utterance.speech_ms
        session.emit(TurnStarted(speech_ms, pcm, written, pictures))
        self._silence.begin("waiting_for_model", MODEL_S)
        asked = await open_turn(pcm, written, pictures)
        has_failed = not await answer.make(asked, self._generation, speaks=self._speaks)
        self._silence.end()
        answer.finish(has_failed=has_failed)
        self._be_idle_from(max(session.clock.monotonic(), self._interruptions.playback.ends_s))
        session.enter(Phase.ACTIVE)
        if self._interruptions.is_armed:
            await self._hear_out()

    def _take_written(self) -> tuple[str, tuple[bytes, ...]]:
        """Everything that was written since the last turn, and the newest pictures."""
        text = "\n".join(written.text for written in self._typed if written.text)
        pictures = tuple(file for written in self._typed for file in written.pictures)
        self._typed.clear()
        return text, pictures[-FRAMES_LIMIT:]

    async def _hear_out(self) -> None:
        """Until the answer has been played or interrupted; what was said meanwhile comes next."""
        interruptions = self._interruptions
        self._session.deadlines.set("played", interruptions.playback.ends_s)
        while (
            interruptions.playback.is_heard
            and not interruptions.is_cut
            and not self._ends_after_turn
            and not any(written.text for written in self._typed)
        ):
            self._changed.clear()
            await self._changed.wait()
        self._session.deadlines.clear("played")
        spoken = await interruptions.hand_over()
        if interruptions.is_cut:
            _, heard = interruptions.playback.heard()
            try:
                await self._view.cut_answer(heard)
            except SlotLost:
                raise
            except InferenceFailed:
                # The context is as it was before the answer: what was heard of it is forgotten.
                _log.warning("an answer could not be cut", turn=self._turns - 1, exc_info=True)
        self._view.clear_rollback_point()
        for pcm in spoken:
            self._hear(pcm)
