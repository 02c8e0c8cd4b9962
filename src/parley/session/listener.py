"""Finds the user's turns in the sound of a conversation of turns.

Either the client or the voice detector determines when a turn is complete. While an answer is
generated or heard, audio goes to the watch for interruptions instead of the turn detector, so echo,
noise and acknowledgements do not become turns. Speech that interrupts, or continues after the
answer has been played, starts the next turn, including its first word.

A sequential listener (half-duplex) waits until a turn is answered before it listens for the next
one. If interruptions are off, audio that arrives during an answer is dropped, because the
microphone picks up the loudspeaker. Audio that was recorded during an outage and sent afterwards is
always kept, in order.

Source: OpenAI Realtime (GA), voice activity detection; service.md 4.3; sessions.md 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from parley.dialects.events import (
    AudioCleared,
    AudioCommitted,
    Failed,
    InputCleared,
    SpeechStarted,
    SpeechStopped,
    TurnDetection,
)
from parley.errors import InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import make_id
from parley.results import HeardWords
from parley.session.early import EarlyAnswer
from parley.session.interruption import Interruptions
from parley.session.listening import ColdStart, SoundQueue, find, wait_for_silence
from parley.session.session import Session
from parley.session.silence import SPEECH_S, SilenceWatch
from parley.turns import NO_JUDGES, TurnJudges
from parley.vad import (
    DetectorFactory,
    SpeechBegan,
    SpeechEnded,
    Utterance,
    UtteranceFinder,
    VadEvent,
)

if TYPE_CHECKING:
    from parley.session.conversation import ConversationRunner

MANUAL_S: Final = 300.0
"""Maximum length of audio that may wait for a commit."""


class NothingToCommit(InvalidRequest):
    """A commit without sound."""

    code = "input_audio_buffer_commit_empty"

    def __init__(self, event_id: str | None = None) -> None:
        super().__init__("The input audio buffer is empty: there is nothing to commit.")
        self.client_event_id = event_id


class TurnListener:
    """See the module's text.

    Args:
        index: of the turn that is answered or heard.
        silence: is notified of speech that does not end.
        guard_s: see `ColdStart`.
    """

    def __init__(
        self,
        session: Session,
        runner: ConversationRunner,
        detectors: DetectorFactory,
        *,
        index: Callable[[], int],
        silence: SilenceWatch,
        is_sequential: bool,
        guard_s: float = 0.0,
        judges: TurnJudges = NO_JUDGES,
    ) -> None:
        self._session = session
        self._runner = runner
        self._detectors = detectors
        self._judges = judges
        self._silence = silence
        self._is_sequential = is_sequential
        self._early = EarlyAnswer(runner, self._read_early)
        self.interruptions = Interruptions(session, index=index, stop=self._be_interrupted)
        self._detection: TurnDetection | None = TurnDetection()
        self._cold_start = ColdStart(guard_s)
        self.is_guarded = False
        """True while the results of the detector are not acted on."""
        self._guarded_until_s: float | None = None
        self._is_answering = False
        """True if an answer is being generated; in a sequential listener, from the end of the turn
        on."""
        self._is_over = False
        """True if the answer that is being generated is over for the client."""
        self._past_answer_s = 0.0
        """Length of the audio sent to another worker that was recorded during an answer which that
        worker sent."""
        self.sounds = SoundQueue(session.report_dropped)
        """Audio that the detector has not examined."""
        self._before_watch = 0
        """Number of pieces in `sounds` that came before the audio of the watch."""
        self._is_behind = False
        """True if late audio waits, or a sentence in it: later audio waits behind it."""
        self._found: deque[VadEvent] = deque()
        """Results of the detector that the listener has not handled."""
        self._has_taken_turn = False
        """True if a turn was found since the detector was reset, in a sequential listener."""
        self._heard_samples = 0
        """Total length of audio passed to the detector or the watch."""
        self._newest_s = session.clock.monotonic()
        """Time at which the newest audio that the detector has examined was spoken."""
        self._added_samples = 0
        """Length of the silence that the client did not send, and that may wait in `sounds`."""
        self._watched_samples = 0
        self._orders: deque[AudioCommitted | AudioCleared] = deque()
        """Requests of the client that wait for audio to be examined."""
        self.manual = SoundQueue(session.report_dropped, limit_s=MANUAL_S, loose=0)
        """Audio that waits for a commit."""
        self._finder: UtteranceFinder | None = None
        self._start = 0
        """Position in the total audio at which the finder's audio starts."""
        self._item_id = ""
        self._speech_start: int | None = None
        """Its position, until its end is announced."""
        self._is_announced = False
        """True if the client was already notified that the speech in `_item_id` has started."""
        self._changed = asyncio.Event()
        self._is_hearing = False

    # ---- another worker continues ------------------------------------------------------------

    def remembered(self) -> dict[str, Any] | None:
        """Its state beyond `sounds` and `manual`, as values; None while it is listening in a
        thread. Speech during an answer that can be interrupted is not included."""
        if self._is_hearing:
            return None
        return {
            "detection": self._detection,
            "found": self._found,
            "orders": self._orders,
            "cold_start": self._cold_start.remembered(),
            "is_answering": self._is_answering,
            "has_backlog": self._session.arrivals.has_backlog,
            "has_taken_turn": self._has_taken_turn,
            "heard_samples": self._heard_samples,
            "finder": None if self._finder is None else self._finder.remembered(),
            "start": self._start,
            "item_id": self._item_id,
            "is_announced": self._is_announced,
        }

    def restore(self, remembered: dict[str, Any], answered_s: float) -> None:
        """Take over the state of another listener. Call before `run`.

        Args:
            answered_s: length of an unfinished answer's audio that the client was sent.
        """
        detection = self._detection = remembered["detection"]
        self._found = remembered["found"]
        self._orders = deque(remembered.get("orders", ()))
        self._cold_start.restore(remembered["cold_start"])
        self._has_taken_turn = remembered["has_taken_turn"]
        self._is_answering = self._is_sequential and remembered["is_answering"]
        is_into_answer = self._is_answering and not remembered["has_backlog"]
        if is_into_answer and (detection is None or detection.interruption.mode == "off"):
            self._past_answer_s = answered_s
        self._heard_samples, self._start = remembered["heard_samples"], remembered["start"]
        self._item_id, self._is_announced = remembered["item_id"], remembered["is_announced"]
        if detection is not None and remembered["finder"] is not None:
            self._finder = self._finder_of(detection)
            self._finder.restore(remembered["finder"])
        is_open = self._finder is not None and self._finder.is_speaking
        self._speech_start = 0 if is_open or self._is_announced or self._found else None

    # ---- what the client does --------------------------------------------------------------

    def hear(self, pcm: Pcm) -> None:
        if self._past_answer_s > 0 and self._session.hears_what_is_past:
            self._past_answer_s -= pcm.duration_s
            self._session.report_dropped(pcm.duration_s)
            return
        if self._finder is not None and self._began_after_guard(pcm):
            self._cold_start.skip(self._finder)
        is_late = self._session.arrivals.is_late(pcm.duration_s)
        is_watching = self.interruptions.is_watching
        if self._detection is None:
            self._keep(pcm)
        elif is_late:
            self._put_late(pcm)
        elif self._is_over or (self._is_behind and not (is_watching and self._is_sequential)):
            self._put(pcm)
        elif is_watching:
            self._watch(pcm)
        elif not (self._is_busy and not self.interruptions.is_armed):
            self.interruptions.learn(pcm)
            self._put(pcm)

    def _put_late(self, pcm: Pcm) -> None:
        """Late audio interrupts nothing, and is examined before live audio."""
        finder = self._finder
        is_new = finder is not None and not (self._is_behind or self._is_hearing)
        if finder is not None and is_new and self.interruptions.is_watching:
            # The detector of turns has not heard the audio of the watch.
            finder.reset()
            self._start = self._heard_samples
        self._is_behind = True
        self._put(pcm)
        self._before_watch = len(self.sounds)

    def _watch(self, pcm: Pcm) -> None:
        self._watched_samples += len(pcm)
        self._heard_samples += len(pcm)
        self.interruptions.hear(pcm)

    def _put(self, pcm: Pcm) -> None:
        self.sounds.put(pcm)
        self._changed.set()

    def detect(self, detection: TurnDetection | None) -> None:
        """Change how turns are found; None: the client determines when one is complete. Speech that
        is being heard ends, and its audio is examined again or waits for a commit."""
        before, finder = self._detection, self._finder
        self._detection, self._finder = detection, None
        if before is not None and finder is not None and not self._is_hearing:
            self._begin_again(before, finder)
        if detection is None:
            self.manual.put_back(*self.interruptions.forget())
            self.interruptions.close()
            while self.sounds:
                self._keep(self.sounds.take())
            while self._orders and not self._is_hearing:
                self._obey()
        self._changed.set()

    def _begin_again(self, before: TurnDetection, finder: UtteranceFinder) -> None:
        """The detection of turns was changed during speech."""
        spoken = self._break_off(before, finder)
        if spoken is not None and self._detection is None:
            self.manual.put_back(spoken)
        elif spoken is not None:
            self.sounds.put_back(spoken)
            self._heard_samples -= len(spoken)

    def _finder_of(self, detection: TurnDetection) -> UtteranceFinder:
        silence = self._judges.silence(detection.vad)
        return UtteranceFinder(self._detectors(), detection.vad, silence)

    def be_quiet(self) -> None:
        """The deadline `QUIET` has passed: the user pauses, and the client has stopped sending
        audio."""
        # Waiting audio shows that it has not.
        is_current = not (self.sounds or self._is_hearing)
        if self._finder is not None and is_current and not self.interruptions.is_watching:
            missing = self._finder.missing_samples or 0
            self._added_samples += missing
            self._put(Pcm.silence(missing, INPUT_RATE_HZ))

    def clear(self, order: AudioCleared) -> None:
        """Discard the audio that is not part of a turn yet. After a commit, and while the detector
        is working, waits until that is done."""
        if self._is_hearing and not self._orders:
            self.sounds.clear()
        if self._orders or self._is_hearing:
            self._orders.append(order)
            return
        self._forget()
        self._session.emit(InputCleared())

    def _forget(self) -> None:
        self.sounds.clear()
        self._added_samples = 0
        self.manual.clear()
        self.interruptions.forget()
        if self._finder is not None and self._detection is not None:
            self._break_off(self._detection, self._finder)

    def _break_off(self, detection: TurnDetection, finder: UtteranceFinder) -> Pcm | None:
        """End the speech that is being heard: its client learns that it is over, and no turn
        follows. Returns the speech."""
        spoken, ended = finder.speech, finder.end()
        if ended is not None:
            self._early.begin_turn()
            self._runner.stop_early()
            self._found.append(replace(ended, utterance=None))
            self._follow(detection, finder, is_last=True)
        self._announce_silence(self._heard_samples)
        return spoken

    def commit(self, order: AudioCommitted) -> None:
        """The client declares its turn complete. If audio is waiting for the detector, this takes
        effect behind it.

        Raises:
            NothingToCommit: there is no audio.
        """
        if self._is_hearing or (self._detection is not None and self.sounds):
            self._orders.append(order)
        elif self._detection is not None:
            self._commit_open(order, self._detection)
        elif self.manual:
            pcm = self.manual.joined()
            self._forget()
            self._runner.take_turn(order.item_id, pcm, pcm.duration_ms, answers=False)
        else:
            raise NothingToCommit(order.event_id)

    async def wait_for_early(self) -> None:
        """Wait until an early answer, if any, is prepared."""
        await self._early.wait()

    def _commit_open(self, order: AudioCommitted, detection: TurnDetection) -> None:
        """Commit the current speech as a turn."""
        finder = self._finder
        ended = None if finder is None else finder.end()
        if finder is not None and ended is not None:
            self._found.append(ended)
            self._follow(replace(detection, answers=False), finder)
        if ended is None or ended.utterance is None:
            raise NothingToCommit(order.event_id)

    def _obey(self) -> None:
        """Handle the first waiting request of the client."""
        order = self._orders.popleft()
        try:
            if isinstance(order, AudioCommitted):
                self.commit(order)
            else:
                self._forget()
                self._session.emit(InputCleared())
        except NothingToCommit as error:
            self._session.emit(Failed(error))

    def _keep(self, pcm: Pcm) -> None:
        """Add audio to what waits for the client's commit."""
        self._heard_samples += len(pcm)
        self.manual.put(pcm)

    def end_guard(self) -> None:
        self.is_guarded = False
        self._guarded_until_s = self._session.clock.monotonic()

    def _began_after_guard(self, pcm: Pcm) -> bool:
        """True if the first waiting audio is from after the guard."""
        until_s = self._guarded_until_s
        if until_s is None or self.sounds or self._heard_samples:
            return False
        return self._session.clock.monotonic() - pcm.duration_s >= until_s

    def wake(self) -> None:
        """Wake the listening task."""
        self._changed.set()

    # ---- what the answer does --------------------------------------------------------------

    def begin_answer(self) -> None:
        self._is_answering = True
        self._before_watch = len(self.sounds)
        self.interruptions.begin()
        self.interruptions.is_watching = self._may_watch()

    def silence_answer(self) -> None:
        """The answer that is being generated is over for the client, which discards what it has not
        played: speech from now on belongs to the next turn."""
        self._is_over = True
        self.interruptions.cut()
        self._changed.set()

    def complete_answer(self) -> None:
        """The client was sent the end of the answer and may speak, even if the model is still
        working. Users who may interrupt are heard anyway."""
        self._is_over |= not self.interruptions.is_armed

    def end_answer(self) -> None:
        """The answer has been generated; it may still be playing."""
        self._is_answering = self._is_over = False
        self._session.deadlines.set("played", self.interruptions.playback.ends_s)
        self._changed.set()

    def _be_interrupted(self, at_sample: int) -> None:
        if not self._is_sequential:
            at_sample += self._heard_samples - self._watched_samples
            finder = self._finder
            if self._detection is not None and finder is not None and not self._is_hearing:
                # Speech from before the answer is a turn of its own.
                self._found.extend(filter(None, [finder.end()]))
                self._follow(self._detection, finder, is_last=True)
            self._announce_silence(at_sample)
            self._announce_speech(at_sample)
            self._is_announced = True
        self._runner.cut_by_speech()
        self._changed.set()

    # ---- listening -------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while True:
                detection = self._detection
                if detection is not None:
                    self._prepare(detection)
                if self._is_played():
                    await self._resume()
                elif not await self._listen(detection):
                    self.interruptions.is_watching |= self._may_watch()
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._early.end()
            self.interruptions.close()

    def _prepare(self, detection: TurnDetection) -> None:
        if self._finder is None:
            self._finder = self._finder_of(detection)
            self._start = self._heard_samples
        if self.interruptions.arm(detection.interruption, self._detectors, self._judges):
            self._watched_samples = 0

    async def _listen(self, detection: TurnDetection | None) -> bool:
        """Do one piece of work; returns False if there is none."""
        finder = self._finder
        if self.is_guarded or self._is_busy or detection is None or finder is None:
            return False
        if self._found:
            self._follow(detection, finder)
        elif self._runner.has_written and not self._cold_start.is_over:
            self._found.extend(self._cold_start.skip(finder))
        elif self._runner.has_written and not finder.is_speaking:
            self._take_turn(None, detection)
            self._start_over(finder)
        elif self.sounds and not self._is_sequential and self._may_watch():
            self.interruptions.is_watching = True
            while self.sounds:
                self._watch(self.sounds.take())
        elif self.sounds:
            self._before_watch = max(0, self._before_watch - 1)
            await self._find(self.sounds.take(), detection)
            self._is_behind &= bool(self.sounds or self._found) or finder.is_speaking
            if self.sounds:
                # A backlog must not delay other sessions, and each turn is answered before the
                # next.
                await asyncio.sleep(0)
        elif self._orders:
            self._obey()
        else:
            return False
        return True

    @property
    def _is_busy(self) -> bool:
        """True if no turns are detected now."""
        if self._is_sequential:
            return self._is_answering or self.interruptions.is_watching
        return self._is_behind and self._is_answering

    def _may_watch(self) -> bool:
        """True if audio may be an interruption. If users are speaking when an answer starts, they
        may finish; in a sequential listener their turn is complete by then."""
        interruptions, finder = self.interruptions, self._finder
        is_heard = self._is_answering or interruptions.playback.is_heard
        if not (interruptions.is_armed and is_heard) or interruptions.is_cut or self._is_over:
            return False
        return self._is_sequential or (
            self._detection is not None
            and finder is not None
            and not finder.is_speaking
            # Sound from before the answer may be the end of a sentence.
            and not (self.sounds and (self._before_watch or self._is_behind))
        )

    def _is_played(self) -> bool:
        """True if there is nothing to interrupt and the watch is still on."""
        interruptions = self.interruptions
        if not interruptions.is_watching or (self._is_behind and not self._is_sequential):
            return False
        if interruptions.is_cut or self._is_over:
            return True
        is_heard = interruptions.playback.is_heard and not self._runner.has_written
        return not (self._is_answering or is_heard)

    async def _resume(self) -> None:
        """Listen for turns again, starting with the speech during the answer."""
        self._session.deadlines.clear("played")
        spoken = await self.interruptions.hand_over()
        await self._runner.settle()
        detection, finder = self._detection, self._finder
        if detection is None or finder is None:
            return
        finder.reset()
        self._heard_samples -= sum(len(pcm) for pcm in spoken)
        self._start = self._heard_samples
        if self._is_sequential:
            self.sounds.put_back(*spoken, behind=self._before_watch)
            return
        for pcm in spoken:
            await self._find(pcm, detection)
        if self._is_announced and not finder.is_speaking:
            # The turn detector is stricter than the watch: it did not consider this speech.
            self._announce_silence(self._heard_samples)

    async def _find(self, pcm: Pcm, detection: TurnDetection) -> None:
        finder, cold_start = self._finder, self._cold_start
        self._heard_samples += len(pcm)
        if finder is None:
            if self._detection is None:
                self.manual.put(pcm)
            return
        self._is_hearing = True
        try:
            if cold_start.is_over:
                found = cold_start.counted(await find(finder, pcm), finder)
            else:
                found, rest = await cold_start.feed(pcm, finder)
                if rest is not None:
                    self._heard_samples -= len(rest)
                    self.sounds.put_back(rest)
        finally:
            self._is_hearing = False
        self._newest_s = self._session.clock.monotonic() - self.sounds.waiting_s
        self._found.extend(found)
        self._follow(detection, finder)
        # Positions count what the client has sent.
        self._start -= self._added_samples
        self._heard_samples -= self._added_samples
        self._added_samples = 0
        if finder is not self._finder:
            self._begin_again(detection, finder)
            self.detect(self._detection)
            return
        if not cold_start.is_over:
            return
        if detection.answers and not cold_start.is_undecided and not self._is_busy:
            self._early.follow(finder)
        wait_for_silence(self._session, finder)

    def _read_early(self, pause_start: int, words: HeardWords) -> None:
        """The words before a pause are known: after "because" the user will continue, after a
        complete question not."""
        detection, finder = self._detection, self._finder
        if detection is None or finder is None:
            return
        bounds = self._judges.bounds_ms(detection.vad, words.text, is_whole=words.is_whole)
        if bounds is not None:
            finder.bound(pause_start, *bounds)
            wait_for_silence(self._session, finder)

    def _follow(
        self, detection: TurnDetection, finder: UtteranceFinder, *, is_last: bool = False
    ) -> None:
        """Handle the detector's results; in a sequential listener, up to the next turn.

        Args:
            is_last: True if they do not wait until a turn is answered.
        """
        while self._found and (is_last or not self._is_busy):
            match self._found.popleft():
                case SpeechBegan(at_sample):
                    # Speech that continues when there are no more answers is not followed.
                    is_followed = self._found or not self._has_taken_turn
                    if is_followed and not self._is_announced:
                        self._announce_speech(self._start + at_sample)
                        self._silence.begin("speech_is_heard", SPEECH_S)
                case SpeechEnded(at_sample, utterance):
                    self._silence.end()
                    self._announce_silence(self._start + at_sample)
                    if utterance is not None:
                        self._take_turn(utterance, detection)
        if self._has_taken_turn and not self._found:
            self._start_over(finder)

    def _take_turn(self, utterance: Utterance | None, detection: TurnDetection) -> None:
        """A turn is complete. None: it has only written text."""
        self._early.begin_turn()
        self._has_taken_turn = self._is_sequential
        # Turns that were found together are answered one by one.
        self._is_answering |= self._is_sequential or (self._is_behind and detection.answers)
        answers = detection.answers
        if utterance is None:
            self._runner.take_turn(make_id("item"), Pcm.empty(INPUT_RATE_HZ), 0, answers=answers)
            return
        silence = self._heard_samples - self._start - utterance.end_sample
        spoken_s = self._newest_s - silence / INPUT_RATE_HZ
        self._runner.take_turn(
            self._item_id,
            utterance.pcm,
            utterance.speech_ms,
            answers=answers,
            spoken_ago_s=self._session.clock.monotonic() - spoken_s,
        )

    def _start_over(self, finder: UtteranceFinder) -> None:
        self._has_taken_turn = False
        finder.reset()
        self._start = self._heard_samples

    def _announce_speech(self, at_sample: int) -> None:
        self._item_id, self._speech_start = make_id("item"), at_sample
        self._session.emit(SpeechStarted(self._item_id, _ms(at_sample)))

    def _announce_silence(self, at_sample: int) -> None:
        """Announce the end of speech, if that was not done yet."""
        start, self._speech_start, self._is_announced = self._speech_start, None, False
        if start is not None:
            self._session.emit(SpeechStopped(self._item_id, _ms(max(at_sample, start))))


def _ms(samples: int) -> int:
    return samples * 1000 // INPUT_RATE_HZ
