"""Limits of concurrent connections per address. Addresses of IPv6 count by their /64."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from parley.transport.allowance import RateLimit

HELD_OFF_S: Final = 5.0
"""Time for which an address gets no new WebSocket after it flooded a connection, so that floods
cannot follow each other immediately."""

Ended = Literal["flood", "slow_body", "slow_reader", "too_many", "unread_answers"]

AT_ONCE: Final = 2
REFILL_S: Final = 8.0
"""An address may open twice its limit of connections in a burst, and as many as its limit in each
period of this length."""


class OpenConnections:
    """Counts connections by address, of any kind.

    Args:
        limit: per address; None if addresses are meaningless, as behind a proxy.
        now: a clock, in seconds.
    """

    def __init__(
        self, limit: int | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self.change(limit)
        self.by_address: Counter[str] = Counter()
        """Open connections."""
        self.draining: Counter[str] = Counter()
        """Connections whose bodies are still read after the response, by address."""
        self.ended: Counter[Ended] = Counter()
        """Number of connections that were closed because they sent too much."""
        self._held_off: dict[str, float] = {}

    def change(self, limit: int | None) -> None:
        """Use another limit for later connections."""
        self.limit = limit
        refill_s = AT_ONCE * REFILL_S
        self._opened = None if limit is None else RateLimit(AT_ONCE * limit, refill_s, self._now)

    def flooded(self, address: str, now: float) -> None:
        """A connection of this address was closed because it sent too many messages."""
        self._held_off = {one: until for one, until in self._held_off.items() if until > now}
        self._held_off[address] = now + HELD_OFF_S
        self.ended["flood"] += 1

    def is_held_off(self, address: str, now: float) -> bool:
        """True if the address must wait before it may open another WebSocket."""
        return now < self._held_off.get(address, 0.0)

    def enter(self, address: str) -> bool:
        """Count one connection; returns False, without counting it, if the address has reached its
        limit."""
        if not self.has_room(self.by_address, address):
            return False
        self.by_address[address] += 1
        return True

    def has_room(self, counted: Counter[str], address: str) -> bool:
        """True if the count of the address is below its limit of connections."""
        if self.limit is None or counted[address] < self.limit:
            return True
        self.ended["too_many"] += 1
        return False

    def may_open(self, address: str) -> bool:
        """True if a new connection of `address` may be answered; it is counted."""
        if self._opened is None or self._opened.take(address):
            return True
        self.ended["too_many"] += 1
        return False

    def leave(self, address: str) -> None:
        """A counted connection has ended."""
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]
