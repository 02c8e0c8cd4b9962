"""What work costs in seconds of processor, wherever a test says that it is little.

One measurement would be a matter of chance: the garbage collector looks through what other tests
have left, other threads of the process count too, and a core shared with others does less in a
second. So the work is done until it was cheap enough, five times at most; what is too slow by
design is so every time.
"""

import time
from collections.abc import Callable

TRIES = 5


def takes_less_than(limit_s: float, work: Callable[[], object]) -> bool:
    """True if one of five tries took less, counted in the seconds of this thread alone."""
    for _ in range(TRIES):
        began_s = time.thread_time()
        work()
        if time.thread_time() - began_s < limit_s:
            return True
    return False
