"""How often tests repeat what they repeat.

`make test-long` runs the long form of tests that look for what shows after many repetitions only;
what they prove is the same.
"""

import os
from typing import Final

import pytest

IS_LONG = bool(os.environ.get("LONG_TESTS"))


def times(usual: int, long: int) -> int:
    """Repetitions of this run: the usual number, or that of the long form."""
    return long if IS_LONG else usual


long_only: Final = pytest.mark.skipif(
    not IS_LONG, reason="measures in real time or repeats at length: make test-long"
)
