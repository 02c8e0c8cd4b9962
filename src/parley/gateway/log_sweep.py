"""Keeps the logs of sessions within their bounds and removes those that belong to no session.

Workers write and remove logs; a gateway only lists and drops them. The largest logs are dropped
first, so that a client with large sessions does not harm others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, cast

from parley import logs
from parley.session_log.contract import SessionLogs, StoredLog
from parley.session_log.places import remove_abandoned

SWEEP_EVERY_S: Final = 5.0
STRAY_S: Final = 60.0
"""A log that has neither a known session nor a writer is removed when it has not changed for this
time."""

log = logs.get(__name__)


class LogSweep:
    """See the module. Belongs to the gateway's event loop.

    Attributes:
        total_bytes: limit for all logs together, which is at most half of their file system; set it
            before the first sweep.
        count, size_bytes: of all logs at the last sweep.
        dropped: number of logs that were dropped because of that limit.
    """

    total_bytes: int

    def __init__(self, stored: SessionLogs) -> None:
        self._stored = stored
        self.count = 0
        self.size_bytes = 0
        self.dropped = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> Literal["off", "file", "redis"]:
        """The kind of backend."""
        return cast(Literal["off", "file", "redis"], self._stored.name.partition(":")[0] or "off")

    async def run(self, find_known: Callable[[], set[str]]) -> None:
        """Sweep repeatedly, after the folders of servers that ended long ago.

        Args:
            find_known: ids of the logs of sessions that run or are about to continue.
        """
        await asyncio.to_thread(remove_abandoned)
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self._sweep(find_known)

    async def _sweep(self, find_known: Callable[[], set[str]]) -> None:
        """Check all logs once, unless another gateway does that for the same place."""
        if not self._stored.claim():
            return
        found = await self._stored.stored()
        known = find_known()
        kept: list[StoredLog] = []
        for each in found:
            is_known = each.session.log_id in known
            if is_known and not each.has_writer:
                await self._stored.touch(each.session.log_id)
            if not is_known and not each.has_writer and each.age_s > STRAY_S:
                log.info("session_log_removed", session_id=each.session.session_id)
                await self._stored.drop(each.session.log_id)
            else:
                kept.append(each)
        kept.sort(key=lambda each: each.size_bytes)
        size = sum(each.size_bytes for each in kept)
        while kept and size > min(self.total_bytes, self._stored.space_bytes / 2):
            largest = kept.pop()
            size -= largest.size_bytes
            self.dropped += 1
            log.warning(
                "session_log_dropped",
                session_id=largest.session.session_id,
                bytes=largest.size_bytes,
                hint="limits.session_logs_mb bounds all logs together.",
            )
            await self._stored.drop(largest.session.log_id)
        self.count, self.size_bytes = len(kept), size

    def drop(self, log_id: str) -> None:
        """Remove the log of a session that cannot continue."""
        dropping = asyncio.create_task(self._stored.drop(log_id), name=f"drop log {log_id}")
        logs.keep(dropping, self._tasks)
