"""Decides how many workers to request from a cluster while clients wait, and when to release one.
Pure.

A model takes minutes to load, so workers are requested as soon as clients have waited for a moment,
and released only after a long idle time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The gateway's load.

    Args:
        waiting: number of clients in the queue.
        running: number of sessions with a slot.
        slots: per worker.
        idle: indices of workers without a session.
    """

    waiting: int
    running: int
    slots: int = 1
    idle: frozenset[int] = frozenset()


class Scaling:
    """Wanted number of workers.

    Args:
        least: minimum number.
        most: maximum number.
        up_after_s: seconds of uninterrupted waiting, of any clients, before workers are added.
        down_after_s: uninterrupted time for which fewer workers must have been enough before one is
            released.
    """

    def __init__(self, least: int, most: int, *, up_after_s: float, down_after_s: float) -> None:
        self.least, self.most = least, max(least, most)
        self._up_after_s, self._down_after_s = up_after_s, down_after_s
        self._short_since: float | None = None
        self._enough_since: float | None = None

    def wanted(self, demand: Demand, workers: int, now: float) -> int:
        """Wanted number of workers, given the current number `workers`; `now` is in monotonic
        seconds. Shrinks by one at a time, so that the effect can be observed."""
        needed = math.ceil((demand.running + demand.waiting) / max(1, demand.slots))
        if not demand.waiting:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        if needed >= workers or workers <= self.least:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now

        if self._short_since is not None and now - self._short_since >= self._up_after_s:
            return min(self.most, max(workers, needed))
        if self._enough_since is not None and now - self._enough_since >= self._down_after_s:
            return workers - 1
        return workers
