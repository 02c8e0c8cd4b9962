"""Checks of the CPU time of work, for tests that require it to be small.

A single measurement is unreliable: the garbage collector scans objects of other tests, other
threads of the process count too, and a shared core does less in a second. So the work is repeated
until it is fast enough, at most five times; work that is too slow by design fails every time.
"""

import time
from collections.abc import Callable

TRIES = 5


def takes_less_than(limit_s: float, work: Callable[[], object]) -> bool:
    """True if one of five tries took less CPU time of this thread."""
    for _ in range(TRIES):
        began_s = time.thread_time()
        work()
        if time.thread_time() - began_s < limit_s:
            return True
    return False
