"""Does somebody interrupt? Listens to the microphone while the assistant is heard.

Three answers, in this order: somebody may be speaking (`SpeechSuspected`: play more softly, decide
later), it is an interruption (`Interrupted`), and nobody speaks any more (`SpeechOver`): without
the second it was a cough, an acknowledgement or the assistant's own echo. A pure state machine: it
knows neither clocks nor sockets. Times are monotonic seconds.

Sound is looked at in windows of 1024 samples (64 ms), as in `utterance.py`, but every half of one,
each window overlapping the last: who interrupts is not kept waiting for the end of a window. Nor
for the end of a half: until something is suspected, the newest half is also heard where sound ends
between two, and then the detector is put back.

- A window counts as speech when the detector is sure enough of its second half and the sound
  stands out of the noise of the room, which is learnt from the quieter windows of the last seconds:
  a crowd that talks all the time is noise.
- `min_speech_ms` of speech make a suspicion. With `backchannel: heed` it is an interruption at the
  same moment; with `ignore`, the default, only once `BACKCHANNEL_MS` have been spoken with pauses
  below `PAUSE_MS`, because "mhm" and "yes" are shorter than that.
- What sounds like what was played in the last seconds is the assistant's echo (`echo.py`).

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
"""So long nobody says "mhm"."""

PAUSE_MS: Final = 320
"""A pause this long ends what might have become an interruption."""

LEAST_DBFS: Final = -50.0
"""Below this nobody is speaking to the machine."""

ABOVE_NOISE_DB: Final = 8.0
"""How far speech stands out of the room's noise."""

NOISE_S: Final = 8.0
"""What the noise of the room is learnt from."""

NOISE_QUANTILE: Final = 0.2
"""Of the levels of that time; speech has more pauses than a crowd."""

NOISE_LEAST_S: Final = 0.5
"""Before that, the room is taken to be quiet."""

COMPARED_HALVES: Final = 12
"""384 ms: what is looked for in what was played."""

_SAMPLES_PER_MS: Final = RATE_HZ // 1000
_HALVES_PER_S: Final = RATE_HZ / HALF_SAMPLES


@dataclass(frozen=True, slots=True)
class SpeechSuspected:
    """Somebody may be interrupting since `at_sample`."""

    at_sample: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody interrupts; the speech began at `at_sample`."""

    at_sample: int


@dataclass(frozen=True, slots=True)
class SpeechOver:
    """Nobody speaks any more at `at_sample`; without an `Interrupted` before, it was a noise or an
    acknowledgement."""

    at_sample: int


InterruptionEvent = SpeechSuspected | Interrupted | SpeechOver


class InterruptionDetector:
    """Listens to one conversation while the assistant is heard. Not safe from two threads."""

    def __init__(self, detector: Detector, options: InterruptionOptions) -> None:
        self._detector = detector
        # The default sensitivity, a half, is the threshold at which Silero balances its errors.
        self._threshold = 0.95 - 0.9 * options.sensitivity
        most_ms = options.min_speech_ms
        if options.backchannel == "ignore":
            most_ms = max(most_ms, BACKCHANNEL_MS)
        self._least = options.min_speech_ms * _SAMPLES_PER_MS
        """Samples of speech that make a suspicion."""
        self._most = most_ms * _SAMPLES_PER_MS
        """... and an interruption."""
        self._levels: deque[float] = deque(maxlen=round(NOISE_S * _HALVES_PER_S))
        self._played = PlayedSound()
        self._heard: deque[Samples] = deque(maxlen=COMPARED_HALVES)
        self._was_echo = False
        self._is_sure = False
        """Whether the next half is as `_was_echo` says."""
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
        self._levels.extend(self._levels_dbfs(pcm.samples[:whole].reshape(-1, HALF_SAMPLES)))
        return events

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
        self._position += HALF_SAMPLES
        counted, self._counted = self._counted, 0
        stands_out = self._stands_out(level)
        if not self._is_suspected:
            self._played.hear(stands_out, ends_s - HALF_SAMPLES / RATE_HZ, ends_s)
        is_speech = stands_out and probability >= self._threshold
        if is_speech and not self._is_echo(ends_s):
            self._speak(self._position - HALF_SAMPLES, HALF_SAMPLES - counted, events)
        elif self._began is not None:
            self._pause += HALF_SAMPLES
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
        self._speak(self._position + rest - HALF_SAMPLES, fresh, events)

    def _speak(self, at_sample: int, fresh: int, events: list[InterruptionEvent]) -> None:
        """So many more samples are speech, heard in a half that begins at `at_sample`."""
        if self._began is None:
            self._began = at_sample
            self._pause = HALF_SAMPLES
            self._played.hear_somebody()
        # The window of this half also holds the one before.
        self._spoken += fresh + min(self._pause, HALF_SAMPLES)
        self._pause = 0
        self._follow(self._began, events)

    def _follow(self, began: int, events: list[InterruptionEvent]) -> None:
        """What so much speech amounts to."""
        if not self._is_suspected and self._spoken >= self._least:
            self._is_suspected = True
            events.append(SpeechSuspected(began))
        if not self._is_interrupted and self._spoken >= self._most:
            self._is_interrupted = True
            events.append(Interrupted(began))

    def _forget_speech(self) -> None:
        self._began = None
        self._spoken = self._pause = self._counted = 0
        self._is_suspected = self._is_interrupted = False

    def _stands_out(self, level: float) -> bool:
        """Whether a window is louder than the room usually is."""
        if level < LEAST_DBFS or len(self._levels) < NOISE_LEAST_S * _HALVES_PER_S:
            return level >= LEAST_DBFS
        noise = float(np.quantile(self._levels, NOISE_QUANTILE))
        return level >= noise + ABOVE_NOISE_DB

    def _is_echo(self, ends_s: float) -> bool:
        """Whether what was heard last is the assistant's own sound.

        That costs more than all else, so what is no echo, or has been one twice, is not compared
        again in the next half. Once is not enough: the first moment of any voice is like some
        moment of another.
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
