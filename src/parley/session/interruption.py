"""The microphone while the assistant speaks: who may interrupt, and what was heard so far.

A runner hands over what the client sends (`hear`) and what it is sent (`say`); the detector works
through it in order, short pieces on the event loop and long ones in a thread, and what it finds is
acted upon on the event loop. One policy for every runner and dialect: `InterruptionOptions`,
followed by `Interruptions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from parley import logs
from parley.dialects.events import InterruptionChanged
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import InterruptionOptions, InterruptionState, PlaybackReport
from parley.session.listening import AT_ONCE_SAMPLES
from parley.session.playback import Playback
from parley.session.session import Session
from parley.turns import NO_JUDGES, TurnJudges
from parley.turns.interruption import (
    Interrupted,
    InterruptionDetector,
    InterruptionEvent,
    SpeechOver,
    SpeechSuspected,
)
from parley.vad import DetectorFactory

PRE_ROLL_S: Final = 0.3
"""Sound before an interruption that belongs to it. As `vad.utterance.PRE_ROLL_MS`."""

WAITING_S: Final = 30.0
"""Sound that may wait for the detector; beyond it the oldest is dropped."""

PLAYED_S: Final = 2.0
"""Sound of the assistant of at most this length is taken on the event loop: half a millisecond."""

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """Work for the detector.

    Args:
        heard_s: of the client's sound in it.
        takes_long: too long for the event loop.
    """

    do: Callable[[], list[InterruptionEvent] | None]
    heard_s: float
    takes_long: bool


class InterruptionWatch:
    """Listens for interruptions; see the module's text.

    Args:
        report: called on the event loop with every event; must not block.
    """

    def __init__(
        self,
        options: InterruptionOptions,
        detectors: DetectorFactory,
        report: Callable[[InterruptionEvent], None],
        judges: TurnJudges = NO_JUDGES,
    ) -> None:
        self.options = options
        self._detector = InterruptionDetector(detectors(), options, judges)
        self._report = report
        self._waiting: deque[_Work] = deque()
        self._waiting_s = 0.0
        self._heard: deque[Pcm] = deque()
        self._heard_s = 0.0
        self._speech_is_open = False
        self._is_interruption = False
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def play(self, pcm: Pcm, starts_s: float) -> None:
        """The assistant's sound as it is sent, and when it is played (monotonic seconds); its echo
        does not interrupt."""
        self._put(lambda: self._detector.play(pcm, starts_s), takes_long=pcm.duration_s > PLAYED_S)

    def cut(self, at_s: float) -> None:
        """The client plays nothing more of what it was sent."""
        self._put(lambda: self._detector.cut(at_s))

    def move(self, seconds: float) -> None:
        """The client says that it plays so much later than it was taken to."""
        self._put(lambda: self._detector.move(seconds))

    def hear(self, pcm: Pcm, at_s: float) -> None:
        """The client's sound while the assistant is heard: 16 kHz, of any length; its last sample
        came at `at_s`."""
        takes_long = len(pcm) > AT_ONCE_SAMPLES
        self._put(lambda: self._hear(pcm, at_s), pcm.duration_s, takes_long=takes_long)

    def learn(self, pcm: Pcm) -> None:
        """The client's sound while the assistant is silent; says how loud the room is."""
        if not self._idle.is_set():
            takes_long = len(pcm) > AT_ONCE_SAMPLES
            self._put(lambda: self._detector.learn(pcm), pcm.duration_s, takes_long=takes_long)
            return
        # Nothing is before it, and a level takes less time than the way to a thread.
        for event in self._detector.learn(pcm):
            self._follow(event)

    def _put(
        self,
        take: Callable[[], list[InterruptionEvent] | None],
        heard_s: float = 0.0,
        *,
        takes_long: bool = False,
    ) -> None:
        self._waiting.append(_Work(take, heard_s, takes_long))
        self._waiting_s += heard_s
        while self._waiting_s > WAITING_S and len(self._waiting) > 1:
            self._waiting_s -= self._waiting.popleft().heard_s
        self._idle.clear()
        self._changed.set()

    async def run(self) -> None:
        """Listen until cancelled; a detector that fails is logged, and hears nothing more."""
        while True:
            self._changed.clear()
            while self._waiting:
                work = self._waiting.popleft()
                self._waiting_s -= work.heard_s
                try:
                    takes_long = work.takes_long or self._detector.may_ask(
                        round(work.heard_s * INPUT_RATE_HZ)
                    )
                    found = await asyncio.to_thread(work.do) if takes_long else work.do()
                except Exception:
                    _log.exception("interruption_detection_failed")
                    self._idle.set()
                    return
                for event in found or ():
                    self._follow(event)
                if work.heard_s and self._waiting:
                    # What has piled up delays no other session.
                    await asyncio.sleep(0)
            self._idle.set()
            await self._changed.wait()

    def _hear(self, pcm: Pcm, at_s: float) -> list[InterruptionEvent]:
        self._keep(pcm)
        return self._detector.feed(pcm, at_s)

    async def hand_over(self) -> tuple[Pcm, ...]:
        """Unanswered speech of the user, once all sound has been examined.

        Empty if the user did not speak, or did not interrupt. The watch starts
        again; until this returns, new sound has to be given to `hear`.
        """
        await self._idle.wait()
        spoken = tuple(self._heard) if self._speech_is_open else ()
        self._heard.clear()
        self._heard_s = 0.0
        self._speech_is_open = self._is_interruption = False
        return spoken

    def _keep(self, pcm: Pcm) -> None:
        self._heard.append(pcm)
        self._heard_s += pcm.duration_s
        least_s = WAITING_S if self._speech_is_open else PRE_ROLL_S
        while self._heard_s - self._heard[0].duration_s >= least_s:
            self._heard_s -= self._heard.popleft().duration_s

    def _follow(self, event: InterruptionEvent) -> None:
        match event:
            case SpeechSuspected():
                self._speech_is_open = True
            case Interrupted():
                self._is_interruption = True
            case SpeechOver() if not self._is_interruption:
                self._speech_is_open = False
        self._report(event)


class Interruptions:
    """Interruptions of one conversation's answers, and their effect on the answer.

    Inactive until `arm`: nothing is listened for, and what has been heard is still counted.

    Args:
        index: of the turn or unit that is made or heard.
        stop: silences the model and reports that the answer is over; called once per answer, behind
            the fence, with the sample of what `hear` was given at which the speech began.
    """

    def __init__(
        self, session: Session, *, index: Callable[[], int], stop: Callable[[int], None]
    ) -> None:
        self._session = session
        self._index = index
        self._stop = stop
        self._watch: InterruptionWatch | None = None
        self.is_armed = False
        """True if the user may interrupt in this conversation; set by `arm`."""
        self.playback = Playback(session.clock)
        self.is_watching = False
        """True if the user can interrupt now: an answer is being made or heard."""
        self.is_cut = False
        """True if the answer was interrupted: nothing of it may be sent any more."""
        self._is_suspected = False
        """True if the client knows of it, and not yet of its result."""

    def arm(
        self,
        options: InterruptionOptions,
        detectors: DetectorFactory,
        judges: TurnJudges = NO_JUDGES,
    ) -> None:
        """Listen as `options` say from the next `run` on."""
        self.is_watching = self.is_armed = False
        self._watch = None
        if options.mode != "off":
            self._watch = InterruptionWatch(options, detectors, self._follow, judges)
            self.is_armed = True

    async def run(self) -> None:
        """Listen until cancelled; returns immediately if there is nothing to listen for."""
        if self._watch is not None:
            await self._watch.run()

    def begin(self) -> None:
        self.playback.begin()
        self.is_cut = False
        self.is_watching = self.is_armed

    def say(self, text: str, pcm: Pcm | None, duration_ms: float) -> None:
        """The next part of the answer for the client."""
        starts_s = self.playback.send(text, duration_ms)
        if self._watch is not None and pcm is not None and len(pcm):
            self._watch.play(pcm, starts_s)

    def cut(self) -> None:
        """The client throws away what it has not played."""
        self.playback.cut()
        if self._watch is not None:
            self._watch.cut(self.playback.ends_s)

    def report(self, told: PlaybackReport | None) -> None:
        """The client's playback report, if it sends any."""
        if told is None:
            return
        later_s = self.playback.report(told)
        if self._watch is not None:
            self._watch.move(later_s)
        if self._session.deadlines.get("played") is not None:
            self._session.deadlines.set("played", self.playback.ends_s)

    def hear(self, pcm: Pcm) -> None:
        """The client's sound while the answer can be interrupted: 16 kHz, of any length."""
        if self._watch is not None:
            self._watch.hear(pcm, self._session.clock.monotonic())

    def learn(self, pcm: Pcm) -> None:
        """The client's sound while there is nothing to interrupt."""
        if self._watch is not None:
            self._watch.learn(pcm)

    async def hand_over(self) -> tuple[Pcm, ...]:
        """The answer is over, or played: what was said meanwhile and starts the next turn.

        Until this returns, new sound must be passed to `hear`.
        """
        spoken = () if self._watch is None else await self._watch.hand_over()
        self.is_watching = False
        return spoken

    def _follow(self, event: InterruptionEvent) -> None:
        watch = self._watch
        if watch is None or not self.is_watching or self.is_cut:
            return
        state: InterruptionState = "suspected"
        if isinstance(event, SpeechOver):
            if not self._is_suspected:
                # The end of what has interrupted an answer already.
                return
            state = "dismissed"
        elif isinstance(event, Interrupted):
            if watch.options.mode != "stop":
                return
            state = "stopped"
            # The fence: nothing of this answer is sent from here on.
            self.is_cut = True
            self.cut()
            self.playback.unsend(self._session.drop_output())
        self._is_suspected = state == "suspected"
        heard_ms, text = self.playback.heard()
        self._session.emit(InterruptionChanged(state, self._index(), heard_ms, text))
        if self.is_cut:
            self._stop(event.at_sample)
