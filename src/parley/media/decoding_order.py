"""Chooses the waiting job that a decoder process takes next.

Pure bookkeeping under one lock: it knows neither processes nor media. Each owner (a key or an
address) has one running job at a time, so one client with many files cannot occupy all processes.
Among the waiting owners, the one with the fewest served jobs goes first; among equals the cheapest
job, then the oldest. A cancelled job leaves immediately, and its thread is free.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from parley.errors import ServiceUnavailable

WAITING_PER_OWNER: Final = 16
"""Maximum number of waiting jobs of one owner; each occupies a thread."""


@dataclass(eq=False, slots=True)
class _Waiting:
    owner: str
    cost: float
    number: int
    woken: threading.Event = field(default_factory=threading.Event)


class Stop:
    """Cancels a job; `set` may be called in any thread, repeatedly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._act: Callable[[], None] = lambda: None

    def set(self) -> None:
        """Cancel the current or the next job."""
        with self._lock:
            self._is_set = True
            self._act()

    def arm(self, act: Callable[[], None]) -> None:
        """Call `act` when cancelled; immediately if that has happened."""
        with self._lock:
            self._act = act
            if self._is_set:
                act()

    def check(self) -> None:
        """Raises `ServiceUnavailable` if the job was cancelled."""
        if self._is_set:
            raise ServiceUnavailable("The job was cancelled.")


class DecodingOrder:
    """Admits as many concurrent jobs as there are processes.

    Args:
        places: number of jobs that may run concurrently.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._running: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self._joined = 0

    @contextlib.contextmanager
    def turn(self, owner: str, cost: float, stop: Stop, *, wait_s: float) -> Iterator[None]:
        """Wait for a place and hold it while the block runs. Blocks the calling thread.

        Args:
            owner: of the job; "": the server itself.
            cost: expected cost, in any unit that can be compared.

        Raises:
            ServiceUnavailable: no place within `wait_s`, too many jobs of this owner are waiting,
                or the job was cancelled before it started.
        """
        one = self._join(owner, cost)
        stop.arm(one.woken.set)
        one.woken.wait(wait_s)
        if self._give_up(one):
            stop.check()
            raise ServiceUnavailable("The decoder is busy with other files; try again later.")
        try:
            stop.check()
            yield
        finally:
            self._finish(one)

    def _join(self, owner: str, cost: float) -> _Waiting:
        with self._lock:
            if sum(each.owner == owner for each in self._waiting) >= WAITING_PER_OWNER:
                raise ServiceUnavailable(
                    f"{WAITING_PER_OWNER} files of yours wait to be decoded; try again later."
                )
            self._joined += 1
            one = _Waiting(owner, cost, self._joined)
            self._waiting.append(one)
            self._admit()
            return one

    def _give_up(self, one: _Waiting) -> bool:
        """Leave the queue; returns True if the job was still waiting."""
        with self._lock:
            if one not in self._waiting:
                return False
            self._waiting.remove(one)
            self._forget(one.owner)
            return True

    def _finish(self, one: _Waiting) -> None:
        with self._lock:
            self._free += 1
            self._running[one.owner] -= 1
            self._forget(one.owner)
            self._admit()

    def _admit(self) -> None:
        while self._free:
            ready = [each for each in self._waiting if not self._running[each.owner]]
            if not ready:
                return
            best = min(ready, key=lambda each: (self._served[each.owner], each.cost, each.number))
            self._waiting.remove(best)
            self._free -= 1
            self._running[best.owner] += 1
            self._served[best.owner] += 1
            best.woken.set()

    def _forget(self, owner: str) -> None:
        """Drop an owner's usage once it has no jobs."""
        if not self._running[owner] and all(each.owner != owner for each in self._waiting):
            del self._running[owner]
            del self._served[owner]
