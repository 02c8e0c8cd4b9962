"""Time as a parameter, so that tests control the clock."""

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

    # Called dozens of times per unit, so the C functions are used directly.
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
        """Advance both readings by `seconds`."""
        self._monotonic_s += seconds
        self._time_s += seconds


@dataclass(slots=True)
class Backoff:
    """Pauses between repeated attempts, each twice as long as the previous one.

    Args:
        first_s, last_s: the shortest and the longest pause.
        settled_s: after a run of this length the pause is `first_s` again.
    """

    first_s: float
    last_s: float
    settled_s: float = float("inf")
    next_s: float = field(init=False)
    """The pause that `take` returns next."""

    def __post_init__(self) -> None:
        self.next_s = self.first_s

    def reset(self) -> None:
        """Reset to the shortest pause."""
        self.next_s = self.first_s

    def take(self, ran_s: float = 0.0) -> float:
        """The pause before the next attempt, in seconds; `ran_s`: how long the last attempt ran."""
        if ran_s >= self.settled_s:
            self.reset()
        pause_s = self.next_s
        self.next_s = min(2 * pause_s, self.last_s)
        return pause_s
