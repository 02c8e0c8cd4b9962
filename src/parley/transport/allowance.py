"""Token buckets: a burst, and a rate per second."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

CALLERS_KEPT: Final = 10_000
"""Maximum number of buckets; beyond it the least recently used are dropped, which refills them."""


class Allowance:
    """A burst and a rate per second. Reads the clock only when used up."""

    __slots__ = ("_filled_at", "_left", "_most", "_per_s")

    def __init__(self, most: float, per_s: float, now: float) -> None:
        self._left = self._most = most
        self._per_s = per_s
        self._filled_at = now

    def take(self, amount: float, now: Callable[[], float]) -> float:
        """Use an amount; returns the excess over the allowance, 0 if there is none."""
        self._left -= amount
        if self._left >= 0:
            return 0.0
        time = now()
        more = (time - self._filled_at) * self._per_s
        self._left, self._filled_at = min(self._most, self._left + more), time
        return max(0.0, -self._left)

    def take_at_hand(self, amount: float) -> bool:
        """Use an amount of what was left at the last reading of the clock; returns False and uses
        nothing if that is not enough."""
        if self._left < amount:
            return False
        self._left -= amount
        return True


class RateLimit:
    """At most `burst` uses together for each caller, which refill evenly.

    Args:
        refill_s: time for the whole burst.
        now: a clock, in seconds.
    """

    def __init__(self, burst: int, refill_s: float, now: Callable[[], float]) -> None:
        self.burst = burst
        self._per_s = burst / refill_s
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}
        """Caller → remaining amount, and its time; least recently used first."""

    def __len__(self) -> int:
        return len(self._buckets)

    def has_room(self, caller: str) -> bool:
        """True if `take` would allow one more use."""
        return self._left(caller, self._now()) >= 1

    def take(self, caller: str) -> bool:
        """Count one use; returns False if there is nothing left."""
        now = self._now()
        left = self._left(caller, now)
        self._buckets.pop(caller, None)
        is_allowed = left >= 1
        self._buckets[caller] = (left - 1 if is_allowed else left, now)
        if len(self._buckets) > CALLERS_KEPT:
            del self._buckets[next(iter(self._buckets))]
        return is_allowed

    def wait_s(self, caller: str) -> int:
        """Whole seconds until `take` allows one more use; at least 1."""
        return max(1, math.ceil((1 - self._left(caller, self._now())) / self._per_s))

    def _left(self, caller: str, now: float) -> float:
        left, at = self._buckets.get(caller, (float(self.burst), now))
        return min(self.burst, left + (now - at) * self._per_s)
