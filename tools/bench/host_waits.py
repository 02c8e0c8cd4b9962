"""Waits of the engine thread by cause, for `python -m tools.bench engine`.

A thread computes, waits for a processor, or waits for the interpreter's lock. Linux reports the
time it has run, the time it was in run queues, and the number of times it yielded its processor.
From these numbers this module derives why a device that the thread feeds had nothing to do.

All times are seconds of `time.perf_counter` unless noted otherwise.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from typing import Final

from parley.errors import SetupError

NOTICED_S: Final = 2e-5
"""Waits are classified once they have grown by this time."""


@dataclass(frozen=True, slots=True)
class IdleSplit:
    """Causes of the device's idle time in a step: the idle time that would remain if the host had
    never waited, what waits for a processor add, and what all other waits add.

    Args:
        own_s: the host was computing and launching.
        processor_s: it waited for a processor.
        lock_s: it waited for the interpreter's lock.
    """

    own_s: float
    processor_s: float
    lock_s: float

    @property
    def total_s(self) -> float:
        return self.own_s + self.processor_s + self.lock_s


class ThreadTimes:
    """Time that the calling thread has waited in run queues, and number of times that it slept.

    Raises:
        SetupError: the system does not report it.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            raise SetupError("This bench needs /proc with schedstat, i.e. Linux.") from None

    def queued(self) -> float:
        """Seconds spent in run queues."""
        return queued_s(os.pread(self._file, 64, 0))

    def sleeps(self) -> int:
        """Number of times that it yielded its processor."""
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def close(self) -> None:
        os.close(self._file)


def queued_s(schedstat: bytes) -> float:
    """Seconds that a thread has waited in a run queue, from /proc's `schedstat`."""
    return int(schedstat.split()[1]) / 1e9


class HostWaits:
    """Waits of a thread since this object was created, by cause.

    If the thread never slept in a wait, it waited for a processor: in a run queue, or because the
    host of a virtual machine had taken the processor. If it did, it waited for the interpreter's
    lock, except for the time spent in a run queue.

    Args:
        processor_s, lock_s: totals as of the last `look`.
    """

    def __init__(self, times: ThreadTimes) -> None:
        self.processor_s = self.lock_s = 0.0
        self._times = times
        self._seen_s, self._ran_s = time.perf_counter(), time.thread_time()
        self._queued_s, self._sleeps = times.queued(), times.sleeps()

    def look(self, *, slept_s: float = 0.0) -> None:
        """Add the waits since the last look.

        Args:
            slept_s: time for which the thread intentionally slept in between.
        """
        now_s, ran_s = time.perf_counter(), time.thread_time()
        waited_s = max(0.0, now_s - self._seen_s - (ran_s - self._ran_s) - slept_s)
        if waited_s < NOTICED_S and not slept_s:
            return
        queued_s, sleeps = self._times.queued(), self._times.sleeps()
        processor_s = waited_s
        if sleeps - self._sleeps > (1 if slept_s else 0):
            processor_s = min(waited_s, queued_s - self._queued_s)
        self.processor_s += processor_s
        self.lock_s += waited_s - processor_s
        self._seen_s, self._ran_s = now_s, ran_s
        self._queued_s, self._sleeps = queued_s, sleeps


class IdleDevice:
    """The device during one step: when it becomes free, and its idle time; also as they would be if
    the host had not waited for a processor, or not at all.

    A host that never waits is ahead of a host that waits, by the time waited. It therefore finds
    the device idle only when the other host does too, and clocks are read only then.
    """

    def __init__(self, waits: HostWaits) -> None:
        self._waits = waits
        self._given_s = 0.0
        # When each host's device would become free without the work launched in this step.
        self._free_s = [time.perf_counter()] * 3
        self._idle_s = [0.0] * 3

    @property
    def free_s(self) -> float:
        return self._free_s[0] + self._given_s

    def launch(self, busy_s: float) -> None:
        """Record that the host has just launched work that keeps the device busy for `busy_s`."""
        now_s = time.perf_counter()
        if now_s > self.free_s:
            self._waits.look()
            processor_s, lock_s = self._waits.processor_s, self._waits.lock_s
            for host, waited_s in enumerate((0.0, processor_s, processor_s + lock_s)):
                gap_s = now_s - waited_s - self._free_s[host] - self._given_s
                if gap_s > 0:
                    self._idle_s[host] += gap_s
                    self._free_s[host] += gap_s
        self._given_s += busy_s

    def split(self) -> IdleSplit:
        """The device's idle time so far, by cause."""
        all_s, ready_s, own_s = self._idle_s
        return IdleSplit(own_s, all_s - ready_s, ready_s - own_s)
