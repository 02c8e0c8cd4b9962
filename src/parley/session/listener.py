"""Finds the user's turns in the sound of a conversation of items.

The client says when a turn is complete, or the voice detector does. While an answer is made or
heard, sound goes to the watch for interruptions in place of the detector of turns: echo, noise and
what it takes for an acknowledgement are then no turns at all. What interrupts, or is still being
said when the answer has been played, begins the next turn, from its first word.

Source: OpenAI Realtime (GA), voice activity detection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from parley.dialects.events import SpeechStarted, SpeechStopped, TurnDetection
from parley.errors import InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, Pcm, join
from parley.protocol.values import InterruptionOptions, make_id
from parley.session.early import EarlyAnswer
from parley.session.interruption import Interruptions
from parley.session.listening import SoundQueue, find, silence_of, wait_for_silence
from parley.session.session import Session
from parley.turns import NO_JUDGES, TurnJudges
from parley.vad import DetectorFactory, SpeechBegan, SpeechEnded, UtteranceFinder

MANUAL_S: Final = 300.0
"""Most sound that may wait for a commit."""


class NothingToCommit(InvalidRequest):
    """A commit without sound."""

    code = "input_audio_buffer_commit_empty"

    def __init__(self) -> None:
        super().__init__("The input audio buffer is empty: there is nothing to commit.")


class TurnListener:
    """See the module's text.

    Args:
        commit: told of every turn that is complete: its item's id, its sound, whether it asks for
            an answer.
        cut: silences the answer that the user interrupts.
        early: prepares the answer to what will be a turn, if nothing more is said; and stops that
            because more is said.
    """

    def __init__(
        self,
        session: Session,
        detectors: DetectorFactory,
        *,
        index: Callable[[], int],
        commit: Callable[[str, Pcm, bool], None],
        cut: Callable[[], None],
        early: EarlyAnswer,
        judges: TurnJudges = NO_JUDGES,
    ) -> None:
        self._session = session
        self._detectors = detectors
        self._judges = judges
        self._commit = commit
        self._cut = cut
        self._early = early
        self.interruptions = Interruptions(session, index=index, stop=self._be_interrupted)
        self._detection: TurnDetection | None = TurnDetection()
        self._is_answering = False
        self._sounds = SoundQueue()
        self._heard_samples = 0
        """Of all sound, what the detector or the watch was given."""
        self._watched_samples = 0
        self._manual: list[Pcm] = []
        self._manual_s = 0.0
        self._finder: UtteranceFinder | None = None
        self._start = 0
        """Of all sound: where the finder's began."""
        self._item_id = ""
        self._is_told = False
        """True if the client knows already that the speech in `_item_id` has started."""
        self._changed = asyncio.Event()
        self._is_hearing = self._is_watch_due = False
        """True if there is a finder, and no watch yet."""

    # ---- another worker continues ------------------------------------------------------------

    def remembered(self) -> dict[str, Any] | None:
        """What it knows, as values; None: it is listening in a thread. What was said into an answer
        that can be interrupted is not in it."""
        if self._is_hearing:
            return None
        return {
            "detection": self._detection,
            "sounds": self._sounds.pieces,
            "heard_samples": self._heard_samples,
            "manual": self._manual,
            "finder": None if self._finder is None else self._finder.remembered(),
            "start": self._start,
            "item_id": self._item_id,
            "is_told": self._is_told,
        }

    def restore(self, remembered: dict[str, Any]) -> None:
        """Know what another one knew, before `run`."""
        detection = self._detection = remembered["detection"]
        for pcm in remembered["sounds"]:
            self._sounds.put(pcm)
        self._heard_samples, self._start = remembered["heard_samples"], remembered["start"]
        self._manual = remembered["manual"]
        self._manual_s = sum(pcm.duration_s for pcm in self._manual)
        self._item_id, self._is_told = remembered["item_id"], remembered["is_told"]
        if detection is not None and remembered["finder"] is not None:
            self._finder = self._finder_of(detection)
            self._finder.restore(remembered["finder"])
            self._is_watch_due = True

    # ---- what the client does --------------------------------------------------------------

    def hear(self, pcm: Pcm) -> None:
        """The next sound."""
        if self._detection is None:
            self._keep(pcm)
        elif self.interruptions.is_watching:
            self._watched_samples += len(pcm)
            self._heard_samples += len(pcm)
            self.interruptions.hear(pcm)
        else:
            self._sounds.put(pcm)
            self._changed.set()

    def detect(self, detection: TurnDetection | None) -> None:
        """Find turns in another way from now on; None: the client says when one is complete."""
        self._detection = detection
        self._finder = None
        if detection is None:
            while self._sounds:
                self._keep(self._sounds.take())
        self._changed.set()

    def _finder_of(self, detection: TurnDetection) -> UtteranceFinder:
        silence = self._judges.silence(detection.vad)
        return UtteranceFinder(self._detectors(), detection.vad, silence)

    def be_quiet(self) -> None:
        """The deadline `QUIET` has passed: the client pauses, and sends nothing any more."""
        if self._finder is not None and not self.interruptions.is_watching:
            self._sounds.put(silence_of(self._finder))
            self._changed.set()

    def forget(self) -> None:
        """Forget the sound that is not a turn yet."""
        self._sounds.clear()
        self._manual.clear()
        self._manual_s = 0.0

    def commit(self, item_id: str) -> None:
        """The client says that its turn is complete.

        Raises:
            NothingToCommit: without any sound.
        """
        if not self._manual:
            raise NothingToCommit
        pcm = join(self._manual, INPUT_RATE_HZ)
        self.forget()
        self._commit(item_id, pcm, False)

    def _keep(self, pcm: Pcm) -> None:
        """Sound waits for the client's commit."""
        self._heard_samples += len(pcm)
        self._manual.append(pcm)
        self._manual_s += pcm.duration_s
        while self._manual_s > MANUAL_S and len(self._manual) > 1:
            self._manual_s -= self._manual.pop(0).duration_s

    # ---- what the answer does --------------------------------------------------------------

    def begin_answer(self) -> None:
        """An answer is being made."""
        self._is_answering = True
        self.interruptions.begin()
        self.interruptions.is_watching = self._may_watch()

    def end_answer(self) -> None:
        """The answer has been made; it may still be heard."""
        self._is_answering = False
        self._session.deadlines.set("played", self.interruptions.playback.ends_s)
        self._changed.set()

    def played(self) -> None:
        """The deadline `played` has passed."""
        self._changed.set()

    def _be_interrupted(self, at_sample: int) -> None:
        watched_from = self._heard_samples - self._watched_samples
        self._tell_speech(watched_from + at_sample)
        self._is_told = True
        self._cut()
        self._changed.set()

    # ---- listening -------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen until cancelled."""
        watch = _WatchTask(self.interruptions, self._detectors, self._judges)
        try:
            while True:
                detection = self._detection
                if detection is not None and (self._finder is None or self._is_watch_due):
                    if self._finder is None:
                        self._finder = self._finder_of(detection)
                        self._start = self._heard_samples
                    self._is_watch_due = False
                    if watch.follow(detection.interruption):
                        self._watched_samples = 0
                if self._is_played():
                    await self._resume()
                elif self._sounds and detection is not None:
                    await self._find(self._sounds.take(), detection)
                else:
                    self.interruptions.is_watching |= self._may_watch()
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._early.end()
            watch.stop()

    def _may_watch(self) -> bool:
        """True if sound is to be heard as what might interrupt. Who speaks when an answer begins is
        let finish: that is not an interruption."""
        interruptions, finder = self.interruptions, self._finder
        return (
            interruptions.is_armed
            and not interruptions.is_cut
            and (self._is_answering or interruptions.playback.is_heard)
            and self._detection is not None
            and finder is not None
            and not finder.is_speaking
            and not self._sounds
        )

    def _is_played(self) -> bool:
        """True if nothing is left to interrupt, and the watch is still on."""
        interruptions = self.interruptions
        if not interruptions.is_watching:
            return False
        return interruptions.is_cut or not (self._is_answering or interruptions.playback.is_heard)

    async def _resume(self) -> None:
        """Listen for turns again, beginning with what was said meanwhile."""
        self._session.deadlines.clear("played")
        spoken = await self.interruptions.hand_over()
        detection, finder = self._detection, self._finder
        if detection is None or finder is None:
            return
        finder.reset()
        self._start = self._heard_samples - sum(len(pcm) for pcm in spoken)
        for pcm in spoken:
            await self._find(pcm, detection, is_known=True)
        if self._is_told and not finder.is_speaking:
            # The detector of turns is stricter than the watch: to it, this was no speech.
            self._tell_silence(self._heard_samples)

    async def _find(self, pcm: Pcm, detection: TurnDetection, *, is_known: bool = False) -> None:
        """Look for turns.

        Args:
            is_known: the watch has heard this sound, and it is counted.
        """
        finder = self._finder
        if not is_known:
            self._heard_samples += len(pcm)
            self.interruptions.learn(pcm)
        if finder is None:
            return
        self._is_hearing = True
        try:
            found = await find(finder, pcm)
        finally:
            self._is_hearing = False
        for event in found:
            match event:
                case SpeechBegan():
                    if not self._is_told:
                        self._tell_speech(self._start + event.at_sample)
                case SpeechEnded(utterance=utterance):
                    self._tell_silence(self._start + event.at_sample)
                    if utterance is not None:
                        self._early.begin_turn()
                        self._commit(self._item_id, utterance.pcm, detection.answers)

        if detection.answers:
            self._early.follow(finder)
        wait_for_silence(self._session, finder)

    def _tell_speech(self, at_sample: int) -> None:
        self._item_id = make_id("item")
        self._session.emit(SpeechStarted(self._item_id, _ms(at_sample)))

    def _tell_silence(self, at_sample: int) -> None:
        self._is_told = False
        self._session.emit(SpeechStopped(self._item_id, _ms(at_sample)))


class _WatchTask:
    """The task that listens for interruptions, restarted where it has to listen differently."""

    def __init__(
        self, interruptions: Interruptions, detectors: DetectorFactory, judges: TurnJudges
    ) -> None:
        self._interruptions = interruptions
        self._detectors = detectors
        self._judges = judges
        self._options: InterruptionOptions | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, options: InterruptionOptions) -> bool:
        """Listen as `options` say; whether that is new."""
        if options == self._options:
            return False
        self.stop()
        self._options = options
        self._interruptions.arm(options, self._detectors, self._judges)
        self._task = asyncio.create_task(self._interruptions.run())
        return True

    def stop(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()


def _ms(samples: int) -> int:
    return samples * 1000 // INPUT_RATE_HZ
