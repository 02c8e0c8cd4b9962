"""Tasks that run together, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until one of the tasks ends, and cancel the others; raises its exception, if any."""
    # Not `asyncio.wait`: in Python 3.14 its frame refers to the task that waits. A cancelled task
    # refers to its exception, so both would be part of a cycle.
    has_ended = asyncio.Event()
    for task in tasks:
        task.add_done_callback(lambda _: has_ended.set())
    try:
        await has_ended.wait()
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end_tasks(*tasks)


async def end_tasks(*tasks: asyncio.Future[Any]) -> list[Any]:
    """Cancel tasks and wait until they have ended; returns their results and exceptions."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, limit_s: float | None) -> bool:
    """Wait for an event, at most `limit_s` (None: without a limit); returns True if it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()
