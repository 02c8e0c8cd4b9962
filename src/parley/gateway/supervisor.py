"""Keeps the gateway's maintenance tasks running and reports those that fail.

A task that ends, with or without an exception, is a fault: it is logged, `failing` lists it, and it
is restarted after a pause that doubles up to a limit. It stays listed until it has run for
`SETTLED_S`, so that `/health` does not flicker while a task fails repeatedly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from parley import logs
from parley.clock import Backoff

FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
SETTLED_S: Final = 10.0

log = logs.get(__name__)


class Supervisor:
    """Restarts maintenance tasks that end. Belongs to the event loop."""

    def __init__(self) -> None:
        self.failing: dict[str, str] = {}
        """Why each task ended, for tasks that have not settled since."""

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` again whenever it ends, until cancelled."""
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            if await self._run(name, work):
                backoff.reset()
            pause_s = backoff.take()
            log.error(
                "maintenance_task_ended", task=name, why=self.failing[name], retry_in_s=pause_s
            )
            await asyncio.sleep(pause_s)

    async def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Run `work` until it ends; returns True if it had settled before."""
        task = asyncio.ensure_future(work())
        has_settled = False
        try:
            if name in self.failing:
                done, _ = await asyncio.wait({task}, timeout=SETTLED_S)
                has_settled = not done
                if has_settled:
                    del self.failing[name]
                    log.info("maintenance_task_recovered", task=name)
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        self.failing[name] = _why(name, task)
        return has_settled


def _why(name: str, task: asyncio.Future[None]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    if error is None:
        return "returned"
    log.error("maintenance_task_failed", task=name, exc_info=error)
    return f"{type(error).__name__}: {error}"[:200]
