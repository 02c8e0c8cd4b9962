"""How full the memory of a worker's GPU is, read now and then in the background.

Read in a thread: a device that hangs may not answer, and that must not silence the heartbeat. Only
where the model has loaded torch; nothing is imported for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

from parley.protocol.control import DeviceMemory

READ_EVERY_S: Final = 5.0


def read(device: str) -> DeviceMemory | None:
    """Bytes of a whole device, used by any process; None if it is not a GPU or does not answer.

    Args:
        device: as torch names it: `cuda:0`, `cpu`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except (RuntimeError, ValueError):
        # A device with an error says so to every call; the engine ends the worker.
        return None
    return DeviceMemory(used_bytes=int(total - free), total_bytes=int(total))


async def keep_reading(device: str, report: Callable[[DeviceMemory | None], None]) -> None:
    """Tell what `read` finds, until cancelled."""
    while True:
        report(await asyncio.to_thread(read, device))
        await asyncio.sleep(READ_EVERY_S)
