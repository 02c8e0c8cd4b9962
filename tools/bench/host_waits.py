"""What the engine thread waits for, told apart, for `python -m tools.bench engine`.

A thread computes, waits for a processor, or waits for the interpreter's lock. Linux reports how
long it has run, how long it was in run queues, and how often it gave its processor up. From that
follows why a device that it feeds had nothing to do.

All times are seconds of `time.perf_counter` unless they say otherwise.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from typing import Final

from parley.errors import SetupError

NOTICED_S: Final = 2e-5
"""A wait is looked at when waits have grown by so much."""


@dataclass(frozen=True, slots=True)
class IdleSplit:
    """Why the device had nothing to do in a step: what would be left if the host had never waited,
    what waits for a processor add to that, and what all other waits add then.

    Args:
        own_s: the host was computing, and launching.
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
    """How long the calling thread has waited in run queues, and how often it went to sleep.

    Raises:
        SetupError: the system does not report it.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            raise SetupError("This bench needs /proc with schedstat, i.e. Linux.") from None

    def queued(self) -> float:
        """Seconds in run queues."""
        return queued_s(os.pread(self._file, 64, 0))

    def sleeps(self) -> int:
        """Times that it gave its processor up."""
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def close(self) -> None:
        os.close(self._file)


def queued_s(schedstat: bytes) -> float:
    """Seconds that a thread has waited in a run queue, from /proc's `schedstat`."""
    return int(schedstat.split()[1]) / 1e9


class HostWaits:
    """What a thread has waited for since this was made.

    A wait in which it never went to sleep was for a processor: in a run queue, or while the host of
    a virtual machine had taken the processor away. One in which it did was for the interpreter's
    lock, but for what of it was spent in a run queue.

    Args:
        processor_s, lock_s: so far, as of the last `look`.
    """

    def __init__(self, times: ThreadTimes) -> None:
        self.processor_s = self.lock_s = 0.0
        self._times = times
        self._seen_s, self._ran_s = time.perf_counter(), time.thread_time()
        self._queued_s, self._sleeps = times.queued(), times.sleeps()

    def look(self, *, slept_s: float = 0.0) -> None:
        """Add what was waited since the last look.

        Args:
            slept_s: the thread itself meant to sleep for so long in between.
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
    """The device during one step: when it is free, and how long it had nothing to do; and the same
    had the host not waited for a processor, and not for anything.

    A host that never waits is ahead of one that does by as much as it waited, so it finds the
    device without work only where the other does too: only there the clocks are read.
    """

    def __init__(self, waits: HostWaits) -> None:
        self._waits = waits
        self._given_s = 0.0
        # When each host's device would be free if nothing had been given to it since.
        self._free_s = [time.perf_counter()] * 3
        self._idle_s = [0.0] * 3

    @property
    def free_s(self) -> float:
        return self._free_s[0] + self._given_s

    def launch(self, busy_s: float) -> None:
        """The host has just launched what keeps the device busy for so long."""
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
        """Why it was idle so far."""
        all_s, ready_s, own_s = self._idle_s
        return IdleSplit(own_s, all_s - ready_s, ready_s - own_s)
