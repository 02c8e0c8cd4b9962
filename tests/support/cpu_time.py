"""Checks of the CPU time of work, for tests that require it to be small.

A limit is written in seconds of the machine on which it was chosen. A shared or older core does
less in a second, so the limit grows by what a known piece of work takes at that moment. The work
is repeated until it is fast enough, at most five times, because the garbage collector may scan the
objects of other tests meanwhile; work that is too slow by design fails every time.
"""

import time
from collections.abc import Callable

TRIES = 5
KNOWN_S = 0.0014
"""CPU time of `_known_work` where the limits were chosen."""


def takes_less_than(limit_s: float, work: Callable[[], object]) -> bool:
    """True if one of five tries took less CPU time of this thread, see above."""
    for _ in range(TRIES):
        before_s, took_s, after_s = map(_cost_s, (_known_work, work, _known_work))
        if took_s < limit_s * max(1.0, min(before_s, after_s) / KNOWN_S):
            return True
    return False


def _cost_s(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def _known_work() -> int:
    return sum(len(str(number)) for number in range(20_000))
