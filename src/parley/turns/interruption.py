"""Detects interruptions in the microphone's audio while the assistant is heard.

It reports that the user may be speaking (play more softly, decide later), that they interrupt, and
that the speech is over, in this order (`InterruptionEvent`). Without the second, it was a cough, an
acknowledgement or the assistant's own echo. A pure state machine without clocks and sockets. Times
are monotonic seconds.

Audio is examined in windows of 1024 samples (64 ms), as in `utterance.py`, but a new window starts
every half window, so that an interruption need not wait for a window to fill. While nothing is
suspected, an incomplete half is examined too, where a piece of audio ends; the detector's state is
restored afterwards.

- A window counts as speech if the detector is sure enough of its second half and the window stands
  out of the room's noise, learnt from the quieter windows of the last seconds.
- `min_speech_ms` of speech make a suspicion. With `backchannel: heed` it is an interruption
  immediately; with `ignore` after `BACKCHANNEL_MS` of speech with pauses below `PAUSE_MS`.
- With `backchannel: words`, the default, the start of the speech (`onset.py`) and its words
  (`keywords.py`) are judged.
- The assistant's echo (`echo.py`), and a voice much softer than the user's (`user_voice.py`), do
  not interrupt.

Source: docs/understand/interruptions.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from parley.media.pcm import Pcm, Samples
from parley.protocol.values import InterruptionOptions
from parley.turns.echo import SPECTRA_LEAST_S, PlayedSound
from parley.turns.judges import NO_JUDGES, TurnJudges
from parley.turns.onset import ASKED_MS as ONSET_MS
from parley.turns.onset import LEAST_ODDS, OVER
from parley.turns.user_voice import UserVoice
from parley.vad.base import (
    HALF_SAMPLES,
    RATE_HZ,
    WINDOW_SAMPLES,
    Detector,
    Remembering,
    heard_in,
    power_of,
    restore,
    snapshot,
    steadied,
)

BACKCHANNEL_MS: Final = 800
"""Longer than any "mhm"."""

LONG_ACKNOWLEDGEMENT_MS: Final = 1150
"""Length at which an apparent acknowledgement, or two of them, interrupts."""

ASKED_MS: Final = (400, 700)
"""Times after the start of speech at which the word matcher is called; it is called again when the
speech is over."""

OVER_MS: Final = 160
"""Length of a pause after which the speech counts as complete."""

KEPT_S: Final = 2.0
"""Length of recent audio kept for the matcher and for spectra."""

BEFORE_MS: Final = 96
"""Length of audio before the detected start that the matcher also gets."""

PAUSE_MS: Final = 320
"""Length of a pause that ends a suspicion."""

LEAST_DBFS: Final = -50.0
"""Minimum level of speech that is addressed to the assistant."""

ABOVE_NOISE_DB: Final = 8.0
"""Minimum level of speech above the room's noise."""

NOISE_S: Final = 8.0
"""Length of audio from which the room's noise is learned."""

NOISE_QUANTILE: Final = 0.2
"""Quantile of the levels in that time which is the noise; speech has more pauses than a crowd."""

NOISE_LEAST_S: Final = 0.5
"""Before this time, the room is assumed to be quiet."""

LEARNT_S: Final = 30.0
"""Maximum length that is learned of one piece: the state covers no more. A client may send ten
minutes in one message, which would take a second."""

LOUDER: Final = 8.0
"""If speech that is too soft for the user gets this many times as powerful, the user may have
started. Source: docs/log/conversation.md."""

COMPARED_HALVES: Final = 12
"""Number of half windows that are compared with the played audio: 384 ms."""

_SAMPLES_PER_MS: Final = RATE_HZ // 1000
_HALVES_PER_S: Final = RATE_HZ / HALF_SAMPLES
_ASKED_SAMPLES: Final = ASKED_MS[0] * _SAMPLES_PER_MS


@dataclass(frozen=True, slots=True)
class InterruptionEvent:
    """`suspected`: the user may have been interrupting since `at_sample`; `interrupted`: they
    interrupt, and the speech started there; `over`: the speech has ended. Without a preceding
    `interrupted`, it was a noise or an acknowledgement."""

    kind: Literal["suspected", "interrupted", "over"]
    at_sample: int


@dataclass(slots=True)
class _Speech:
    """Speech that may interrupt.

    Args:
        began: its first sample.
        spoken, pause: number of samples of speech since then, and of samples since the last of
            them.
        energy: of the samples of speech.
        asked, onsets_asked: number of calls of the word matcher and the judge of onsets.
        odds: last result of that judge; None: it was not called yet, or could not be.
    """

    began: int
    spoken: int = 0
    pause: int = HALF_SAMPLES
    energy: float = 0.0
    asked: int = 0
    onsets_asked: int = 0
    odds: float | None = None
    is_acknowledgement: bool = False
    was_over_asked: bool = False
    is_suspected: bool = False
    is_interrupted: bool = False

    @property
    def is_brief(self) -> bool:
        """True if it sounds like an acknowledgement; while that is unknown, True if its words are
        one."""
        return self.is_acknowledgement if self.odds is None else self.odds < 0

    @property
    def power(self) -> float:
        return self.energy / max(1, self.spoken)


class InterruptionDetector:
    """Detects interruptions in one conversation while the assistant is heard. Not thread-safe."""

    def __init__(
        self,
        detector: Detector,
        options: InterruptionOptions,
        judges: TurnJudges = NO_JUDGES,
    ) -> None:
        """Start with no audio processed.

        Args:
            judges: of words and onsets, used with `backchannel: words`; without judges that is the
                same as `ignore`. They may take a tenth of a second (`may_ask`).
        """
        self._detector = detector
        self._words = judges.words if options.backchannel == "words" else None
        self._onsets = judges.onsets if options.backchannel == "words" else None
        # The default sensitivity, a half, is the threshold at which Silero balances its errors.
        self._threshold = 0.95 - 0.9 * options.sensitivity
        self._is_heeding = options.backchannel == "heed"
        self._least = options.min_speech_ms * _SAMPLES_PER_MS
        """Number of samples of speech that raise a suspicion."""
        most = 0 if self._is_heeding else BACKCHANNEL_MS * _SAMPLES_PER_MS
        self._most = max(self._least, most)
        """Number of samples of speech that are an interruption."""
        self._levels: deque[float] = deque(maxlen=round(NOISE_S * _HALVES_PER_S))
        self._played = PlayedSound(is_hasty=self._is_heeding)
        self._heard: deque[Samples] = deque(maxlen=round(KEPT_S * _HALVES_PER_S))
        self._voice = UserVoice(HALF_SAMPLES / RATE_HZ)
        self._was_echo = False
        self._is_sure = False
        """True if `_was_echo` also applies to the next half."""
        self._rest: Samples = np.empty(0, np.float32)
        self._counted = 0
        """Number of samples of `_rest` that were speech and are already counted."""
        self._position = 0
        self._last_power = 0.0
        self._speech: _Speech | None = None

    def play(self, pcm: Pcm, starts_s: float) -> None:
        """Add the assistant's audio, of any rate; the client starts to play it at `starts_s`."""
        self._played.play(pcm, starts_s)

    def cut(self, at_s: float) -> None:
        """The client plays nothing more of the audio that it was sent, from `at_s`."""
        self._played.cut(at_s)

    def move(self, seconds: float) -> None:
        """The client reports that it plays later than computed, by `seconds`."""
        self._played.move(seconds)

    def learn(self, pcm: Pcm) -> list[InterruptionEvent]:
        """Learn the room's noise from the microphone's audio while nothing is played. A suspicion
        ends."""
        events: list[InterruptionEvent] = []
        self._end_speech(events)
        if len(self._heard):
            # The next audio does not continue the previous one.
            self._detector.reset()
            self._heard.clear()
            self._voice.begin_turn()
            self._was_echo = self._is_sure = False
            self._position += len(self._rest)
            self._rest = np.empty(0, np.float32)
        newest = pcm.samples[-round(LEARNT_S * RATE_HZ) :]
        whole = len(newest) - len(newest) % HALF_SAMPLES
        for half in newest[:whole].reshape(-1, HALF_SAMPLES):
            level = self._level_dbfs(half)
            if self._stands_out(level):
                self._voice.learn(power_of(half))
            self._levels.append(level)
        return events

    def may_ask(self, samples: int) -> bool:
        """True if processing this number of samples may take as long as the word matcher."""
        return self._has_judges and (self._speech is not None or samples > _ASKED_SAMPLES)

    @property
    def _has_judges(self) -> bool:
        return not (self._words is None and self._onsets is None)

    def feed(self, pcm: Pcm, at_s: float) -> list[InterruptionEvent]:
        """Process the next stretch of the microphone; returns its events.

        Args:
            pcm: 16 kHz, of any length.
            at_s: time at which its last sample was received.
        """
        if pcm.rate_hz != RATE_HZ:
            raise ValueError(f"interruptions are heard at {RATE_HZ} Hz, not {pcm.rate_hz} Hz")
        samples = np.concatenate([self._rest, pcm.samples])
        whole = len(samples) - len(samples) % HALF_SAMPLES
        ends_s = at_s - len(samples) / RATE_HZ
        self._rest = samples[:0]
        events: list[InterruptionEvent] = []
        for half, probability in heard_in(self._detector, samples[:whole], HALF_SAMPLES):
            ends_s += HALF_SAMPLES / RATE_HZ
            self._hear(half, probability, ends_s, events)
        self._rest = samples[whole:].copy()
        if len(self._rest) and not self._is_suspected:
            self._hear_newest(at_s, events)
        return events

    @property
    def _is_suspected(self) -> bool:
        return self._speech is not None and self._speech.is_suspected

    def _end_speech(self, events: list[InterruptionEvent]) -> None:
        if self._is_suspected:
            events.append(InterruptionEvent("over", self._position))
        if self._speech is not None:
            spoken_ms = self._speech.spoken / _SAMPLES_PER_MS
            self._voice.end(self._speech.power, spoken_ms, is_user=self._speech.is_interrupted)
        self._speech = None
        self._counted = 0

    def _hear(
        self, half: Samples, probability: float, ends_s: float, events: list[InterruptionEvent]
    ) -> None:
        level = self._level_dbfs(half)
        self._heard.append(half)
        self._position += HALF_SAMPLES
        counted, self._counted = self._counted, 0
        stands_out = self._stands_out(level)
        if not self._is_suspected:
            starts_s = ends_s - HALF_SAMPLES / RATE_HZ
            self._played.hear(half, starts_s, ends_s, is_loud=stands_out)
        is_speech = stands_out and probability >= self._threshold
        if is_speech and not self._is_echo(ends_s):
            begins = self._position - HALF_SAMPLES
            self._speak(begins, HALF_SAMPLES - counted, power_of(half), ends_s, events)
        elif self._speech is not None:
            self._speech.pause += HALF_SAMPLES
            self._ask(self._speech, ends_s, events)
            if self._speech is not None and self._speech.pause >= PAUSE_MS * _SAMPLES_PER_MS:
                self._end_speech(events)
        if not is_speech:
            self._was_echo = self._is_sure = False
        self._levels.append(level)

    def _hear_newest(self, ends_s: float, events: list[InterruptionEvent]) -> None:
        """Process the newest half, which ends with `_rest`; the detector processes `_rest` again
        when its half is complete."""
        detector, rest = self._detector, len(self._rest)
        if not self._heard or not isinstance(detector, Remembering):
            return
        heard = self._compared(self._rest)
        if not self._stands_out(_dbfs(power_of(heard[-WINDOW_SAMPLES:]))):
            return
        kept = snapshot(detector)
        (probability,) = detector.probabilities(heard[np.newaxis, -HALF_SAMPLES:])
        restore(detector, kept)
        if probability < self._threshold:
            return
        if (
            self._was_echo
            if self._is_sure
            else self._played.is_heard_in(heard, ends_s, learns=False)
        ):
            return
        fresh = HALF_SAMPLES if self._speech is None else rest - self._counted
        self._counted = rest
        power = power_of(heard[-HALF_SAMPLES:])
        self._speak(self._position + rest - HALF_SAMPLES, fresh, power, ends_s, events)

    def _speak(
        self,
        at_sample: int,
        fresh: int,
        power: float,
        ends_s: float,
        events: list[InterruptionEvent],
    ) -> None:
        """Count `fresh` more samples of speech, heard in a half that starts at `at_sample`."""
        speech = self._speech
        if (
            speech is not None
            and not speech.is_suspected
            and speech.spoken >= self._least
            and power >= LOUDER * speech.power
        ):
            # It was a softer voice or an echo, which a user who starts now need not outweigh.
            self._voice.end(speech.power, speech.spoken / _SAMPLES_PER_MS, is_user=False)
            speech = None
        if speech is None:
            speech = self._speech = _Speech(at_sample)
        # The window of this half also contains the previous half.
        fresh += min(speech.pause, HALF_SAMPLES)
        speech.spoken += fresh
        speech.energy += power * fresh
        speech.pause = 0
        if not speech.is_suspected and speech.spoken >= self._least and self._may_be_user(speech):
            speech.is_suspected = True
            events.append(InterruptionEvent("suspected", speech.began))
        self._ask(speech, ends_s, events)
        most = self._most
        if speech.is_brief:
            most = max(most, LONG_ACKNOWLEDGEMENT_MS * _SAMPLES_PER_MS)
        if speech is self._speech and speech.spoken >= most:
            self._interrupt(speech, ends_s, events)

    def _interrupt(self, speech: _Speech, ends_s: float, events: list[InterruptionEvent]) -> None:
        """Report an interruption, if it is the user who speaks."""
        if speech.is_interrupted or not speech.is_suspected or not self._may_be_user(speech):
            return
        heard = self._said(speech, before_ms=0)
        if self._played.is_alike_in_time(heard, ends_s):
            self._end_speech(events)
            return
        if self._is_heeding and not self._is_surely_user(speech, heard, ends_s):
            return
        self._played.forget_newest()
        speech.is_interrupted = True
        events.append(InterruptionEvent("interrupted", speech.began))

    def _ask(self, speech: _Speech, ends_s: float, events: list[InterruptionEvent]) -> None:
        """Call the judges, if it is time to."""
        if not (self._has_judges and speech.is_suspected) or speech.is_interrupted:
            return
        if self._surely_begins(speech, ends_s):
            self._interrupt(speech, ends_s, events)
            return
        is_over = speech.pause >= OVER_MS * _SAMPLES_PER_MS
        if is_over:
            if speech.was_over_asked:
                return
            speech.was_over_asked = True
            self._judge_onset(speech, ends_s, OVER)
        elif (
            speech.asked >= len(ASKED_MS)
            or self._position - speech.began < ASKED_MS[speech.asked] * _SAMPLES_PER_MS
        ):
            return
        else:
            speech.asked += 1
            speech.was_over_asked = False
        if self._words is None:
            return
        found = self._words(self._said(speech, before_ms=BEFORE_MS))
        speech.is_acknowledgement = found == "acknowledgement"
        if found == "command" and not speech.is_brief:
            self._interrupt(speech, ends_s, events)

    def _surely_begins(self, speech: _Speech, ends_s: float) -> bool:
        """True if its start differs from that of an acknowledgement, and it cannot be echo."""
        asked = speech.onsets_asked
        if self._onsets is None or speech.pause or asked >= len(ONSET_MS):
            return False
        if self._position - speech.began < ONSET_MS[asked] * _SAMPLES_PER_MS:
            return False
        speech.onsets_asked += 1
        odds = self._judge_onset(speech, ends_s, asked)
        return odds is not None and odds >= LEAST_ODDS

    def _judge_onset(self, speech: _Speech, ends_s: float, asked: int) -> float | None:
        """The result of the judge of onsets; None if it may be an echo."""
        heard = self._said(speech, before_ms=0)
        if self._onsets is None or not self._played.is_excluded(heard, ends_s):
            return None
        speech.odds = self._onsets(self._said(speech, before_ms=BEFORE_MS), asked)
        return speech.odds

    def _said(self, speech: _Speech, *, before_ms: int) -> Samples:
        """The audio since its start, without a trailing pause: at least half a window, at most
        `KEPT_S`."""
        last = len(self._heard) - max(0, speech.pause // HALF_SAMPLES - 1)
        count = max(1, (self._position - speech.began) // HALF_SAMPLES + before_ms // 32)
        halves = list(self._heard)[max(0, len(self._heard) - count) : max(1, last)]
        said = np.concatenate([*halves, self._rest])
        return steadied(said[len(said) % HALF_SAMPLES :])

    def _compared(self, *newest: Samples) -> Samples:
        """The last audio, of the length that is compared with the played audio."""
        halves = list(self._heard)[-COMPARED_HALVES:]
        return np.concatenate([*halves, *newest])[-COMPARED_HALVES * HALF_SAMPLES :]

    def _may_be_user(self, speech: _Speech) -> bool:
        if self._is_heeding:
            return True
        return self._voice.may_be(speech.power, speech.spoken / _SAMPLES_PER_MS)

    def _is_surely_user(self, speech: _Speech, heard: Samples, ends_s: float) -> bool:
        """True if this cannot be an echo, even if it is too short to compare spectra."""
        if len(heard) >= SPECTRA_LEAST_S * RATE_HZ or self._played.is_excluded(heard, ends_s):
            return True
        return self._voice.may_be(speech.power, speech.spoken / _SAMPLES_PER_MS, unknown=False)

    def _stands_out(self, level: float) -> bool:
        """True if a window is louder than the room usually is."""
        if level < LEAST_DBFS or len(self._levels) < NOISE_LEAST_S * _HALVES_PER_S:
            return level >= LEAST_DBFS
        noise = float(np.quantile(self._levels, NOISE_QUANTILE))
        return level >= noise + ABOVE_NOISE_DB

    def _is_echo(self, ends_s: float) -> bool:
        """True if the last audio is the assistant's echo.

        The comparison costs more than everything else. So audio that is not an echo, or was one
        twice, is not compared again in the next half. Once is not enough: the first moment of any
        voice resembles some moment of another.
        """
        if self._is_sure:
            self._is_sure = False
            return self._was_echo
        is_echo = self._played.is_heard_in(self._compared(), ends_s)
        self._is_sure = self._was_echo or not is_echo
        self._was_echo = is_echo
        return is_echo

    def _level_dbfs(self, half: Samples) -> float:
        """The level of the window that ends with `half`, (HALF_SAMPLES,)."""
        power = power_of(half)
        before, self._last_power = self._last_power, power
        return _dbfs((before + power) / 2)


def _dbfs(power: float) -> float:
    return 10 * math.log10(max(power, 1e-12))
