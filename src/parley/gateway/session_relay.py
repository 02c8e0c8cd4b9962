"""Relays one session, from its lease to the end of the client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from parley import logs
from parley.dialects.base import Dialect
from parley.errors import SlowClient, WorkerLost, WorkerLostEarly
from parley.gateway.metrics import Metrics
from parley.gateway.queue_waiter import send_answer
from parley.gateway.sessions import Sessions
from parley.gateway.upstream import UpstreamConnection
from parley.gateway.worker_pool import Lease
from parley.protocol.control import CUT_CODE, GATEWAY_LEFT_CODE, LEAVING_CODES
from parley.protocol.resume import AGAIN_CODE, REPLACED_CODE
from parley.transport import ARRIVAL_LIMIT_S, Closure, Connection, Traffic

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class RelayEnd:
    """Which side ended the session; `lost`: the worker vanished without closing its socket."""

    who: Literal["client", "worker", "lost"]
    closure: Closure


@dataclass(kw_only=True, eq=False, repr=False)
class SessionRelay:
    """See the module. `message_arrives`: reports to a session's worker that a message is arriving
    slowly."""

    sessions: Sessions
    metrics: Metrics
    message_arrives: Callable[[Lease], None]

    async def run(
        self,
        connection: Connection,
        upstream: UpstreamConnection,
        dialect: Dialect,
        held: ExitStack,
    ) -> None:
        """Relay until one side ends. `held`: the client's admission, which a session keeps while it
        waits for its client."""
        lease, worker = upstream.lease, upstream.connection
        self.sessions.connect(lease)
        try:
            end = await self._relay(connection, upstream)
            if self._is_cut(end, lease):
                self.metrics.cut()
                worker.close(CUT_CODE if end.who == "client" else GATEWAY_LEFT_CODE)
                connection.close(AGAIN_CODE, "resume")
                self.sessions.keep(lease, held.pop_all())
                return
            self._finish(connection, worker, dialect, end, lease)
            if self._is_replaced(end, lease):
                # The connection that replaces this one takes the lease from there.
                self.sessions.keep(lease, held.pop_all())
        finally:
            self.sessions.disconnect(lease)

    async def _relay(self, connection: Connection, upstream: UpstreamConnection) -> RelayEnd:
        lease = upstream.lease
        who = {
            "worker": lease.worker.worker_id,
            "client": lease.address,
            **({"key": lease.key_id} if lease.key_id else {}),
        }
        clock = self.sessions.clock
        began_at = clock.monotonic()
        log.info("session_began", **who, waited_s=round(upstream.waited_s, 1))

        def arrives() -> None:
            # Before it is ready, a session has no other limit.
            if lease.was_ready or clock.monotonic() < began_at + ARRIVAL_LIMIT_S:
                self.message_arrives(lease)

        connection.on_slow_message = arrives
        end: RelayEnd | None = None
        try:
            end = await relay(
                connection,
                upstream.connection,
                lost=upstream.lost,
                up=self.metrics.up,
                down=self.metrics.down,
            )
            return end
        finally:
            log.info(
                "session_ended",
                **who,
                lasted_s=round(clock.monotonic() - began_at, 1),
                by=end.who if end else "gateway",
                code=end.closure.code if end else None,
                **({"reason": end.closure.reason} if end and end.closure.reason else {}),
            )

    def _is_cut(self, end: RelayEnd, lease: Lease) -> bool:
        """True if the session continues without this connection."""
        if lease.resume is None or not lease.is_held:
            return False
        if end.who == "client" and end.closure.code in LEAVING_CODES:
            return False
        if lease.is_lost:
            return bool(lease.log_id)
        if end.who == "client":
            return True
        return not end.closure.is_clean or end.closure.code == CUT_CODE

    def _is_replaced(self, end: RelayEnd, lease: Lease) -> bool:
        """True if the session continues over another connection that has not taken the lease."""
        was_replaced = end.who == "worker" and end.closure.code == REPLACED_CODE
        return was_replaced and lease.is_held and not lease.is_lost and lease.resume is not None

    def _finish(
        self,
        connection: Connection,
        worker: Connection,
        dialect: Dialect,
        end: RelayEnd,
        lease: Lease,
    ) -> None:
        closure = end.closure
        if end.who == "client":
            if closure.is_slow:
                self.metrics.error(SlowClient.code)
            # A worker that keeps the session must know if the client left or was cut off.
            worker.close(closure.code if closure.is_clean else CUT_CODE, closure.reason)
        elif end.who == "worker" and closure.is_clean:
            connection.close(closure.code, closure.reason)
        elif lease.resume is not None and not lease.is_held:
            # It may continue over another connection or at another worker.
            connection.close(AGAIN_CODE, "resume")
        else:
            failure = WorkerLost() if lease.was_ready else WorkerLostEarly()
            self.metrics.error(failure.code)
            send_answer(connection, dialect, dialect.answer(failure))


async def relay(
    client: Connection, worker: Connection, *, lost: asyncio.Future[Any], up: Traffic, down: Traffic
) -> RelayEnd:
    """Pass messages both ways until one side closes, breaks, or `lost` is done.

    The bytes are forwarded in the connections' own callbacks, which also apply back-pressure: no
    code here runs per message. Neither socket is closed here, because the caller still sends
    messages. Cancelling is safe.
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
