"""Time limits for events that tests wait for."""

import asyncio
from collections.abc import Callable

HANG_S = 60.0
"""An event that has not happened by then never will, even on a busy machine. This is not a claim
about speed, which `parley bench` measures."""

PROCESS_S = 240.0
"""The same for a process that imports PyTorch, loads a model or compiles."""


async def until(condition: Callable[[], object], limit_s: float = HANG_S) -> None:
    """Wait for a condition that has no event, e.g. another process's view of us."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
