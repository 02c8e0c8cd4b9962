"""Does somebody interrupt? Listens to the microphone while the assistant is heard.

Three answers, in this order: somebody may be speaking (`SpeechSuspected`: play more softly, decide
later), it is an interruption (`Interrupted`), and nobody speaks any more (`SpeechOver`): without
the second it was a cough, an acknowledgement or the assistant's own echo. A pure state machine over
windows of 1024 samples, as `utterance.py`: it knows neither clocks nor sockets.

- A window counts as speech when the detector is sure enough and the sound stands out of the noise
  of the room, which is learnt from the quieter windows of the last seconds: a crowd that talks all
  the time is noise.
- `min_speech_ms` of speech make a suspicion. With `backchannel: heed` it is an interruption at the
  same moment; with `ignore`, the default, only once `BACKCHANNEL_MS` have been spoken with pauses
  below `PAUSE_MS`, because "mhm" and "yes" are shorter than that.
- What sounds like what was played in the last seconds is the assistant's echo: the normalised
  cross-correlation of the two finds it at any delay and level.

Source: docs/understand/interruptions.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Pcm, Samples
from parley.media.resample import resample
from parley.protocol.values import InterruptionOptions
from parley.vad.base import RATE_HZ, WINDOW_SAMPLES, Detector, heard_in

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

NOISE_LEAST_WINDOWS: Final = 8
"""Half a second: before that, the room is taken to be quiet."""

ECHO_ALIKE: Final = 0.6
"""Correlation from which a sound is what was played. Of 97 in 100 echoes it is above 0.85, above
0.64 in a reverberant room; of two speakers it stays below 0.56."""

ECHO_S: Final = 5.0
"""How long after playing an echo may come: what clients buffer, and the room."""

ECHO_RATE_HZ: Final = 4000
"""Echoes are looked for below 2 kHz, where voices are strong: a twentieth of the work."""

COMPARED_WINDOWS: Final = 6
"""384 ms: what is looked for in what was played."""

_WINDOW_MS: Final = 1000 * WINDOW_SAMPLES // RATE_HZ


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
    """Listens to one conversation while the assistant is heard. Not safe from two threads.

    Memory is bounded by `ECHO_S` of sound.
    """

    def __init__(self, detector: Detector, options: InterruptionOptions) -> None:
        self._detector = detector
        # The default sensitivity, a half, is the threshold at which Silero balances its errors.
        self._threshold = 0.95 - 0.9 * options.sensitivity
        self._least_ms = options.min_speech_ms
        self._most_ms = options.min_speech_ms
        if options.backchannel == "ignore":
            self._most_ms = max(self._most_ms, BACKCHANNEL_MS)
        self._levels: deque[float] = deque(maxlen=round(NOISE_S * RATE_HZ / WINDOW_SAMPLES))
        self._played: deque[Samples] = deque()
        self._played_samples = 0
        self._heard: deque[Samples] = deque(maxlen=COMPARED_WINDOWS)
        self._rest: Samples = np.empty(0, np.float32)
        self._position = 0
        self._began: int | None = None
        self._spoken_ms = 0
        self._pause_ms = 0
        self._is_suspected = False
        self._is_interrupted = False

    def play(self, pcm: Pcm) -> None:
        """The assistant's sound, of any rate, as it is handed to the client."""
        samples = resample(pcm, ECHO_RATE_HZ).samples
        self._played.append(samples)
        self._played_samples += len(samples)
        while self._played_samples - len(self._played[0]) >= ECHO_S * ECHO_RATE_HZ:
            self._played_samples -= len(self._played.popleft())

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
            self._position += len(self._rest)
            self._rest = np.empty(0, np.float32)
        whole = len(pcm) - len(pcm) % WINDOW_SAMPLES
        self._levels.extend(_levels_dbfs(pcm.samples[:whole].reshape(-1, WINDOW_SAMPLES)))
        return events

    def feed(self, pcm: Pcm) -> list[InterruptionEvent]:
        """Hear the next stretch of the microphone, 16 kHz, of any length; what happened in it."""
        if pcm.rate_hz != RATE_HZ:
            raise ValueError(f"interruptions are heard at {RATE_HZ} Hz, not {pcm.rate_hz} Hz")
        samples = np.concatenate([self._rest, pcm.samples])
        whole = len(samples) - len(samples) % WINDOW_SAMPLES
        events: list[InterruptionEvent] = []
        for window, probability in heard_in(self._detector, samples[:whole]):
            self._hear(window, probability, events)
        self._rest = samples[whole:].copy()
        return events

    def _hear(self, window: Samples, probability: float, events: list[InterruptionEvent]) -> None:
        (level,) = _levels_dbfs(window[np.newaxis])
        self._heard.append(window)
        self._position += WINDOW_SAMPLES
        if probability >= self._threshold and self._stands_out(level) and not self._is_echo():
            if self._began is None:
                self._began = self._position - WINDOW_SAMPLES
            self._spoken_ms += _WINDOW_MS
            self._pause_ms = 0
            self._follow(self._began, events)
        elif self._began is not None:
            self._pause_ms += _WINDOW_MS
            if self._pause_ms >= PAUSE_MS:
                if self._is_suspected:
                    events.append(SpeechOver(self._position))
                self._forget_speech()
        self._levels.append(level)

    def _follow(self, began: int, events: list[InterruptionEvent]) -> None:
        """What so much speech amounts to."""
        if not self._is_suspected and self._spoken_ms >= self._least_ms:
            self._is_suspected = True
            events.append(SpeechSuspected(began))
        if not self._is_interrupted and self._spoken_ms >= self._most_ms:
            self._is_interrupted = True
            events.append(Interrupted(began))

    def _forget_speech(self) -> None:
        self._began = None
        self._spoken_ms = self._pause_ms = 0
        self._is_suspected = self._is_interrupted = False

    def _stands_out(self, level: float) -> bool:
        """Whether a window is louder than the room usually is."""
        if len(self._levels) < NOISE_LEAST_WINDOWS:
            return level >= LEAST_DBFS
        noise = float(np.quantile(self._levels, NOISE_QUANTILE))
        return level >= max(LEAST_DBFS, noise + ABOVE_NOISE_DB)

    def _is_echo(self) -> bool:
        """Whether what was heard last is the assistant's own sound."""
        if not self._played:
            return False
        heard = Pcm(np.concatenate(list(self._heard)), RATE_HZ)
        played = np.concatenate(list(self._played))
        return likeness(resample(heard, ECHO_RATE_HZ).samples, played) >= ECHO_ALIKE


def likeness(heard: Samples, played: Samples) -> float:
    """The largest normalised cross-correlation of `heard` with any stretch of `played`, 0 to 1."""
    if len(played) < len(heard) or not heard.any():
        return 0.0
    size = 1 << (len(played) + len(heard) - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(played, size) * np.conj(np.fft.rfft(heard, size)), size)[
        : len(played) - len(heard) + 1
    ]
    powers = np.cumsum(np.concatenate([[0.0], played.astype(np.float64) ** 2]))
    power = powers[len(heard) :] - powers[: -len(heard)]
    # Silence is like nothing.
    least = 1e-6 * len(heard)
    norm = np.sqrt(
        np.maximum(power, least) * max(float(np.sum(heard.astype(np.float64) ** 2)), 1e-12)
    )
    return float(np.max(np.abs(products) / norm))


def _levels_dbfs(windows: npt.NDArray[np.float32]) -> list[float]:
    """The levels of windows, shape (B, WINDOW_SAMPLES)."""
    powers = np.mean(np.square(windows, dtype=np.float64), axis=1)
    levels: list[float] = (10 * np.log10(np.maximum(powers, 1e-12))).tolist()
    return levels
