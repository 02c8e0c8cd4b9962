"""Two sockets joined: whatever one says goes to the other, until either ends.

The bytes are passed on in the connections' own callbacks; nothing here runs per message, and
nothing looks inside one. Back-pressure is the connections' too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from parley.transport import Closure, Connection, Traffic


@dataclass(frozen=True, slots=True)
class RelayEnd:
    """Who ended it and how; `lost`: the worker is gone without having closed its socket."""

    who: Literal["client", "worker", "lost"]
    closure: Closure


async def relay(
    client: Connection, worker: Connection, *, lost: asyncio.Future[Any], up: Traffic, down: Traffic
) -> RelayEnd:
    """Pass messages both ways until one side closes, breaks, or `lost` is done.

    Neither socket is closed here; whoever called has words to say. Cancelling is safe.
    """
    client.join(worker, up)
    worker.join(client, down)
    try:
        await asyncio.wait(
            {client.closed, worker.closed, lost}, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        client.part()
        worker.part()
    if client.closed.done():
        return RelayEnd("client", client.closed.result())
    if worker.closed.done():
        return RelayEnd("worker", worker.closed.result())
    return RelayEnd("lost", Closure(1006))
