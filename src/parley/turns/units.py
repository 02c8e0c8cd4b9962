"""Turns in units of a second: finds utterances in live audio, and decides when to answer them.

Pure bookkeeping over probabilities of speech (one per 64 ms) and the recogniser's words; values are
immutable, so a conversation can return to any of them. This module does not run the recogniser:
`Turns` reports when an utterance should be recognised and, given the words, whether to answer.

- Speech of less than `CLICK_MS` is a click; sound in which the recogniser finds no words is noise.
- A voice that is much softer than the utterance, such as a television, counts as quiet
  (`SpeakerLevel`).
- After `JUDGED_MS` of quiet the utterance is recognised (speculatively: if speech continues, it is
  recognised again when it has ended). Unless its words decide, its sound is then judged to
  determine the required length of quiet (`turns/end_of_turn.py`). It is answered after that,
  otherwise after `END_MS`, within the bounds set by its words, and up to `SOONER_MS` earlier: a
  unit that just misses it would wait for another second. Units that are ended by a pause follow
  each other sooner, and are at most `SHORT_SOONER_MS` early.
- A unit may end before the detector has noticed the end of speech. If its last `HUSHED_MS` are much
  softer than the speech, the sound is judged, and the utterance is recognised only if it would be
  answered.
- While we speak, speech interrupts us, unless the sound is our own voice coming back
  (`echo.is_echo`), is much softer than the turn that we answer (`Turns.is_softer`), or sounds like
  an acknowledgement (`Turns.interrupts`) and is not a command.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from parley.media.pcm import Samples
from parley.turns.end_of_turn import LONGEST_MS, word_bounds_ms
from parley.turns.interruption import LONG_ACKNOWLEDGEMENT_MS
from parley.turns.onset import ASKED_MS, LEAST_ODDS, OVER, Onsets
from parley.turns.word_lists import (
    GHOSTS,
    USUAL_ACKNOWLEDGEMENTS,
    USUAL_COMMANDS,
    is_acknowledgement,
)
from parley.vad import utterance
from parley.vad.base import steadied, without_constant
from parley.vad.utterance import UNLIKELY, UNSURE_MS, SpeakerLevel

RATE_HZ = 16_000
WINDOW_MS = 64
CLICK_MS = 190
PAUSE_MS = 190
JUDGED_MS = 120
END_MS = 440
SOONER_MS, SHORT_SOONER_MS = 250, 64
HUSHED_MS = 30
HUSHED_DB = 15
"""Level below that of the last second; the closure before a t or a p is as soft."""
NOTICED_MS = 52
"""Time after the last sound at which the detector has noticed the quiet."""
FRAME_SAMPLES = RATE_HZ // 100
BARGE_MS = 350
SOFTER_DB = 7.0
"""Level below the user's at which a voice is not the user. Source: docs/log/conversation.md."""
SPEECH, QUIET = 0.6, 0.35
"""Probabilities of speech, above, and of quiet, below."""
PRE_ROLL_MS = 320
LONGEST_S = 120.0
"""Maximum length of an utterance; a longer one is answered while it continues."""
MISHEARD = 6.0
"""The recogniser's words count as a misheard acknowledgement if they are at most e to this power
times as likely, by words and sound. Source: docs/log/conversation.md."""


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Speech since the last answer.

    Args:
        sound: the open utterance with its pre-roll, or the last moments before one.
        speech_ms: length of speech in it.
        quiet_ms: length of quiet since its last speech.
        is_open: True if an utterance is open.
        onset: index of the utterance's first window of speech.
        level: level of the utterance's speaker.
        text: the recogniser's text; None before it was run.
        heard_ms: `speech_ms` when it was recognised.
        is_unclear: the recogniser was unsure of the text.
        is_whole: the text is a turn that the model knows.
        needed_ms: required quiet, as judged in this pause; None: it was not judged.
        sooner_ms: time by which it may be answered earlier, by the length of the newest unit.
    """

    sound: tuple[Samples, ...] = ()
    speech_ms: int = 0
    quiet_ms: int = 0
    is_open: bool = False
    onset: int = 0
    level: SpeakerLevel = field(default_factory=SpeakerLevel)
    text: str | None = None
    heard_ms: int = -1
    is_unclear: bool = False
    is_whole: bool = False
    needed_ms: int | None = None
    sooner_ms: int = SOONER_MS

    def in_unit(self, samples: int) -> Turns:
        """Start a unit with this number of samples."""
        sooner_ms = SOONER_MS if samples >= RATE_HZ else SHORT_SOONER_MS
        return replace(self, sooner_ms=sooner_ms)

    def is_far(self, window: Samples, probability: float) -> bool:
        """True if this window of the open utterance is of a distant speaker."""
        return self.is_open and self._level_with(window, probability).is_far

    def _level_with(self, window: Samples, probability: float) -> SpeakerLevel:
        if probability < QUIET:
            return self.level
        return self.level.heard(window, is_certain=probability >= SPEECH)

    def take(self, window: Samples, probability: float, *, is_far: bool | None = None) -> Turns:
        """Add a window.

        Args:
            is_far: see `is_far`; None: judged here, by the sound.
        """
        if not self.is_open:
            # Of a whisper, the detector becomes sure only after some words.
            before_ms = PRE_ROLL_MS + (UNSURE_MS if probability >= UNLIKELY else -WINDOW_MS)
            kept = (*self.sound, window)[-(before_ms // WINDOW_MS) :]
            if probability < SPEECH:
                return replace(self, sound=kept)
            level = SpeakerLevel().heard(window, is_certain=True)
            opened = replace(self.without(), sound=kept, level=level, onset=len(kept) - 1)
            return replace(opened, speech_ms=WINDOW_MS, is_open=True)
        level = self._level_with(window, probability)
        is_far = level.is_far if is_far is None else is_far
        heard = replace(self, sound=(*self.sound, window), level=level)
        is_speech = probability >= (QUIET if self.quiet_ms == 0 else SPEECH)
        if is_speech and not is_far:
            return replace(heard, speech_ms=self.speech_ms + WINDOW_MS, quiet_ms=0, needed_ms=None)
        after = replace(heard, quiet_ms=self.quiet_ms + WINDOW_MS)
        if after.quiet_ms >= PAUSE_MS and after.speech_ms < CLICK_MS:
            return after.without()
        return after

    @property
    def seconds(self) -> float:
        """Length of the stored audio."""
        return sum(len(window) for window in self.sound) / RATE_HZ

    @property
    def wants_words(self) -> bool:
        """True if the recogniser should process the utterance now."""
        is_judged = self.quiet_ms >= JUDGED_MS or self.needed_ms is not None
        has_paused = is_judged or self.seconds >= LONGEST_S
        return self.is_open and has_paused and self.heard_ms != self.speech_ms

    def judged(self, rest: Samples, needed_ms: Callable[[Samples], int]) -> Turns:
        """Judge the required length of this pause.

        Args:
            rest: the last audio, which does not fill a window, (N,).
            needed_ms: returns the required quiet for the utterance with the quiet after it, (N,).
        """
        if not self.is_open:
            return self
        if self.quiet_ms >= JUDGED_MS:
            missing_ms = utterance.JUDGED_MS - self.quiet_ms
            spare = max(0, -missing_ms) // WINDOW_MS
            said = np.concatenate(self.sound[: len(self.sound) - spare])
            return replace(self, needed_ms=needed_ms(_with_quiet(said, missing_ms)))
        said = np.concatenate((*self.sound, rest))
        quiet_ms = hushed_ms(said)
        if quiet_ms < HUSHED_MS or self.speech_ms < CLICK_MS:
            return self
        missing_ms = NOTICED_MS + utterance.JUDGED_MS - quiet_ms
        early = replace(self, quiet_ms=quiet_ms, needed_ms=needed_ms(_with_quiet(said, missing_ms)))
        return early if early.is_long_enough else self

    def with_words(self, text: str, *, is_unclear: bool = False, is_whole: bool = False) -> Turns:
        """Set the result of the recogniser."""
        return replace(
            self, text=text, heard_ms=self.speech_ms, is_unclear=is_unclear, is_whole=is_whole
        )

    def without(self) -> Turns:
        """Drop the speech, which was not addressed to the assistant."""
        kept = self.sound[1 - PRE_ROLL_MS // WINDOW_MS :]
        return Turns(sound=kept, sooner_ms=self.sooner_ms)

    @property
    def samples(self) -> Samples:
        """The utterance, with a little of the quiet after it."""
        spare = max(0, (self.quiet_ms - PAUSE_MS) // WINDOW_MS)
        windows = self.sound[: len(self.sound) - spare] if spare else self.sound
        return np.concatenate(windows) if windows else np.zeros(0, np.float32)

    def is_softer(self, user_power: float) -> bool:
        """True if this speech is too soft for a user with this power (0: unknown)."""
        if not self.is_open or self.speech_ms < CLICK_MS:
            return False
        # Most of a short word is softer than its vowel, and so is the end of a sentence.
        mean = sum(self.level.powers) / len(self.level.powers)
        return max(self.level.usual, mean) < user_power / 10 ** (SOFTER_DB / 10)

    def interrupts(self, onsets: Onsets | None) -> bool:
        """True if this speech, while we speak, interrupts us."""
        if not self.is_open or self.speech_ms < CLICK_MS or onsets is None:
            return self.is_open and self.speech_ms >= BARGE_MS
        return self.odds(onsets) >= (LEAST_ODDS if self.speech_ms < BARGE_MS else 0)

    def odds(self, onsets: Onsets) -> float:
        """Log odds, by its sound, that the speech is not an acknowledgement."""
        if self.speech_ms >= LONG_ACKNOWLEDGEMENT_MS:
            return math.inf
        end = len(self.sound) - self.quiet_ms // WINDOW_MS
        first = max(0, self.onset - 1)
        said = steadied(np.concatenate(self.sound[first:end]))
        asked = OVER
        if self.quiet_ms < JUDGED_MS:
            asked = bisect.bisect(ASKED_MS, (end - first - 1) * WINDOW_MS) - 1
            said = said[: (ASKED_MS[asked] + WINDOW_MS) * RATE_HZ // 1000]
        return onsets(said, asked)

    @property
    def is_due(self) -> bool:
        """True if it is the assistant's turn to speak."""
        if not (self.is_open and self.text and self.heard_ms == self.speech_ms):
            return False
        return self.seconds >= LONGEST_S or self.is_long_enough

    @property
    def is_long_enough(self) -> bool:
        """True if the pause is long enough, or soon will be, as far as is known."""
        return self._is_long_after(END_MS if self.needed_ms is None else self.needed_ms)

    @property
    def wants_judgement(self) -> bool:
        """True if the pause must be judged: its words are known and do not decide if it is long
        enough, or are not recognised before it is judged."""
        if not self.is_open or self.needed_ms is not None or self.wants_words:
            return False
        is_noise = self.heard_ms == self.speech_ms and not self.text
        may_end, must_end = map(self._is_long_after, (0, LONGEST_MS["medium"]))
        return may_end and not must_end and not is_noise

    def _is_long_after(self, needed_ms: int) -> bool:
        """True if the pause is long enough after this judgement and its words."""
        is_heard = self.heard_ms == self.speech_ms
        bounds = word_bounds_ms(self.text or "", is_whole=self.is_whole) if is_heard else None
        if bounds is not None:
            needed_ms = min(max(needed_ms, bounds[0]), bounds[1])
        return self.quiet_ms + self.sooner_ms >= needed_ms

    @property
    def is_noise(self) -> bool:
        """True if the open utterance is sound without words that has ended."""
        return self.is_open and self.text == "" and self.quiet_ms >= END_MS


def hushed_ms(said: Samples) -> int:
    """Number of milliseconds at the end of `said` (N,) that are `HUSHED_DB` softer than its last
    second."""
    last = said[-RATE_HZ:][len(said[-RATE_HZ:]) % FRAME_SAMPLES :]
    powers = np.square(without_constant(last)).reshape(-1, FRAME_SAMPLES).mean(1)
    (loud,) = np.nonzero(powers > powers.mean() / 10 ** (HUSHED_DB / 10))
    return 10 * (len(powers) - 1 - int(loud[-1])) if len(loud) else 0


def _with_quiet(said: Samples, missing_ms: int) -> Samples:
    return np.pad(steadied(said), (0, max(0, missing_ms) * RATE_HZ // 1000))


def acknowledged(text: str, odds: float, likely: Callable[[list[str]], list[float]]) -> str:
    """The words, or an acknowledgement that may have been said instead.

    Args:
        odds: see `Turns.odds`.
        likely: returns the log probability of each text in the audio.
    """
    if is_acknowledgement(text) or odds >= LEAST_ODDS:
        return text
    own, *chances = likely([text, *USUAL_ACKNOWLEDGEMENTS, *USUAL_COMMANDS])
    best = max(range(len(chances)), key=chances.__getitem__)
    is_one = best < len(USUAL_ACKNOWLEDGEMENTS) and chances[best] - own >= odds - MISHEARD
    return USUAL_ACKNOWLEDGEMENTS[best] if is_one else text


def believed(text: str, *, confidence: float, silence: float, speech_ms: int) -> str:
    """The recogniser's words, or "" if it is likely to have invented them from noise."""
    plain = text.lower().strip(" .!?,-")
    is_invented = (
        not any(sign.isalnum() for sign in plain)
        or (silence > 0.6 and confidence < -0.5)
        or confidence < (-1.4 if silence < 0.02 and speech_ms >= 600 else -1.1)
        or (plain in GHOSTS and (confidence < -0.45 or silence > 0.25 or speech_ms < 320))
        # More words than a person says in so short a time.
        or len(plain.split()) / max(0.2, speech_ms / 1000) > 9
    )
    return "" if is_invented else text
