"""Time as a value you can pass in, so that tests own the clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

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
    """A clock that moves only when told to. For tests and replays."""

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
