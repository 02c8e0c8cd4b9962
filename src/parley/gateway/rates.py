"""What any client may request, and what costs too much to be made for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from parley.clock import Clock

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
