"""A token bucket: a burst, and a rate per second."""

from __future__ import annotations

from collections.abc import Callable


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
        """Use an amount of what was left at the last reading of the clock; false, and nothing is
        used, if that is not enough."""
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def has(self, amount: float, now: Callable[[], float]) -> bool:
        """Use an amount if it is available; a refused amount is not used up."""
        if self.take(amount, now):
            self._left += amount
            return False
        return True
