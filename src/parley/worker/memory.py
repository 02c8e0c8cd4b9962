"""A worker's memory: the allocator of the C library, and the use of GPU memory.

Source of the first: mallopt(3) and malloc_trim(3) of glibc.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any, Final

from parley.protocol.control import DeviceMemory

ARENAS: Final = 2
"""Number of pools from which threads allocate memory. Freed memory stays in its pool, and by
default there are eight pools per core: with `pocket`, 700 units of a call took 96 MB more, 13 MB of
it in the last 500. Source: docs/log/gateway.md."""

_ARENA_MAX: Final = -8
"""`M_ARENA_MAX` of malloc.h."""

KEPT_BYTES: Final = 128 << 20
"""Growth of the process below which freed memory is kept: an answer after it was returned takes
60 ms of a processor more with `pocket`. Source: docs/log/gateway.md."""


def limit_arenas() -> bool:
    """Have all threads share `ARENAS` pools. Call before threads are started. Returns False if this
    C library does not support it."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, ARENAS))
    except (AttributeError, OSError):
        return False


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim(least_bytes: int) -> int:
    """Return freed memory to the system if this process has grown since it had `least_bytes`: the
    pools keep what large pictures took, and sessions are in reference cycles. Returns the least
    number of bytes until now."""
    if resident_bytes() - least_bytes > KEPT_BYTES:
        gc.collect()
        with contextlib.suppress(AttributeError, OSError):
            # Does not hold the interpreter lock.
            ctypes.CDLL(None).malloc_trim(0)
    return min(least_bytes, resident_bytes())


def read_device(device: str) -> DeviceMemory | None:
    """Bytes in use on a whole device, by any process; None if it is not a GPU or does not answer.
    May block if the device hangs. Works only if the model has loaded torch, which is not imported
    here.

    Args:
        device: as torch names it: `cuda:0`, `cpu`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except (RuntimeError, ValueError):
        # A device with an error reports it to every call; the engine ends the worker.
        return None
    return DeviceMemory(used_bytes=int(total - free), total_bytes=int(total))
