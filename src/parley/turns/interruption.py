"""Is the user interrupting? Listens to the microphone while the assistant is heard.

It reports, in this order: the user may be speaking (`SpeechSuspected`: play more softly, decide
later), they interrupt (`Interrupted`), and the speech is over (`SpeechOver`). Without the second it
was a cough, an acknowledgement or the assistant's own echo. A pure state machine without clocks and
sockets. Times are monotonic seconds.

Audio is examined in windows of 1024 samples (64 ms), as in `utterance.py`, but a new window starts
every half window, so that an interruption need not wait for a window to fill. While nothing is
suspected, an incomplete half is examined too, where a piece of audio ends; the detector's state is
restored afterwards.

- A window counts as speech if the detector is sure enough of its second half and the window stands
  out of the room's noise, which is learnt from the quieter windows of the last seconds: a crowd
  that talks all the time is noise.
- `min_speech_ms` of speech make a suspicion. With `backchannel: heed` it is an interruption
  immediately; with `ignore`, the default, after `BACKCHANNEL_MS` of speech with pauses below
  `PAUSE_MS`, because "mhm" and "yes" are shorter.
- With `backchannel: words` and a matcher (`keywords.py`), the words are matched after `ASKED_MS`
  and when the speech is over. A command interrupts immediately, and so does speech that is
  certainly not an acknowledgement; an acknowledgement may last `LONG_ACKNOWLEDGEMENT_MS`. Before
  that, the start of the speech is judged (`onset.py`), if it cannot be an echo.
- Audio that resembles what was played in the last seconds is the assistant's echo (`echo.py`):
  compared by waveform at any time, by spectrum over time before it would interrupt.
- A speaker who is much softer than the user was in their last turn is another person
  (`user_voice.py`).

Source: docs/understand/interruptions.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Pcm, Samples
from parley.protocol.values import InterruptionOptions
from parley.turns.echo import PlayedSound
from parley.turns.judges import NO_JUDGES, TurnJudges
from parley.turns.onset import ASKED_MS as ONSET_MS
from parley.turns.onset import COMMAND_ODDS, LEAST_MEAN, LEAST_ODDS, OTHER_ODDS, OVER
from parley.turns.user_voice import UserVoice
from parley.vad.base import (
    HALF_SAMPLES,
    RATE_HZ,
    WINDOW_SAMPLES,
    Detector,
    Remembering,
    heard_in,
    restore,
    snapshot,
)

BACKCHANNEL_MS: Final = 800
"""Longer than anyone takes to say "mhm"."""

LONG_ACKNOWLEDGEMENT_MS: Final = 1150
"""Length at which an apparent acknowledgement, or two of them, interrupts."""

ASKED_MS: Final = (400, 550, 700)
"""After so much time since it began, and again when it is over, the matcher is asked."""

OVER_MS: Final = 160
"""A pause this long: what was said is said."""

OTHER_PHONES: Final = 4
"""Phones outside the listed words from which speech is not an acknowledgement."""

KEPT_S: Final = 2.0
"""Of the last sound, for the matcher and for spectra."""

BEFORE_MS: Final = 96
"""Sound before the detected beginning that the matcher also hears."""

PAUSE_MS: Final = 320
"""A pause this long ends what might have become an interruption."""

LEAST_DBFS: Final = -50.0
"""Below this the user is not speaking to the machine."""

ABOVE_NOISE_DB: Final = 8.0
"""Level of speech above the room's noise."""

NOISE_S: Final = 8.0
"""Length of sound from which the room's noise is learned."""

NOISE_QUANTILE: Final = 0.2
"""Of the levels of that time; speech has more pauses than a crowd."""

NOISE_LEAST_S: Final = 0.5
"""Before that, the room is taken to be quiet."""

COMPARED_HALVES: Final = 12
"""384 ms: what is looked for in what was played."""

_SAMPLES_PER_MS: Final = RATE_HZ // 1000
_HALVES_PER_S: Final = RATE_HZ / HALF_SAMPLES
_ASKED_SAMPLES: Final = ASKED_MS[0] * _SAMPLES_PER_MS


@dataclass(frozen=True, slots=True)
class SpeechSuspected:
    """The user may be interrupting since `at_sample`."""

    at_sample: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user interrupts; the speech started at `at_sample`."""

    at_sample: int


@dataclass(frozen=True, slots=True)
class SpeechOver:
    """Nobody speaks any more at `at_sample`; without an `Interrupted` before, it was a noise or an
    acknowledgement."""

    at_sample: int


InterruptionEvent = SpeechSuspected | Interrupted | SpeechOver


class InterruptionDetector:
    """Listens to one conversation while the assistant is heard. Not safe from two threads."""

    def __init__(
        self,
        detector: Detector,
        options: InterruptionOptions,
        judges: TurnJudges = NO_JUDGES,
    ) -> None:
        """Listen from now on.

        Args:
            judges: of words and onsets, which `backchannel: words` asks; without words that is
                `ignore`. They may take a tenth of a second (`may_ask`).
        """
        self._detector = detector
        self._words = judges.words if options.backchannel == "words" else None
        self._onsets = judges.onsets if options.backchannel == "words" else None
        # The default sensitivity, a half, is the threshold at which Silero balances its errors.
        self._threshold = 0.95 - 0.9 * options.sensitivity
        self._is_heeding = options.backchannel == "heed"
        most_ms = options.min_speech_ms
        if options.backchannel != "heed":
            most_ms = max(most_ms, BACKCHANNEL_MS)
        self._least = options.min_speech_ms * _SAMPLES_PER_MS
        """Samples of speech that make a suspicion."""
        self._most = most_ms * _SAMPLES_PER_MS
        """... and an interruption."""
        self._levels: deque[float] = deque(maxlen=round(NOISE_S * _HALVES_PER_S))
        self._played = PlayedSound()
        self._heard: deque[Samples] = deque(maxlen=COMPARED_HALVES)
        self._kept: deque[Samples] = deque(maxlen=round(KEPT_S * _HALVES_PER_S))
        self._voice = UserVoice(HALF_SAMPLES / RATE_HZ)
        self._energy = 0.0
        """Of the samples in `_spoken`."""
        self._asked = self._onsets_asked = 0
        """Number of questions to the matcher and the judge of onsets about this speech."""
        self._odds: float | None = None
        """Last result of that judge; None: it was not asked yet, or could not be."""
        self._is_acknowledgement = self._was_over_asked = False
        self._was_echo = False
        self._is_sure = False
        """True if the next half is as `_was_echo` says."""
        self._rest: Samples = np.empty(0, np.float32)
        self._counted = 0
        """Samples of `_rest` that were speech and are in `_spoken` already."""
        self._position = 0
        self._last_power = 0.0
        self._began: int | None = None
        self._spoken = 0
        self._pause = 0
        """Samples of speech since it began, and since then without any."""
        self._is_suspected = False
        self._is_interrupted = False

    def play(self, pcm: Pcm, starts_s: float) -> None:
        """The assistant's sound, of any rate; the client begins to play it at `starts_s`."""
        self._played.play(pcm, starts_s)

    def cut(self, at_s: float) -> None:
        """The client plays nothing more of what it was sent."""
        self._played.cut(at_s)

    def move(self, seconds: float) -> None:
        """The client says that it plays so much later than it was taken to."""
        self._played.move(seconds)

    def learn(self, pcm: Pcm) -> list[InterruptionEvent]:
        """Sound from the microphone while nothing is played: how loud the room is. What was
        suspected before is over."""
        events: list[InterruptionEvent] = []
        if self._is_suspected:
            events.append(SpeechOver(self._position))
        self._forget_speech()
        if len(self._heard):
            # What is heard next does not follow on what was heard last.
            self._detector.reset()
            self._heard.clear()
            self._was_echo = self._is_sure = False
            self._position += len(self._rest)
            self._rest = np.empty(0, np.float32)
        whole = len(pcm) - len(pcm) % HALF_SAMPLES
        for half in pcm.samples[:whole].reshape(-1, HALF_SAMPLES):
            (level,) = self._levels_dbfs(half[np.newaxis])
            if self._stands_out(level):
                self._voice.learn(_power(half))
            self._levels.append(level)
        return events

    def may_ask(self, samples: int) -> bool:
        """True if hearing so many more samples may take as long as the matcher does."""
        return self._words is not None and (self._began is not None or samples > _ASKED_SAMPLES)

    def feed(self, pcm: Pcm, at_s: float) -> list[InterruptionEvent]:
        """Hear the next stretch of the microphone; what happened in it.

        Args:
            pcm: 16 kHz, of any length.
            at_s: when its last sample came.
        """
        if pcm.rate_hz != RATE_HZ:
            raise ValueError(f"interruptions are heard at {RATE_HZ} Hz, not {pcm.rate_hz} Hz")
        samples = np.concatenate([self._rest, pcm.samples])
        whole = len(samples) - len(samples) % HALF_SAMPLES
        ends_s = at_s - len(samples) / RATE_HZ
        events: list[InterruptionEvent] = []
        for half, probability in heard_in(self._detector, samples[:whole], HALF_SAMPLES):
            ends_s += HALF_SAMPLES / RATE_HZ
            self._hear(half, probability, ends_s, events)
        self._rest = samples[whole:].copy()
        if len(self._rest) and not self._is_suspected:
            self._hear_newest(at_s, events)
        return events

    def _hear(
        self, half: Samples, probability: float, ends_s: float, events: list[InterruptionEvent]
    ) -> None:
        (level,) = self._levels_dbfs(half[np.newaxis])
        self._heard.append(half)
        self._kept.append(half)
        self._position += HALF_SAMPLES
        counted, self._counted = self._counted, 0
        stands_out = self._stands_out(level)
        if not self._is_suspected:
            starts_s = ends_s - HALF_SAMPLES / RATE_HZ
            self._played.hear(stands_out, starts_s, ends_s, half)
        is_speech = stands_out and probability >= self._threshold
        if is_speech and not self._is_echo(ends_s):
            self._speak(
                self._position - HALF_SAMPLES, HALF_SAMPLES - counted, _power(half), ends_s, events
            )
        elif self._began is not None:
            self._pause += HALF_SAMPLES
            self._ask(self._began, ends_s, events)
            if self._pause >= PAUSE_MS * _SAMPLES_PER_MS:
                if self._is_suspected:
                    events.append(SpeechOver(self._position))
                self._forget_speech()
        if not is_speech:
            self._was_echo = self._is_sure = False
        self._levels.append(level)

    def _hear_newest(self, ends_s: float, events: list[InterruptionEvent]) -> None:
        """Hear the newest half, which ends with `_rest`; the detector will hear that again when
        its half is whole."""
        detector, rest = self._detector, len(self._rest)
        if not self._heard or not isinstance(detector, Remembering):
            return
        heard = np.concatenate([*self._heard, self._rest])[-COMPARED_HALVES * HALF_SAMPLES :]
        if not self._stands_out(_dbfs(_power(heard[-WINDOW_SAMPLES:]))):
            return
        kept = snapshot(detector)
        (probability,) = detector.probabilities(heard[np.newaxis, -HALF_SAMPLES:])
        restore(detector, kept)
        if probability < self._threshold:
            return
        if self._was_echo if self._is_sure else self._played.is_like([heard], ends_s):
            return
        fresh = HALF_SAMPLES if self._began is None else rest - self._counted
        self._counted = rest
        power = _power(heard[-HALF_SAMPLES:])
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
        if self._began is None:
            self._began = at_sample
            self._pause = HALF_SAMPLES
            self._played.hear_person()
        # The window of this half also contains the previous half.
        self._spoken += fresh + min(self._pause, HALF_SAMPLES)
        self._energy += power * (fresh + min(self._pause, HALF_SAMPLES))
        self._pause = 0
        if not self._is_suspected and self._spoken >= self._least and self._may_be_user:
            self._is_suspected = True
            events.append(SpeechSuspected(self._began))
        self._ask(self._began, ends_s, events)
        most = self._most
        if self._is_acknowledgement and (self._odds is None or self._odds < 0):
            most = max(most, LONG_ACKNOWLEDGEMENT_MS * _SAMPLES_PER_MS)
        if self._spoken >= most:
            self._interrupt(self._began, ends_s, events)

    def _interrupt(self, began: int, ends_s: float, events: list[InterruptionEvent]) -> None:
        """Reports an interruption, if it is the user who speaks."""
        if self._is_interrupted or not self._is_suspected or not self._may_be_user:
            return
        heard = self._said(began, before_ms=0)
        if not self._is_heeding and self._played.is_alike_in_time(heard, ends_s):
            events.append(SpeechOver(self._position))
            self._forget_speech()
            return
        self._is_interrupted = True
        events.append(Interrupted(began))

    def _ask(self, began: int, ends_s: float, events: list[InterruptionEvent]) -> None:
        """Ask the judges, if it is time to."""
        if self._words is None or self._is_interrupted or not self._is_suspected:
            return
        if self._surely_begins(began, ends_s):
            self._interrupt(began, ends_s, events)
            return
        is_over = self._pause >= OVER_MS * _SAMPLES_PER_MS
        if is_over:
            if self._was_over_asked:
                return
            self._was_over_asked = True
            self._judge_onset(began, ends_s, OVER)
        elif (
            self._asked >= len(ASKED_MS)
            or self._position - began < ASKED_MS[self._asked] * _SAMPLES_PER_MS
        ):
            return
        else:
            self._asked += 1
            self._was_over_asked = False
        found = self._words.match(self._said(began, before_ms=BEFORE_MS))
        self._is_acknowledgement = found.kind == "acknowledgement"
        odds = math.inf if self._odds is None else self._odds
        is_other = found.kind == "other" and found.phones >= OTHER_PHONES and not is_over
        is_other = is_other and odds >= OTHER_ODDS
        if is_other or (found.kind == "command" and odds >= COMMAND_ODDS):
            self._interrupt(began, ends_s, events)

    def _surely_begins(self, began: int, ends_s: float) -> bool:
        """True if it begins otherwise than an acknowledgement, and cannot be echo."""
        asked = self._onsets_asked
        if self._onsets is None or self._pause or asked >= len(ONSET_MS):
            return False
        if self._position - began < ONSET_MS[asked] * _SAMPLES_PER_MS:
            return False
        self._onsets_asked += 1
        before = self._odds
        odds = self._judge_onset(began, ends_s, asked)
        if odds is None:
            return False
        is_likely = before is not None and (before + odds) / 2 >= LEAST_MEAN
        return is_likely or odds >= LEAST_ODDS

    def _judge_onset(self, began: int, ends_s: float, asked: int) -> float | None:
        """Result of the judge of onsets; None: it may be an echo."""
        if self._onsets is None or not self._played.is_excluded(
            self._said(began, before_ms=0), ends_s
        ):
            return None
        self._odds = self._onsets.log_odds(self._said(began, before_ms=BEFORE_MS), asked)
        return self._odds

    def _said(self, began: int, *, before_ms: int) -> Samples:
        """Sound since speech started, without a trailing pause; at most `KEPT_S`."""
        last = len(self._kept) - max(0, self._pause // HALF_SAMPLES - 1)
        count = (self._position - began) // HALF_SAMPLES + before_ms // 32
        halves = list(self._kept)[max(0, len(self._kept) - count) : max(1, last)]
        return np.concatenate([np.empty(0, np.float32), *halves])

    @property
    def _may_be_user(self) -> bool:
        if self._is_heeding:
            return True
        power = self._energy / max(1, self._spoken)
        return self._voice.may_be(power, self._spoken / _SAMPLES_PER_MS)

    def _forget_speech(self) -> None:
        self._began = None
        self._spoken = self._pause = self._counted = 0
        self._is_suspected = self._is_interrupted = False
        self._energy = 0.0
        self._asked = self._onsets_asked = 0
        self._odds = None
        self._is_acknowledgement = self._was_over_asked = False

    def _stands_out(self, level: float) -> bool:
        """True if a window is louder than the room usually is."""
        if level < LEAST_DBFS or len(self._levels) < NOISE_LEAST_S * _HALVES_PER_S:
            return level >= LEAST_DBFS
        noise = float(np.quantile(self._levels, NOISE_QUANTILE))
        return level >= noise + ABOVE_NOISE_DB

    def _is_echo(self, ends_s: float) -> bool:
        """True if what was heard last is the assistant's own sound.

        That costs more than all else, so what is not an echo, or has been one twice, is not
        compared again in the next half. Once is not enough: the first moment of any voice is like
        some moment of another.
        """
        if self._is_sure:
            self._is_sure = False
            return self._was_echo
        is_echo = self._played.is_heard_in(self._heard, ends_s)
        self._is_sure = self._was_echo or not is_echo
        self._was_echo = is_echo
        return is_echo

    def _levels_dbfs(self, halves: npt.NDArray[np.float32]) -> list[float]:
        """The levels of the windows that end with each of `halves`, shape (B, HALF_SAMPLES)."""
        levels: list[float] = []
        for half in halves:
            power = _power(half)
            levels.append(_dbfs((self._last_power + power) / 2))
            self._last_power = power
        return levels


def _power(samples: Samples) -> float:
    # float64: the square of a sample beyond full scale must not overflow.
    return float(np.einsum("s,s->", samples, samples, dtype=np.float64)) / len(samples)


def _dbfs(power: float) -> float:
    return 10 * math.log10(max(power, 1e-12))
