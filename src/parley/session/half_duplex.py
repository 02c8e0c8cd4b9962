"""Runs a conversation of turns: listen until the user has finished, answer, listen again.

One task does everything in order: it takes sound out of a bounded buffer, looks for utterances,
and answers each one that it finds. While it answers, sound from the client is thrown away as it
comes; when the answer is out, the detector starts again. With `interruption` on, sound is heard
while the answer is made and until it has been played: speech then ends the answer, the context
holds what was heard of it, and what was said is the beginning of the next turn.

Source: service.md 4.3; sessions.md 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley import logs
from parley.dialects.events import (
    AudioInput,
    ClientEvent,
    HalfDuplexSetup,
    SessionEnded,
    SessionReady,
    SpeechStarted,
    SpeechStopped,
    StopRequested,
    TextInput,
    TurnStarted,
)
from parley.errors import InferenceFailed, InvalidRequest, SlotLost, WrongPhase
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Phase
from parley.protocol.values import FRAMES_LIMIT
from parley.session.early import EarlyAnswer
from parley.session.entries import Answered, Cut
from parley.session.interruption import Interruptions
from parley.session.listening import (
    QUIET,
    ColdStart,
    SoundQueue,
    find,
    silence_of,
    wait_for_silence,
)
from parley.session.opened import Voices, no_voices, open_turn
from parley.session.replay import TurnFeed, replay, turns_without_old_sound
from parley.session.session import Session
from parley.session.silence import DEADLINE, MODEL_S, SPEECH_S, SilenceWatch
from parley.session.turn import TURN_DUE_S, TurnAnswer
from parley.turns import NO_JUDGES, TurnJudges
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
        judges: TurnJudges = NO_JUDGES,
        voices: Voices = no_voices,
        seed: int | None = None,
    ) -> None:
        self._session = session
        self._view = view
        self._limits = limits
        self._detectors = detectors
        self._judges = judges
        self._feed = TurnFeed(
            view, session.session_id, voices=voices, voice_s=limits.voice_s, seed=seed
        )
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
        self._early = EarlyAnswer(self._answer_early, view.stop_early)
        self._turns = 0
        self._answer: TurnAnswer | None = None
        self._ends_after_turn = False
        self._finder: UtteranceFinder | None = None
        """None until the conversation has been set up."""
        self._found: deque[VadEvent] = deque()
        """What the detector found and the runner has not acted on."""
        self._cold_start = ColdStart(limits.guard_s)
        self._is_warm = self._is_hearing = self._is_answering = self._has_answered = False
        self._broken_off: dict[str, Any] | None = None
        """An answer that was being made elsewhere."""
        self._was_broken_off = False
        """True if one ended there of which the client had heard something."""
        self._said_before: Answered | None = None
        """What the context holds of it."""
        self._asked: TurnStarted | None = None
        """What it answers, if nothing of it was told."""

    # ---- what the client does --------------------------------------------------------------

    def accept(self, event: ClientEvent) -> None:
        """See `Runner`."""
        session = self._session
        match event:
            case HalfDuplexSetup() if not self._prepared.done():
                session.enter(Phase.PREPARING)
                self._prepared.set_result(event)
            case AudioInput() if self._was_broken_off and session.hears_what_is_past:
                # It came while the answer was said that ended with its worker.
                return
            case AudioInput(pcm) if self._is_stopping:
                # The client knows that the turn is over; the model has not stopped yet.
                self._interruptions.report(event.playback)
                self._sounds.put(pcm)
                self._changed.set()
            case AudioInput(pcm) if self._interruptions.is_watching:
                self._interruptions.report(event.playback)
                self._interruptions.hear(pcm)
            case AudioInput(pcm) if session.phase is Phase.ACTIVE:
                self._interruptions.report(event.playback)
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

    @property
    def _is_stopping(self) -> bool:
        """True if a stopped answer is over for the client, and not yet here: what is said now
        belongs to the next turn."""
        answer = self._answer
        is_busy = self._session.phase is Phase.GENERATING or self._interruptions.is_watching
        return is_busy and answer is not None and answer.is_stopped and not answer.is_open

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
        elif deadline == QUIET and self._finder is not None:
            self._sounds.put(silence_of(self._finder))
            self._changed.set()
        elif deadline == "stop":
            # The model is late. For the client the turn is over: what it sends from now on is kept
            # until the model has really stopped.
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
        if self._finder is None:
            self._finder = await self._set_up()
        await self._guard_over.wait()
        watching = asyncio.create_task(self._interruptions.run())
        try:
            await self._finish_broken_off()
            if not self._is_warm:
                await self._start_cold(self._finder)
            await self._follow(self._finder)
            while not self._ends_after_turn:
                pcm = await self._next_sound(reads=not self._finder.is_speaking)
                if pcm is None:
                    await self._take_turn(None)
                    self._finder.reset()
                    continue
                await self._hear_with(self._finder, pcm)
                await self._follow(self._finder)
                wait_for_silence(self._session, self._finder)
                if not self._cold_start.is_undecided:
                    self._early.follow(self._finder)
        finally:
            self._early.end()
            watching.cancel()
        return SessionEnded("stopped")

    async def _set_up(self) -> UtteranceFinder:
        """Until the client knows that it may speak."""
        session = self._session
        session.deadlines.set("setup", self._begun_s + self._limits.setup_s)
        prepared = await self._prepared
        session.deadlines.clear("setup")
        finder = self._finder_of(prepared)
        prompt_tokens = await self._prepare(prepared)
        session.log(prepared)
        recording_id = await session.recording_id()

        now_s = self._begun_s = session.clock.monotonic()
        session.deadlines.set("session", now_s + self._limits.session_s)
        session.deadlines.set("guard", now_s + self._limits.guard_s)
        self._be_idle_from(now_s)
        session.enter(Phase.ACTIVE)
        self._finder = finder
        session.emit(SessionReady(prompt_tokens, prepared.idle_s, recording_id, reads=True))

        if prepared.wants_speech and not self._view.spec.can_speak:
            self._silence.tell("no_voice")
        return finder

    def _finder_of(self, prepared: HalfDuplexSetup) -> UtteranceFinder:
        silence = self._judges.silence(prepared.vad)
        return UtteranceFinder(self._detectors(), prepared.vad, silence)

    async def _hear_with(self, finder: UtteranceFinder, pcm: Pcm) -> None:
        """What the detector finds in the next sound is `_found`."""
        self._is_hearing = True
        try:
            found = await find(finder, pcm)
            self._found.extend(self._cold_start.counted(found, finder))
        finally:
            self._is_hearing = False

    async def _start_cold(self, finder: UtteranceFinder) -> None:
        """What the detector finds in the first `guard_s` of sound is `_found`."""
        start = self._cold_start
        while not start.is_over:
            pcm = await self._next_sound()
            if pcm is None:
                break
            self._is_hearing = True
            rest = await start.feed(pcm, finder)
            if rest is not None:
                self._sounds.put_back(rest)
            self._is_hearing = False
        self._found.extend(start.counted([], finder))
        self._is_warm = True

    # ---- another worker continues ------------------------------------------------------------

    @property
    def is_between(self) -> bool:
        """See `RebuildableRunner`."""
        return not self._is_answering

    def first_entry(self) -> None:
        """See `RebuildableRunner`."""

    def remembered(self) -> dict[str, Any] | None:
        """See `RebuildableRunner`."""
        if self._is_hearing or self._finder is None:
            return None
        now_s = self._session.clock.monotonic()
        answer = self._answer if self._is_answering else None
        return {
            "turns": self._turns,
            "sounds": self._sounds.pieces,
            "typed": self._typed,
            "found": self._found,
            "finder": self._finder.remembered(),
            "is_warm": self._is_warm,
            "cold_start": self._cold_start.remembered(),
            "has_answered": self._has_answered,
            "answer": None if answer is None else answer.remembered(),
            "ends_after_turn": self._ends_after_turn,
            "begun_ago_s": now_s - self._begun_s,
            "idle_ago_s": now_s - self._idle_since_s,
        }

    async def rebuild(self, log: Sequence[Any], remembered: dict[str, Any]) -> None:
        """See `RebuildableRunner`."""
        prepared, *turns = log
        self._prepared.set_result(prepared)
        self._finder = self._finder_of(prepared)
        await self._prepare(prepared)
        now_s = self._session.clock.monotonic()
        self._turns, self._is_warm = remembered["turns"], remembered["is_warm"]
        self._has_answered = remembered["has_answered"]
        self._ends_after_turn = remembered["ends_after_turn"]
        told = self._broken_off = remembered["answer"]
        self._typed, self._found = remembered["typed"], remembered["found"]
        for pcm in remembered["sounds"]:
            self._sounds.put(pcm)
        self._finder.restore(remembered["finder"])
        self._cold_start.restore(remembered["cold_start"])
        self._begun_s = now_s - remembered["begun_ago_s"]
        self._idle_since_s = now_s - remembered["idle_ago_s"]
        if self._session.deadlines.get("guard") is None:
            self._guard_over.set()
        await replay(self._feed, turns)
        if told is not None and (told["text"] or told["audio_ms"] or not told["is_open"]):
            self._was_broken_off = not self._interruptions.is_armed
            self._said_before = Answered(is_heard=True, said=told["text"], is_whole=False)
            await replay(self._feed, [self._said_before])
        self._asked = self._feed.asked

    def without_old_sound(self, log: Sequence[Any]) -> list[Any]:
        """See `RebuildableRunner`."""
        return turns_without_old_sound(log)

    async def _finish_broken_off(self) -> None:
        """The answer that was being made when another worker ended: started again where the client
        has heard nothing of it, else over."""
        answer, self._broken_off = self._broken_off, None
        asked, self._asked = self._asked, None
        if answer is None:
            return
        begun = self._begin_answer(self._turns - 1)
        self._has_answered = True
        if asked is not None and answer["is_open"]:
            await self._make_answer(asked)
        else:
            if self._said_before is not None:
                self._session.log(self._said_before)
            begun.break_off(answer)
            await self._end_answer()

    async def close(self) -> None:
        """See `Runner`."""
        self._view.stop_generation()

    async def _prepare(self, prepared: HalfDuplexSetup) -> int:
        """Voice and system prompt; gives the prompt's length in tokens."""
        self._idle_s = prepared.idle_s
        self._interruptions.arm(prepared.interruption, self._detectors, self._judges)
        return await self._feed.open(prepared)

    async def _next_sound(self, *, reads: bool = True) -> Pcm | None:
        """The next piece of sound; None when something written is to be answered first, which
        waits while the user speaks (`reads` False) and is answered with what they say."""
        while True:
            if reads and any(written.text for written in self._typed):
                return None
            if self._sounds:
                return self._sounds.take()
            self._changed.clear()
            await self._changed.wait()

    async def _follow(self, finder: UtteranceFinder) -> None:
        """Act on what the detector found, utterance by utterance."""
        while self._found:
            match self._found.popleft():
                case SpeechBegan():
                    # Speech that continues when the answers are out is not followed any further.
                    if self._found or not self._has_answered:
                        self._session.emit(SpeechStarted())
                        self._silence.begin("speech_is_heard", SPEECH_S)
                case SpeechEnded(utterance=utterance):
                    self._silence.end()
                    self._session.emit(SpeechStopped())
                    if utterance is not None and not self._ends_after_turn:
                        self._has_answered = True
                        await self._take_turn(utterance)
        if self._has_answered:
            self._has_answered = False
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
        self._begin_answer(self._turns)
        self._turns += 1
        session.enter(Phase.GENERATING)
        session.deadlines.clear("idle")
        written, pictures = self._take_written()
        pcm = Pcm.empty(INPUT_RATE_HZ) if utterance is None else utterance.pcm
        speech_ms = 0 if utterance is None else utterance.speech_ms
        asked = TurnStarted(speech_ms, pcm, written, pictures)
        session.emit(asked)
        await self._make_answer(asked)

    def _begin_answer(self, index: int) -> TurnAnswer:
        self._answer = TurnAnswer(
            self._session, self._view, self._interruptions, index, says=self._silence.end
        )
        self._is_answering = True
        return self._answer

    async def _make_answer(self, asked: TurnStarted) -> None:
        session, answer = self._session, self._answer
        assert answer is not None
        self._silence.begin("waiting_for_model", MODEL_S)
        message = await open_turn(asked.utterance, asked.text, asked.pictures)
        has_failed = not await answer.make(message, self._feed.generation, speaks=self._feed.speaks)
        self._silence.end()
        session.log(
            Answered(answer.is_heard, answer.said, answer.is_whole, answer.taken_in, answer.chosen)
        )
        answer.finish(has_failed=has_failed)
        await self._end_answer()

    async def _end_answer(self) -> None:
        session = self._session
        self._is_answering = False
        self._be_idle_from(max(session.clock.monotonic(), self._interruptions.playback.ends_s))
        session.enter(Phase.ACTIVE)
        if self._interruptions.is_armed:
            await self._hear_out()

    async def _answer_early(self, pcm: Pcm) -> None:
        due_s = self._session.clock.monotonic() + TURN_DUE_S
        asked = Message("user", (AudioPart(pcm),))
        request = TurnRequest(self._session.session_id, (asked,))
        await self._view.prefill_early(
            request, due_s=due_s, answer=self._feed.generation, generate_audio=self._feed.speaks
        )

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
                self._session.log(Cut(heard))
            except SlotLost:
                raise
            except InferenceFailed:
                # The context is as it was before the answer: what was heard of it is forgotten.
                _log.warning("answer_truncation_failed", turn=self._turns - 1, exc_info=True)
        self._view.clear_rollback_point()
        for pcm in reversed(spoken):
            # Before what came when the answer was over.
            self._sounds.put_back(pcm)
        if spoken:
            self._be_idle_from(self._session.clock.monotonic())
            self._changed.set()
