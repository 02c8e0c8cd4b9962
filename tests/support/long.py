"""How often tests repeat what they repeat.

`make test-long` runs the long form of tests that look for what shows after many repetitions only;
what they prove is the same.
"""

from __future__ import annotations

import os

IS_LONG = bool(os.environ.get("LONG_TESTS"))


def times(usual: int, long: int) -> int:
    """Repetitions of this run: the usual number, or that of the long form."""
    return long if IS_LONG else usual
