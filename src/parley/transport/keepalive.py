"""One timer for all connections of a process."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from parley import logs

TICK_S: Final = 1.0

log = logs.get(__name__)


class Ticking(Protocol):
    """Interface of a connection for the timer."""

    def forgive(self, late_s: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def abort(self) -> None: ...


class Keepalive:
    """One timer for all connections: keep-alive and stalled output, once a second."""

    def __init__(self) -> None:
        self._connections: set[Ticking] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Ticking) -> None:
        self._connections.add(connection)
        if self._timer is None:
            self._schedule(asyncio.get_running_loop())

    def discard(self, connection: Ticking) -> None:
        self._connections.discard(connection)
        if not self._connections and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_at = loop.time() + TICK_S
        self._timer = loop.call_later(TICK_S, self._heartbeat)

    def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        late_s = now - self._due_at
        self._schedule(loop)
        for connection in list(self._connections):
            try:
                if late_s > TICK_S:
                    # This process was suspended; its peers are not to blame.
                    connection.forgive(late_s)
                connection.tick(now)
            except Exception:
                # One broken connection must not keep the others from their pings.
                log.exception("connection_tick_failed")
                self.discard(connection)
                connection.abort()
