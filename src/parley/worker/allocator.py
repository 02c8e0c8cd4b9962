"""The C library's memory allocator in a worker. Source: mallopt(3) of glibc."""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS: Final = 2
"""Pools from which threads take memory. What one of them frees stays in its pool, and by default
there are eight for each core: with `pocket`, a call took 96 MB more, and 5 to 10 MB more with every
quarter of an hour. Source: docs/log/minicpmo45.md."""

_ARENA_MAX: Final = -8
"""`M_ARENA_MAX` of malloc.h."""


def limit_arenas() -> bool:
    """Have all threads share `ARENAS` pools; before there are threads. False: this C library has
    none, or another way."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, ARENAS))
    except (AttributeError, OSError):
        return False
