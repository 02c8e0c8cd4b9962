"""Limits how often something expensive is made that any client may request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from parley.clock import Clock

SELDOM_MOST: Final = 8
SELDOM_S: Final = 4.0

T = TypeVar("T")


class Seldom(Generic[T]):
    """A value that takes milliseconds to make and that any client may request: it is made at most
    `SELDOM_MOST` times in `SELDOM_S` seconds; other requests get the last one."""

    def __init__(self, clock: Clock, make: Callable[[], T]) -> None:
        self._clock = clock
        self._make = make
        self._made_s: deque[float] = deque(maxlen=SELDOM_MOST)
        self._last: T | None = None

    def get(self) -> T:
        """The value; at most `SELDOM_S` old."""
        now_s = self._clock.monotonic()
        if (
            self._last is None
            or len(self._made_s) < SELDOM_MOST
            or now_s - self._made_s[0] >= SELDOM_S
        ):
            self._made_s.append(now_s)
            self._last = self._make()
        return self._last
