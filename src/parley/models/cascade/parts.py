"""The parts of a cascade, and operations of its jobs that involve several parts.

A part is any object that satisfies one of these protocols: bundled, on a server, or loaded from a
folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol, runtime_checkable

from parley.errors import ContextFull
from parley.media.image import Pixels
from parley.media.pcm import Pcm, Samples
from parley.models.cascade import notes
from parley.models.cascade.messages import History
from parley.models.cascade.notes import memory
from parley.models.cascade.notes.clock import Now
from parley.models.cascade.phrases import Phrases
from parley.models.cascade.prompt import PERSONA, named
from parley.models.cascade.recognition import Heard
from parley.models.cascade.sampling import Rule
from parley.models.cascade.transcript import FOREIGN_SPEECH
from parley.models.cascade.voice.lexicon import Lexicon
from parley.models.cascade.writer import Writer
from parley.protocol.values import WordTime
from parley.turns import NO_JUDGES, TurnJudges

HEAT = 0.3
"""Factor on the requested temperature for the bundled model, which knows few right answers."""
STEADY = 0.5
"""Maximum `top_p` for the bundled model: an answer of which it is sure is always chosen."""
HIGH_SHARE, LOW_SHARE = 0.6, 0.35
"""If the conversation exceeds the first share of the context, the oldest rounds are dropped down to
the second."""
FULL_SHARE = 0.7
"""The same with a question that waits for its answer: the rest is read again while the user waits,
so an answer leaves room for the next question."""
NOTHING_HEARD = "um"
"""Text of a turn without words in the context."""
GREETED = "Hello!"
"""User turn of a conversation that the assistant opens."""
NOT_CAUGHT = (
    "Sorry, I didn't catch that. Could you say it again?",
    "I still didn't get it. Could you say it in other words?",
    "I'm having trouble hearing you. Please come closer and try once more.",
)
"""Replies to words of which the recogniser was unsure and that match no note; the same one is never
used twice in a row."""
PER_COST = 2.5
"""Log probability in the audio that outweighs a cost of 1; the cost of a sentence is its distance
from the transcript."""
OFTEN = 8.0
"""Maximum difference in log probability, cost included, by which the transcript may be more likely
than a sentence that replaces it, if the notes know both."""
UNLIKELY = 6.5
"""The same without cost, if the transcript has the form of a known sentence, such as "What does
happy mean?" for "hobby". Source: docs/log/pocket.md."""
_NUMBERS = re.compile(r"\d+").findall
FOREIGN, SURELY_FOREIGN = -0.75, -1.0
"""Text below the first confidence is not English; below the second, not even if it matches a note
or has only one or two words. Source: docs/log/pocket.md."""


class Hearing(Protocol):
    """Recognition of one utterance."""

    @property
    def heard(self) -> Heard | None: ...

    def step(self) -> bool:
        """Do a bounded piece of work; true when finished."""
        ...


class OneStep:
    """Recognition in one step, for recognisers that cannot be interrupted and for known results."""

    def __init__(self, recognise: Callable[[], Heard]) -> None:
        self._recognise = recognise
        self.heard: Heard | None = None

    def step(self) -> bool:
        self.heard = self._recognise()
        return True


@runtime_checkable
class KeptHearing(Hearing, Protocol):
    """Recognition that keeps the audio and can look for words in it."""

    def likelihoods(self, texts: list[str]) -> list[float]:
        """Log probability of each text in the audio, regardless of how the text continues."""
        ...

    def word_times(self, text: str) -> tuple[WordTime, ...]:
        """Times of the words of `text`, in seconds; () if unknown. `text` is that of `heard`, or
        the sentence that replaces it."""
        ...


class Recogniser(Protocol):
    """Converts speech to text."""

    def begin(self, samples: Samples) -> Hearing:
        """Start on an utterance."""
        ...


class Speaker(Protocol):
    """Converts text to speech."""

    def find(self, voice: Pcm | None) -> int:
        """Index of the voice closest to a reference."""
        ...

    def can_say(self, text: str) -> bool:
        """False if the text has words, and none that this voice can pronounce."""
        ...

    def say(self, clause: str, voice: int) -> Samples:
        """A clause as audio (N,) at 24 kHz; may be empty."""
        ...


class Vision(Protocol):
    """Describes a picture in a sentence."""

    def look(self, pixels: Pixels) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class CascadeParts:
    """The parts of one cascade.

    Args:
        speaker: None for text only.
        vision: None: pictures are not described.
        judges: of the user's turns in duplex.
        phrases: known sentences, for misheard words; None: the words are used as they are.
    """

    writer: Writer
    recogniser: Recogniser
    speaker: Speaker | None
    vision: Vision | None
    judges: TurnJudges = NO_JUDGES
    phrases: Phrases | None = None

    @property
    def is_word(self) -> Callable[[str], bool] | None:
        """Returns True for an English word; None without the bundled voice, which has the
        lexicon."""
        lexicon: Lexicon | None = getattr(self.speaker, "lexicon", None)
        return None if lexicon is None else lexicon.is_word

    def require(self, history: History, text: str) -> None:
        """Raise `ContextFull` if the text does not fit even into an empty context."""
        limit = self.writer.limit_tokens
        if len(text) < limit // 2:
            return
        needed = self.writer.count_text(text) + self.writer.count_text(history.system) + 64
        if needed > limit:
            raise ContextFull(max(needed, limit + 1), limit, setting=self.writer.limit_setting)

    def windowed(self, history: History, share: float = HIGH_SHARE) -> History:
        """The history, without its oldest rounds if it exceeds this share of the context."""
        limit = self.writer.limit_tokens
        if self.writer.count(history) <= share * limit:
            return history
        lines = history.lines
        while (
            len(lines) > 1 and self.writer.count(replace(history, lines=lines)) > LOW_SHARE * limit
        ):
            following = [n for n, line in enumerate(lines) if n and line.role == "user"]
            if not following:
                break
            lines = lines[following[0] :]
        known = tuple(memory.listen(history.told).sentences()) if self.writer.takes_notes else ()
        return replace(history, lines=lines, known=known)

    def rule(self, temperature: float, top_p: float, top_k: int, penalty: float = 1.0) -> Rule:
        """Sampling rule: as requested, and more conservative with the bundled model."""
        if not self.writer.takes_notes:
            return Rule(temperature, top_p, top_k, penalty)
        return Rule(HEAT * temperature, min(top_p, STEADY), top_k, penalty)

    def written(self, text: str) -> str:
        """A text as given to the language model: unchanged, or on one line for the bundled model,
        which was trained on single lines."""
        return " ".join(text.split()) if self.writer.takes_notes else text.strip()

    def is_expected(self, text: str, history: History) -> bool:
        """True if the notes know this text as a whole turn."""
        return self.writer.takes_notes and notes.is_expected(text, history.told)

    def understood(self, heard: Heard, history: History, hearing: Hearing) -> Heard:
        """The recognised text, for the bundled model: unexpected text is replaced by an expected
        sentence that sounds like it, if there is one, and text that was invented for another
        language by `FOREIGN_SPEECH`."""
        text = heard.text
        if not self.writer.takes_notes or text in ("", FOREIGN_SPEECH):
            return heard
        is_expected = self.is_expected(text, history)
        meant = self._meant(heard, history, hearing, is_expected=is_expected)
        if meant is not None:
            return replace(heard, text=meant)
        has_sense = len(text.split()) <= 2 or is_expected
        if heard.confidence >= (SURELY_FOREIGN if has_sense else FOREIGN):
            return heard
        return replace(heard, text=FOREIGN_SPEECH)

    def _meant(
        self, heard: Heard, history: History, hearing: Hearing, *, is_expected: bool
    ) -> str | None:
        """The known sentence that was said: the transcript itself, or one that sounds like it and
        is known to the notes. None if there is none, or if the transcript is known, too, and more
        likely."""
        near = self.phrases.near(heard.text, heard.confidence) if self.phrases else []
        if is_expected and near and not near[0][1]:
            same = (one for one, _ in near if _NUMBERS(one) == _NUMBERS(heard.text))
            return heard.text if next(same, None) else near[0][0]
        own: float | None = None
        if near and isinstance(hearing, KeptHearing):
            texts = (heard.text, *(one for one, _ in near))
            own, *chances = hearing.likelihoods([one.rstrip("?.!") for one in texts])
            pairs = zip(near, chances, strict=True)
            least = own - UNLIKELY if self.phrases and self.phrases.has_form(heard.text) else -inf
            near = [(one, PER_COST * cost - p) for (one, cost), p in pairs if p >= least]
        for one, rank in sorted(near, key=lambda pair: pair[1]):
            if is_expected and (own is None or rank + own > OFTEN):
                return None
            if self.is_expected(one, history):
                return one
        return None

    def closed(
        self,
        history: History,
        picture: str | None,
        seed: int,
        now: Now,
        *,
        is_kept: bool = True,
    ) -> History:
        """Close the user's open turn and attach its note.

        Args:
            now: reads the clock.
            is_kept: false if the window will drop the turn before any answer.
        """
        lines = history.lines
        if not lines or not lines[-1].is_open:
            return history
        last = lines[-1]
        text = last.text or ("What is this?" if picture or last.images else NOTHING_HEARD)
        note = None
        if self.writer.takes_notes and is_kept:
            answers = [line.text for line in lines if line.role == "assistant"]
            role = "" if history.system == PERSONA else history.system
            found = picture or notes.stated(text, role, is_sure=True)
            found = found and (notes.care_note(text, answers) or found)
            note = found or notes.note_for(
                text,
                history.told,
                seed=seed % 1000,
                answers=answers,
                now=now,
                is_word=self.is_word,
                is_unclear=last.is_unclear,
            )
            note = note and named(note, history.system)
            is_doubted = last.is_unclear and not notes.is_expected(text, history.told)
            is_silent = not last.text and text == NOTHING_HEARD
            if is_silent or (note is None and is_doubted):
                note = next(one for one in NOT_CAUGHT if one not in answers[-2:])
            elif note is None:
                note = notes.stated(text, role, is_sure=False) or notes.unknown_to_us(
                    text, history.told, answers, self.is_word
                )
        line = replace(last, text=text, note=note, is_open=False)
        return replace(history, lines=(*lines[:-1], line), told=(*history.told, text))
