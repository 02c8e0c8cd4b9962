"""Rate limits per caller.

A token bucket per caller: a full minute's worth may come together, and refills evenly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from parley.clock import Clock

CALLERS_KEPT: Final = 10_000
"""Number of buckets; beyond that the longest unused are dropped, which makes them full again."""

SELDOM_MOST: Final = 8
SELDOM_S: Final = 4.0

T = TypeVar("T")


class Seldom(Generic[T]):
    """Something that costs milliseconds and that any client may request: made at most `SELDOM_MOST`
    times in `SELDOM_S` seconds, else the last one again."""

    def __init__(self, clock: Clock, make: Callable[[], T]) -> None:
        self._clock = clock
        self._make = make
        self._made_s: deque[float] = deque(maxlen=SELDOM_MOST)
        self._last: T | None = None

    def get(self) -> T:
        """At most `SELDOM_S` old."""
        now_s = self._clock.monotonic()
        if (
            self._last is None
            or len(self._made_s) < SELDOM_MOST
            or now_s - self._made_s[0] >= SELDOM_S
        ):
            self._made_s.append(now_s)
            self._last = self._make()
        return self._last


class RateLimit:
    """At most `per_minute` for each caller."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Caller → what is left, and the time of that; the longest unused first."""

    def __len__(self) -> int:
        return len(self._buckets)

    def has_room(self, caller: str) -> bool:
        """True if `take` would allow one more use."""
        return self._left(caller, self._clock.monotonic()) >= 1

    def take(self, caller: str) -> bool:
        """Count one use; False when there is nothing left."""
        now_s = self._clock.monotonic()
        left = self._left(caller, now_s)
        self._buckets.pop(caller, None)
        is_allowed = left >= 1
        self._buckets[caller] = (left - 1 if is_allowed else left, now_s)
        if len(self._buckets) > CALLERS_KEPT:
            del self._buckets[next(iter(self._buckets))]
        return is_allowed

    def wait_s(self, caller: str) -> int:
        """Whole seconds until `take` allows one more use; at least 1."""
        left = self._left(caller, self._clock.monotonic())
        return max(1, math.ceil((1 - left) * 60 / self.per_minute))

    def _left(self, caller: str, now_s: float) -> float:
        left, at_s = self._buckets.get(caller, (float(self.per_minute), now_s))
        return min(self.per_minute, left + (now_s - at_s) * self.per_minute / 60)
