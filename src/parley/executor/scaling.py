"""How many workers to request of a cluster while clients wait, and when to release one. Pure.

A model takes minutes to load, so more is asked for as soon as people have waited a moment, and
released only after it was idle for long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The gateway's load.

    Args:
        waiting: clients in the queue.
        running: sessions that hold a slot.
        slots: of one worker.
        idle: numbers of workers without a session.
    """

    waiting: int
    running: int
    slots: int = 1
    idle: frozenset[int] = frozenset()


class Scaling:
    """Wanted number of workers.

    Args:
        least: never fewer.
        most: never more.
        up_after_s: seconds of uninterrupted waiting, by any client, before workers are added.
        down_after_s: how long fewer must have been enough without a break.
    """

    def __init__(self, least: int, most: int, *, up_after_s: float, down_after_s: float) -> None:
        self.least, self.most = least, max(least, most)
        self._up_after_s, self._down_after_s = up_after_s, down_after_s
        self._short_since: float | None = None
        self._enough_since: float | None = None

    def wanted(self, demand: Demand, workers: int, now: float) -> int:
        """Wanted number of workers, given `workers` now; `now` is in monotonic seconds. Shrinks by
        one at a time, so that the effect can be observed."""
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
