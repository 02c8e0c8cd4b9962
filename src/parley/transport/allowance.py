"""A token bucket: a burst, and a rate per second."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """A burst, and a rate per second. Looks at the clock only when used up."""

    __slots__ = ("_filled_at", "_left", "_most", "_per_s")

    def __init__(self, most: float, per_s: float, now: float) -> None:
        self._left = self._most = most
        self._per_s = per_s
        self._filled_at = now

    def take(self, amount: float, now: Callable[[], float]) -> float:
        """Use some; how much more than allowed was used, 0 when none was."""
        self._left -= amount
        if self._left >= 0:
            return 0.0
        time = now()
        more = (time - self._filled_at) * self._per_s
        self._left, self._filled_at = min(self._most, self._left + more), time
        return max(0.0, -self._left)

    def take_at_hand(self, amount: float) -> bool:
        """Use some of what was left when the clock was looked at last; False, and nothing is used,
        when that is not enough."""
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def has(self, amount: float, now: Callable[[], float]) -> bool:
        """Use some if there is so much; what is refused is not used up."""
        if self.take(amount, now):
            self._left += amount
            return False
        return True
