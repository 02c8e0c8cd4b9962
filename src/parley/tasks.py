"""Tasks that run together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until one of the tasks ends, and cancel the others; raises its exception, if any."""
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
