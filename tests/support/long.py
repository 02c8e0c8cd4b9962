"""Number of repetitions in tests that repeat.

`make test-long` runs tests that look for rare faults with many more repetitions; they check the
same.
"""

import os
from typing import Final

import pytest

IS_LONG = bool(os.environ.get("LONG_TESTS"))


def times(usual: int, long: int) -> int:
    """Number of repetitions in this run: the usual one, or that of the long form."""
    return long if IS_LONG else usual


long_only: Final = pytest.mark.skipif(
    not IS_LONG, reason="measures in real time or repeats at length: make test-long"
)
