"""Time as a value you can pass in, so that tests own the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def time(self) -> float:
        """Unix seconds, for people and files; may jump."""
        ...


class SystemClock:
    """The machine's own clock."""

    # Asked dozens of times per unit: the C functions themselves, without a frame around them.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class ManualClock:
    """A clock that only `advance` moves, for tests and replays."""

    def __init__(self, monotonic_s: float = 0.0, time_s: float = 1_700_000_000.0) -> None:
        self._monotonic_s = monotonic_s
        self._time_s = time_s

    def monotonic(self) -> float:
        return self._monotonic_s

    def time(self) -> float:
        return self._time_s

    def advance(self, seconds: float) -> None:
        """Move both readings forward by `seconds`."""
        self._monotonic_s += seconds
        self._time_s += seconds


@dataclass(slots=True)
class Backoff:
    """Pauses before repeated attempts: each twice as long as the previous one.

    Args:
        first_s, last_s: the shortest and the longest pause.
        settled_s: what ran this long before it ended is started again after `first_s`.
    """

    first_s: float
    last_s: float
    settled_s: float = float("inf")
    next_s: float = field(init=False)
    """The pause that `take` returns next."""

    def __post_init__(self) -> None:
        self.next_s = self.first_s

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self.next_s = self.first_s

    def take(self, ran_s: float = 0.0) -> float:
        """The pause before the next attempt, in seconds; `ran_s`: how long the last attempt ran."""
        if ran_s >= self.settled_s:
            self.reset()
        pause_s = self.next_s
        self.next_s = min(2 * pause_s, self.last_s)
        return pause_s
