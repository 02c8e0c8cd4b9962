"""One timer for all connections of a process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from parley import logs

if TYPE_CHECKING:
    from parley.transport.connection import Connection

TICK_S: Final = 1.0

log = logs.get(__name__)


class Keepalive:
    """One timer for all connections: keep-alive and stalled output, once a second."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._timer is None:
            self._schedule(asyncio.get_running_loop())

    def discard(self, connection: Connection) -> None:
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
                    # This process was suspended; the silence is not the peers' fault.
                    connection.forgive(late_s)
                connection.tick(now)
            except Exception:
                # One broken connection must not prevent the pings of others.
                log.exception("connection_tick_failed")
                self.discard(connection)
                connection.abort()
