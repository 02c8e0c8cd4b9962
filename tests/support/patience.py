"""How long tests wait for what must come."""

import asyncio
from collections.abc import Callable

HANG_S = 60.0
"""What has not come by then never comes, however busy the machine: nothing is claimed about speed,
which `parley bench` measures."""

PROCESS_S = 240.0
"""The same for a process that imports PyTorch, loads a model or compiles."""


async def until(condition: Callable[[], object], limit_s: float = HANG_S) -> None:
    """Wait for something that has no event of its own, e.g. another process's view of us."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
