"""Listens to the microphone while the assistant speaks: detects interruptions, and tracks what the
user has heard.

A runner passes on the audio that the client sends (`hear`) and the audio that it is sent (`say`).
The detector processes both in order, short pieces on the event loop and long ones in a thread; its
results are handled on the event loop. All runners and dialects share one policy:
`InterruptionOptions`, implemented by `Interruptions`.
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
from parley.turns.interruption import InterruptionDetector, InterruptionEvent
from parley.vad import DetectorFactory
from parley.vad.utterance import PRE_ROLL_MS

WAITING_S: Final = 30.0
"""Length of the audio that may wait for the detector; beyond it the oldest is dropped."""

PLAYED_S: Final = 2.0
"""Audio of the assistant up to this length is processed on the event loop, which takes half a
millisecond."""

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """Work for the detector.

    Args:
        heard_s: length of the client's audio in it.
        takes_long: True if it takes too long for the event loop.
    """

    do: Callable[[InterruptionDetector], list[InterruptionEvent] | None]
    heard_s: float
    takes_long: bool


class Interruptions:
    """Interruptions of one conversation's answers; see the module. Inactive until `arm`: before
    that, it only counts what was heard.

    Args:
        index: of the turn or unit that is being generated or heard.
        stop: stops the model and reports that the answer is over. Called once per answer, when no
            more of it can be sent, with the sample at which the speech started, counted in what
            `hear` received.
    """

    def __init__(
        self, session: Session, *, index: Callable[[], int], stop: Callable[[int], None]
    ) -> None:
        self._session = session
        self._index = index
        self._stop = stop
        self._options: InterruptionOptions | None = None
        self._detector: InterruptionDetector | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_armed = False
        """True if the user may interrupt in this conversation; set by `arm`."""
        self.playback = Playback(session.clock)
        self.is_watching = False
        """True if the user can interrupt now: an answer is being generated or heard."""
        self.is_cut = False
        """True if the answer was interrupted: no more of it may be sent."""
        self._is_suspected = False
        """True if the client was notified of a suspected interruption, but not yet of its
        result."""
        self._waiting: deque[_Work] = deque()
        self._waiting_s = 0.0
        self._heard: deque[Pcm] = deque()
        self._heard_s = 0.0
        self._speech_is_open = False
        self._is_interruption = False
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def arm(
        self,
        options: InterruptionOptions,
        detectors: DetectorFactory,
        judges: TurnJudges = NO_JUDGES,
    ) -> bool:
        """Listen with these options from now on; returns False if it already does."""
        if options == self._options:
            return False
        self.close()
        self._options = options
        self.is_armed = options.mode != "off"
        if self.is_armed:
            self._detector = InterruptionDetector(detectors(), options, judges)
            self._task = asyncio.create_task(self._listen(self._detector))
        return True

    def close(self) -> None:
        """Stop listening. Safe to repeat."""
        if self._task is not None:
            self._task.cancel()
        self._options = None
        self.is_watching = self.is_armed = False
        self.forget()
        self._hear_no_more()

    def begin(self) -> None:
        self.playback.begin()
        self.is_cut = False
        self.is_watching = self.is_armed

    def say(self, text: str, pcm: Pcm | None, duration_ms: float) -> None:
        """The next part of the answer for the client; its echo does not interrupt."""
        starts_s = self.playback.send(text, duration_ms)
        if self.is_armed and pcm is not None and len(pcm):
            takes_long = pcm.duration_s > PLAYED_S
            self._put(lambda detector: detector.play(pcm, starts_s), takes_long=takes_long)

    def cut(self) -> None:
        """The client discards the audio that it has not played."""
        self.playback.cut()
        ends_s = self.playback.ends_s
        self._put(lambda detector: detector.cut(ends_s))

    def report(self, report: PlaybackReport | None) -> None:
        """The client's playback report, if it sends any."""
        if report is None:
            return
        later_s = self.playback.report(report)
        self._put(lambda detector: detector.move(later_s))
        if self._session.deadlines.get("played") is not None:
            self._session.deadlines.set("played", self.playback.ends_s)

    def hear(self, pcm: Pcm) -> None:
        """The client's sound while the answer can be interrupted: 16 kHz, of any length."""
        at_s = self._session.clock.monotonic()

        def hear(detector: InterruptionDetector) -> list[InterruptionEvent]:
            self._keep(pcm)
            return detector.feed(pcm, at_s)

        self._put(hear, pcm.duration_s, takes_long=len(pcm) > AT_ONCE_SAMPLES)

    def learn(self, pcm: Pcm) -> None:
        """The client's audio while there is nothing to interrupt; it shows how loud the room is."""
        if not self._idle.is_set():
            takes_long = len(pcm) > AT_ONCE_SAMPLES
            self._put(lambda detector: detector.learn(pcm), pcm.duration_s, takes_long=takes_long)
        elif self._detector is not None:
            # Nothing waits before it, and measuring a level is quicker than calling a thread.
            for event in self._detector.learn(pcm):
                self._follow(event)

    async def hand_over(self) -> tuple[Pcm, ...]:
        """The answer is over or has been played: once all audio has been examined, returns the
        speech during the answer that starts the next turn. Empty if the user did not speak or did
        not interrupt. Until this returns, new audio must be passed to `hear`.
        """
        await self._idle.wait()
        self.is_watching = False
        return self.forget()

    # ---- the detector ------------------------------------------------------------------------

    def _put(
        self,
        do: Callable[[InterruptionDetector], list[InterruptionEvent] | None],
        heard_s: float = 0.0,
        *,
        takes_long: bool = False,
    ) -> None:
        if self._detector is None:
            return
        self._waiting.append(_Work(do, heard_s, takes_long))
        self._waiting_s += heard_s
        while self._waiting_s > WAITING_S and len(self._waiting) > 1:
            self._waiting_s -= self._waiting.popleft().heard_s
        self._idle.clear()
        self._changed.set()

    async def _listen(self, detector: InterruptionDetector) -> None:
        """Listen until cancelled. If the detector fails, this is logged, and no more audio is
        examined."""
        while True:
            self._changed.clear()
            while self._waiting:
                work = self._waiting.popleft()
                self._waiting_s -= work.heard_s
                try:
                    takes_long = work.takes_long or detector.may_ask(
                        round(work.heard_s * INPUT_RATE_HZ)
                    )
                    do = work.do
                    found = await asyncio.to_thread(do, detector) if takes_long else do(detector)
                except Exception:
                    _log.exception("interruption_detection_failed")
                    self._hear_no_more()
                    return
                for event in found or ():
                    self._follow(event)
                if work.heard_s and self._waiting:
                    # A backlog must not delay other sessions.
                    await asyncio.sleep(0)
            self._idle.set()
            await self._changed.wait()

    def _keep(self, pcm: Pcm) -> None:
        self._heard.append(pcm)
        self._heard_s += pcm.duration_s
        least_s = WAITING_S if self._speech_is_open else PRE_ROLL_MS / 1000
        while self._heard_s - self._heard[0].duration_s >= least_s:
            self._heard_s -= self._heard.popleft().duration_s

    def forget(self) -> tuple[Pcm, ...]:
        """Forget the audio that was heard during the answer; returns the speech in it."""
        spoken = tuple(self._heard) if self._speech_is_open else ()
        self._heard.clear()
        self._heard_s = 0.0
        self._speech_is_open = self._is_interruption = False
        return spoken

    def _hear_no_more(self) -> None:
        self._detector = None
        self._waiting.clear()
        self._waiting_s = 0.0
        self._idle.set()

    def _follow(self, event: InterruptionEvent) -> None:
        match event.kind:
            case "suspected":
                self._speech_is_open = True
            case "interrupted":
                self._is_interruption = True
            case "over" if not self._is_interruption:
                self._speech_is_open = False
        if self.is_watching and not self.is_cut:
            self._report(event)

    def _report(self, event: InterruptionEvent) -> None:
        """Notify the client, and stop the answer if it is interrupted."""
        state: InterruptionState = "suspected"
        if event.kind == "over":
            if not self._is_suspected:
                # The end of speech that has already interrupted an answer.
                return
            state = "dismissed"
        elif event.kind == "interrupted":
            if self._options is None or self._options.mode != "stop":
                return
            state = "stopped"
            # The fence: from now on nothing of this answer is sent.
            self.is_cut = True
            self.cut()
            self.playback.unsend(self._session.drop_output())
        self._is_suspected = state == "suspected"
        heard_ms, text = self.playback.heard()
        self._session.emit(InterruptionChanged(state, self._index(), heard_ms, text))
        if self.is_cut:
            self._stop(event.at_sample)
