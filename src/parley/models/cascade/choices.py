"""Results of a piece of work as values, so that another row can repeat it without choosing.

The same code runs both times. The first time, the parts are called and their results are recorded;
the second time, the results are read in the same order. Speech is generated again only if it is
still to be played. Until then it is promised: silence of the right length stands for it
(`promises.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import numpy as np

from parley.errors import InvalidRequest
from parley.models.cascade.parts import CascadeParts, Hearing, OneStep
from parley.models.cascade.recognition import Heard
from parley.models.cascade.speech import ClauseAudio
from parley.models.cascade.writer import AnswerRequest, Draft

T = TypeVar("T")

WAITED = None
"""Entry in `Chosen.words` for a unit that ended without a new word."""
_NOTHING: Any = object()


class NothingLeft(Exception):
    """When this work was first done, it was cancelled at this point."""


@dataclass(frozen=True, slots=True, eq=False)
class Listened:
    """Results of a voice detector for a unit.

    Args:
        detector: its state after the unit.
        is_echo: True if the sound is our own, or a voice that is too soft to be the user's.
        needed_ms: duration of quiet after which the utterance is over, if that was judged before
            its words were recognised.
        interrupts: True if the user interrupts our speech.
        quiet_ms: duration of the quiet that was judged.
        coupling: how loud our echo can be, if it is known (`echo.coupling_of`).
        user_power: power of the last speech that was addressed to us; 0 if it is unknown.
        far: for each probability, true if a distant speaker is heard.
    """

    probabilities: tuple[float, ...]
    detector: tuple[object, object] | None
    is_echo: bool
    needed_ms: int | None = None
    interrupts: bool = False
    quiet_ms: int = 0
    coupling: float | None = None
    user_power: float = 0.0
    far: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """Results of a piece of work, each kind in the order in which they were chosen.

    Args:
        heard: results of the recogniser.
        seen: descriptions of pictures.
        listened: results for units.
        words: choices of the language model (`Writer.choice`).
        spoken: lengths of clauses, in samples; that of the last one may be a part of it.
        clock: readings of the clock, as ISO dates and times.
        judged: durations of quiet after which an utterance is over, in ms, judged after its words
            were recognised; None without a judge.
    """

    heard: tuple[Heard, ...] = ()
    seen: tuple[str, ...] = ()
    listened: tuple[Listened, ...] = ()
    words: tuple[object, ...] = ()
    spoken: tuple[int, ...] = ()
    clock: tuple[str, ...] = ()
    judged: tuple[int | None, ...] = ()


class Choices:
    """Makes the choices of one piece of work, or repeats given ones.

    Args:
        given: a `Chosen`; None: nothing has been chosen yet.
        wall_clock: returns Unix seconds.

    Raises:
        InvalidRequest: `given` is neither.
    """

    def __init__(self, given: object, wall_clock: Callable[[], float]) -> None:
        if given is not None and not isinstance(given, Chosen):
            raise InvalidRequest("These choices are not a cascade's.")
        self._given = given
        self._wall_clock = wall_clock
        left = given or Chosen()
        self._heard = _Line(left.heard)
        self._seen = _Line(left.seen)
        self._listened = _Line(left.listened)
        self._words = _Line(left.words)
        self._spoken = _Line(left.spoken)
        self._is_in_clause = False
        self._clock = _Line(left.clock)
        self._judged = _Line(left.judged)

    @property
    def is_again(self) -> bool:
        """True if all choices are given and nothing is chosen."""
        return self._given is not None

    @property
    def made(self) -> Chosen:
        """The choices so far."""
        if self._given is not None:
            return self._given
        return Chosen(
            tuple(self._heard.made),
            tuple(self._seen.made),
            tuple(self._listened.made),
            tuple(self._words.made),
            tuple(self._spoken.made),
            tuple(self._clock.made),
            tuple(self._judged.made),
        )

    def hearing(self, begin: Callable[[], Hearing]) -> Hearing:
        """Start to recognise an utterance; the caller reports the result with `heard`."""
        return OneStep(self._heard.next) if self.is_again else begin()

    @property
    def heard_left(self) -> int:
        """Number of given results of the recogniser that are left."""
        return len(self._heard)

    def heard(self, heard: Heard) -> None:
        """Record the recogniser's result."""
        if not self.is_again:
            self._heard.made.append(heard)

    def seen(self, look: Callable[[], str]) -> str:
        """The sentence about a picture."""
        return self._seen.next() if self.is_again else self._seen.keep(look())

    def listened(self, listen: Callable[[], Listened]) -> Listened:
        """The voice detector's result for a unit."""
        return self._listened.next() if self.is_again else self._listened.keep(listen())

    def judged(self, judge: Callable[[], int | None]) -> int | None:
        """The duration of quiet after which the utterance is over."""
        return self._judged.next() if self.is_again else self._judged.keep(judge())

    def now(self) -> datetime:
        """The session's time, in the machine's time zone."""
        if self.is_again:
            return datetime.fromisoformat(self._clock.next())
        now = datetime.fromtimestamp(self._wall_clock()).replace(microsecond=0)
        self._clock.keep(now.isoformat())
        return now

    def written(
        self, parts: CascadeParts, row: int, request: AnswerRequest, draft: Draft, draws: int
    ) -> Draft:
        """The next draft; see `Writer.step`.

        Raises:
            NothingLeft: nothing more was written.
        """
        writer, history, limit = parts.writer, request.history, request.limit
        note = history.lines[-1].note if history.lines and not draft.ids else None
        is_free = request.rule.answer_format is None and self._words.peek() in (WAITED, _NOTHING)
        if note and is_free:
            words = note.split()
            while (count := writer.count_text(" ".join(words))) > limit and len(words) > 1:
                words.pop()
            text, is_limit = " ".join(words), len(words) < len(note.split())
            return Draft(text, is_over=True, is_limit=is_limit, count=count)
        if self.is_again:
            if not self._words:
                raise NothingLeft
            return writer.again(row, request, draft, self._words.next())
        after = writer.step(row, request, draft, draws)
        if after is not draft:
            self._words.made.append(writer.choice(draft, after))
        return after

    def ends_unit(self, *, is_due: bool) -> bool:
        """True if a unit ends because nothing new has arrived; `is_due` decides it the first
        time."""
        if self.is_again:
            if self._words.peek() is not WAITED:
                return False
            self._words.next()
            return True
        if is_due:
            self._words.made.append(WAITED)
        return is_due

    def spoken(self, take: Callable[[], ClauseAudio | None]) -> ClauseAudio | None:
        """The next portion of a clause, or silence of its length; None if nothing has arrived.

        Raises:
            NothingLeft: nothing more was said.
        """
        if self.is_again:
            if self._spoken:
                return ClauseAudio(np.zeros(self._spoken.next(), np.float32), is_last=True)
            if self._words.peek() is WAITED:
                return None
            raise NothingLeft
        portion = take()
        if portion is not None:
            if not self._is_in_clause:
                self._spoken.made.append(0)
            self._spoken.made[-1] += len(portion.samples)
            self._is_in_clause = not portion.is_last
        return portion


class _Line(Generic[T]):
    """Choices of one kind: those that are given, and those that were made."""

    def __init__(self, given: Iterable[T]) -> None:
        self._left = deque(given)
        self.made: list[T] = []

    def __len__(self) -> int:
        return len(self._left)

    def next(self) -> T:
        if not self._left:
            raise InvalidRequest("The recording has fewer choices than this needs.")
        return self._left.popleft()

    def peek(self) -> T | None:
        """The next choice; None means `WAITED`."""
        return self._left[0] if self._left else _NOTHING

    def keep(self, value: T) -> T:
        self.made.append(value)
        return value
