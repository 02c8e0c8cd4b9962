"""Parses large JSON in a thread, one document at a time, so that the event loop stays free.

A parser in C holds the interpreter lock while it runs, even in a thread. So its cost is bounded
first, by counting the items that it would build; see `framing.ITEMS_LIMIT`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

READ_ON_LOOP_BYTES: Final = 64 << 10

_reader: Final = ThreadPoolExecutor(1, thread_name_prefix="large-json")


async def read_aside(size_bytes: int, work: Callable[[], T]) -> T:
    """`work()`, in a thread if its input is large."""
    if size_bytes <= READ_ON_LOOP_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_reader, work)
