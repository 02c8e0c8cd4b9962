"""Turns probabilities into utterances, each with its start and end.

A pure state machine over windows of 1024 samples, without clocks or sockets, so a test can replay a
conversation as fast as the detector runs. Positions are samples since the last `reset`.

- Silent, and a window reaches `threshold`: speech starts. Up to `PRE_ROLL_MS` of audio before it
  belong to it, because soft onsets (an h, an f) occur before the detector notices. So does what may
  have been speech just before: of a whisper, the detector becomes sure only after some words.
- Speaking, and a window falls below `threshold - HYSTERESIS`: a pause starts; any window above that
  ends it. A pause of `min_silence_duration_ms` ends the utterance at the start of the pause, plus
  `speech_pad_ms`.
- A voice `FAR_DB` softer than the utterance is not that of its speaker: a television in the same
  room counts as quiet once it has been heard alone for `FAR_MS`, which is longer than the soft end
  of a word.
- A `silence` function, if given, is called once in every pause, after `JUDGED_MS` of it, and
  returns the required length of this pause instead: longer if the user is likely to continue,
  shorter if they have finished.
- Speech shorter than `min_speech_duration_ms`, without pause and padding, is noise.
- After `LONG_MS` the required pause shrinks linearly, to zero at `LONGEST_MS`: the longer the
  utterance, the shorter the pause that is accepted, and no speech is lost.

Source: service.md 4.3, VAD algorithm.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parley.media.pcm import Pcm, Samples
from parley.protocol.values import VAD_DEFAULTS, VadOptions
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
)

HYSTERESIS = 0.15
LOWEST_QUIET = 0.01
"""Lower bound of `threshold - HYSTERESIS`, which would be below zero with a very low threshold, so
that no utterance would end."""
PRE_ROLL_MS = 300
UNLIKELY = 0.2
"""Sound that is less likely to be speech is none, also just before the start of speech."""
UNSURE_MS = 1500
"""Maximum length of other sound before the start of speech that belongs to it."""
JUDGED_MS = 192
"""Length of detected quiet after which a pause is judged: three windows, about a quarter of a
second after the last sound. With more silence, only half as much can be inferred from the speech
before it."""
JUDGED_S = 8
"""Maximum length of the judged audio."""
FAR_DB = 12.0
FAR_MS = 192
USUAL_WINDOWS = (12, 16)
"""Windows of speech whose median is the level of an utterance: three quarters of a second to a
second. Source: docs/log/conversation.md."""
LONG_MS = 30_000
LONGEST_MS = 60_000

_PER_MS = RATE_HZ // 1000

Bounds = tuple[int | None, int, int]
UNBOUND: Bounds = (None, 0, sys.maxsize)

_REMEMBERED = (
    "_rest", "_position", "_speech_start", "pause_start", "_needed", "_is_judged", "_bounds",
    "_floor", "_heard_start", "_level", "_onset",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeakerLevel:
    """The level of an utterance's speaker, used to recognise much softer voices.

    The level is the largest median of windows of speech, so a slammed door does not raise it.

    Args:
        powers: of the speaker's last windows; see `power_of`.
        usual: power of the speaker; 0 while there is not enough speech.
        far_ms: length of much softer speech up to now.
    """

    powers: tuple[float, ...] = ()
    usual: float = 0.0
    far_ms: int = 0

    def heard(self, window: Samples, *, is_certain: bool) -> SpeakerLevel:
        """The level after the next window of speech, shape (N,). `is_certain`: surely speech."""
        power = power_of(window)
        if power < self.usual / 10 ** (FAR_DB / 10):
            return replace(self, far_ms=self.far_ms + len(window) // _PER_MS)
        if not is_certain:
            return replace(self, far_ms=0)
        least, most = USUAL_WINDOWS
        powers = (*self.powers[1 - most :], power)
        louder = statistics.median(powers) if len(powers) >= least else 0.0
        return SpeakerLevel(powers, max(self.usual, louder))

    @property
    def power(self) -> float:
        """Power of the speaker, also if there is little speech; 0 if there is none."""
        return self.usual or (statistics.median(self.powers) if self.powers else 0.0)

    @property
    def is_far(self) -> bool:
        """True if the last windows are the speech of another person."""
        return self.far_ms > FAR_MS


@dataclass(frozen=True, slots=True)
class Utterance:
    """One stretch of the user's speech.

    Args:
        pcm: the speech with the pre-roll before it, without the pause after it.
        speech_ms: length of the speech with its padding on both sides, without the rest of the
            pre-roll and the pause.
        start_sample, end_sample: position of the padded speech.
    """

    pcm: Pcm
    speech_ms: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """Speech seems to have started at `at_sample`."""

    at_sample: int


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """Silence since `at_sample`; `utterance` is None if the speech was too short."""

    at_sample: int
    utterance: Utterance | None


VadEvent = SpeechBegan | SpeechEnded


class UtteranceFinder:
    """Finds the utterances of one conversation.

    Memory is bounded by `LONGEST_MS` of audio. Not thread-safe.
    """

    def __init__(
        self,
        detector: Detector,
        options: VadOptions = VAD_DEFAULTS,
        silence: Callable[[Samples], int] | None = None,
    ) -> None:
        """Start with no audio processed.

        Args:
            silence: returns the milliseconds of silence that end the utterance whose last audio it
                receives; may take some tens of milliseconds (`may_judge`).
        """
        self._detector = detector
        self._judge = silence
        self._threshold = options.threshold
        self._quiet = max(options.threshold - HYSTERESIS, LOWEST_QUIET)
        self._unlikely = min(self._quiet, UNLIKELY)
        self._min_speech = options.min_speech_duration_ms * _PER_MS
        self._min_silence = options.min_silence_duration_ms * _PER_MS
        self._pad = options.speech_pad_ms * _PER_MS
        self._pre_roll = max(PRE_ROLL_MS, options.speech_pad_ms) * _PER_MS
        self.reset()

    @property
    def is_speaking(self) -> bool:
        """True if an utterance is open."""
        return self._speech_start is not None

    @property
    def is_quiet(self) -> bool:
        """True if the newest window is not speech."""
        return self._speech_start is None or self.pause_start is not None

    def likely(self, pause_ms: int) -> Utterance | None:
        """The open utterance as it will be if the pause continues; None if there is none, or if its
        pause is shorter than `pause_ms` or the padding."""
        speech_start, speech_end, now = self._speech_start, self.likely_pause, self._position
        if speech_end == now:
            now += HALF_SAMPLES
        if speech_start is None or speech_end is None:
            return None
        is_short = speech_end - speech_start < self._min_speech
        if is_short or now - speech_end < max(pause_ms * _PER_MS, self._pad):
            return None
        return self._cut(speech_start, speech_end, now)

    @property
    def likely_pause(self) -> int | None:
        """`pause_start`, also while only half a window of the pause has been received."""
        return self._half_pause if self.pause_start is None else self.pause_start

    def may_judge(self, samples: int) -> bool:
        """True if processing that many more samples may include a judgement."""
        if self._judge is None or self.pause_start is None or self._is_judged:
            return False
        heard = self._position + len(self._rest) + samples
        return heard - self.pause_start >= JUDGED_MS * _PER_MS

    @property
    def missing_samples(self) -> int | None:
        """Number of samples of further silence that end the open utterance; None if no judge is set
        or there is no pause."""
        if self._judge is None or self.pause_start is None:
            return None
        heard = self._position - self.pause_start
        return max(0, round(self._enough) - heard) + WINDOW_SAMPLES - len(self._rest)

    def bound(self, pause_start: int, least_ms: int, most_ms: int) -> None:
        """Set the minimum and maximum required length of the pause that started at `pause_start`.
        Thread-safe."""
        self._bounds: Bounds = (pause_start, least_ms * _PER_MS, most_ms * _PER_MS)

    @property
    def _enough(self) -> float:
        """Number of samples of silence that end the open utterance in this pause."""
        start, least, most = self._bounds
        return min(max(self._needed, least), most) if start == self.pause_start else self._needed

    def reset(self) -> None:
        """Reset to the initial state, without an open utterance."""
        self._detector.reset()
        self._rest: Samples = np.empty(0, np.float32)
        self._position = 0
        self._speech_start: int | None = None
        self.pause_start: int | None = None
        """Start of the current pause in the open utterance, if there is one."""
        self._half_pause: int | None = None
        self._needed: float = self._min_silence
        """Samples of silence that end the open utterance."""
        self._is_judged = False
        self._bounds = UNBOUND
        """Start of a pause, and the minimum and maximum number of samples of silence required of
        it."""
        self._level = SpeakerLevel()
        """Level of the open utterance's speaker."""
        self._floor = 0
        self._onset = 0
        """Start of the sound that may be speech; the end of the audio if it may not."""
        self._heard: deque[Samples] = deque()
        self._heard_start = 0

    def remembered(self) -> dict[str, Any]:
        """The state after the audio so far, as values for `restore` of another finder with the same
        options."""
        return {
            "detector": snapshot(self._detector),
            "heard": np.concatenate([np.empty(0, np.float32), *self._heard]),
            **{name.lstrip("_"): getattr(self, name) for name in _REMEMBERED},
        }

    def restore(self, remembered: dict[str, Any]) -> None:
        """Restore another finder's state."""
        self.reset()
        restore(self._detector, remembered["detector"])
        for name in _REMEMBERED:
            setattr(self, name, remembered[name.lstrip("_")])
        heard = remembered["heard"]
        self._heard.extend(
            heard[at : at + WINDOW_SAMPLES] for at in range(0, len(heard), WINDOW_SAMPLES)
        )

    def feed(self, pcm: Pcm) -> list[VadEvent]:
        """Process the next stretch of audio, of any length.

        Args:
            pcm: mono, 16 kHz. Samples that do not fill a window are kept for the next call.

        Returns:
            The events, in order; one stretch may contain several utterances.
        """
        if pcm.rate_hz != RATE_HZ:
            raise ValueError(f"voice detection needs {RATE_HZ} Hz, got {pcm.rate_hz} Hz")
        samples = np.concatenate([self._rest, pcm.samples])
        whole = len(samples) - len(samples) % WINDOW_SAMPLES
        events: list[VadEvent] = []
        for window, probability in heard_in(self._detector, samples[:whole]):
            self._hear(window, probability, events)
        # A copy, so that a large chunk is not kept alive by its last few samples.
        self._rest = samples[whole:].copy()
        self._half_pause = self._peek()
        return events

    def _peek(self) -> int | None:
        """Start of a pause that will exist if the second half of the current window is as quiet as
        its first; None otherwise."""
        half, detector = self._rest[:HALF_SAMPLES], self._detector
        if self._speech_start is None or self.pause_start is not None:
            return None
        if len(half) < HALF_SAMPLES or not isinstance(detector, Remembering):
            return None
        kept = detector.snapshot()
        (probability,) = detector.probabilities(half[np.newaxis])
        detector.restore(kept)
        return self._position if probability < self._quiet else None

    def _hear(self, window: Samples, probability: float, events: list[VadEvent]) -> None:
        start = self._position
        self._position = end = start + WINDOW_SAMPLES
        self._heard.append(window)

        if self._speech_start is None:
            if probability < self._unlikely:
                self._onset = end
            self._onset = max(self._onset, start - UNSURE_MS * _PER_MS)
            self._forget(self._onset - self._pre_roll)
            if probability < self._threshold:
                return
            self._speech_start = start
            self._level = SpeakerLevel()
            events.append(SpeechBegan(start))

        is_speech = probability >= self._quiet
        if is_speech:
            is_certain = probability >= self._threshold
            self._level = self._level.heard(window, is_certain=is_certain)
        if is_speech and not self._level.is_far:
            self.pause_start = None
        elif self.pause_start is None:
            self.pause_start = start
            self._needed, self._is_judged = self._min_silence, False
        self._ask(self._speech_start, end)

        if self._is_over(self._speech_start, end):
            events.append(self._end(self._speech_start, end))

    def _ask(self, speech_start: int, now: int) -> None:
        """Determine the required length of this pause, once it is long enough to be judged."""
        pause_start = self.pause_start
        if self._judge is None or pause_start is None or self._is_judged:
            return
        if now - pause_start < JUDGED_MS * _PER_MS:
            return
        self._is_judged = True
        if pause_start - speech_start >= self._min_speech:
            windows = list(self._heard)[-(JUDGED_S * RATE_HZ // WINDOW_SAMPLES) :]
            self._needed = self._judge(np.concatenate(windows)) * _PER_MS

    def _is_over(self, speech_start: int, now: int) -> bool:
        spoken_ms = (now - speech_start) // _PER_MS
        if spoken_ms >= LONGEST_MS:
            return True
        if self.pause_start is None:
            return False
        needed = float(self._enough)
        if spoken_ms > LONG_MS:
            needed *= (LONGEST_MS - spoken_ms) / (LONGEST_MS - LONG_MS)
        return now - self.pause_start >= needed

    @property
    def speech(self) -> Pcm | None:
        """The open utterance up to now; None if there is none."""
        start, now = self._speech_start, self._position + len(self._rest)
        return None if start is None else self._cut(start, now, now).pcm

    def end(self) -> SpeechEnded | None:
        """End the open utterance at the current position; returns None if there is none."""
        start = self._speech_start
        return None if start is None else self._end(start, self._position)

    def _end(self, speech_start: int, now: int) -> SpeechEnded:
        speech_end = now if self.pause_start is None else self.pause_start
        utterance = None
        if speech_end - speech_start >= self._min_speech:
            utterance = self._cut(speech_start, speech_end, now)
            self._floor = utterance.end_sample
        self._speech_start = None
        self.pause_start = None
        self._onset = now
        self._forget(now - self._pre_roll)
        return SpeechEnded(speech_end, utterance)

    def _cut(self, speech_start: int, speech_end: int, now: int) -> Utterance:
        """Extract an utterance from the audio, without samples that belong to an earlier
        utterance."""
        sound_start = max(self._onset - self._pre_roll, self._floor, self._heard_start)
        start = max(speech_start - self._pad, sound_start)
        end = min(speech_end + self._pad, now)
        heard = np.concatenate([*self._heard, self._rest[: max(0, now - self._position)]])
        samples = heard[sound_start - self._heard_start : end - self._heard_start].copy()
        return Utterance(
            pcm=Pcm(samples, RATE_HZ),
            speech_ms=round((end - start) / _PER_MS),
            start_sample=start,
            end_sample=end,
        )

    def _forget(self, before: int) -> None:
        """Drop whole windows that end at or before `before`."""
        while self._heard and self._heard_start + WINDOW_SAMPLES <= before:
            self._heard.popleft()
            self._heard_start += WINDOW_SAMPLES
