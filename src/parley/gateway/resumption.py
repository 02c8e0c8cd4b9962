"""A client that comes back to its session over another connection.

Its first message names session and token. The session's worker is dialled and decides: what it
says in the handshake is the client's answer. Only when the worker has agreed does the lease change
hands, so a client without the token cannot disturb a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import msgspec

from parley import logs
from parley.clock import Clock
from parley.dialects.base import Dialect, UpgradeRequest
from parley.errors import Refused, TimedOut
from parley.gateway.acquisition import Client, Departed
from parley.gateway.admission import Admission
from parley.gateway.metrics import Metrics
from parley.gateway.session_relay import AGAIN_CODE, SessionRelay
from parley.gateway.sessions import NotYetKnown, Sessions
from parley.gateway.upstream import UpstreamConnection, UpstreamSettings, upstream_headers
from parley.gateway.worker_pool import Lease
from parley.protocol.control import RESUME_STATUSES, WHY_HEADER
from parley.protocol.resume import (
    QUERY,
    REFUSED_CODE,
    RefusalReason,
    ResumeRefusal,
    ResumeRequest,
    ResumeWaiting,
    decode_request,
    hash_of,
    refusal_message,
)
from parley.transport import Connection, ConnectionClosed, DialFailed

FIRST_MESSAGE_S: Final = 10.0
TAKE_OVER_S: Final = 2.0
"""Time for the previous connection to leave."""

_REASONS: Final = {status: reason for reason, status in RESUME_STATUSES.items()}

T = TypeVar("T")

log = logs.get(__name__)


def wants_resume(request: UpgradeRequest) -> bool:
    """True if a connection resumes a session."""
    return request.query.get(QUERY, "").lower() in ("true", "1", "yes")


class Resumption:
    """See the module's text.

    Args:
        waiting: what a client receives whose session has waited for a slot since that time.
        unreachable: told the lease of a session whose worker could not be reached.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        waiting: Callable[[float], ResumeWaiting],
        unreachable: Callable[[Lease], None],
        relay: SessionRelay,
        admission: Admission,
        upstream_settings: UpstreamSettings,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._sessions = sessions
        self._waiting = waiting
        self._unreachable = unreachable
        self._relay = relay
        self._admission = admission
        self._settings = upstream_settings
        self._metrics = metrics
        self._clock = clock

    async def serve(
        self, connection: Connection, client: Client, dialect: Dialect, held: ExitStack
    ) -> None:
        """One such connection, to its end.

        Args:
            client: who this is; its session id is not looked at.
            held: what this connection took at admission.

        Raises:
            Departed: it left before it had its session.
            ParleyError: what it said makes no sense.
        """
        request = await self._first(connection)
        try:
            lease = await _unless_left(connection, self._sessions.find(request.session_id))
        except NotYetKnown:
            self._metrics.resumption("not_yet_known")
            log.info("session_unknown", session_id=request.session_id)
            since_s = self._sessions.waits_since(request.session_id, client.key_id)
            if since_s is not None:
                connection.send_text(msgspec.json.encode(self._waiting(since_s)))
            connection.close(AGAIN_CODE, "try again")
            return
        if lease is None or lease.key_id != client.key_id:
            self._not_found(connection, request.session_id, client)
            return
        assert lease.resume is not None
        headers = upstream_headers(
            lease,
            secret=self._settings.secret,
            accepted_time=lease.granted_time,
            queue_wait_s=0.0,
            caller=client.caller,
            extensions=client.extensions,
            parameters={},
        )
        async with UpstreamConnection(
            lease, self._settings, dialect=lease.resume.dialect, headers=headers
        ) as upstream:
            try:
                await _unless_left(
                    connection,
                    upstream.resume(hash_of(request.resume_token), request.seq, request.sent),
                )
            except DialFailed as failure:
                self._not_opened(connection, lease, failure)
                return
            await self._continue(connection, upstream, dialect, held)

    async def _continue(
        self,
        connection: Connection,
        upstream: UpstreamConnection,
        dialect: Dialect,
        held: ExitStack,
    ) -> None:
        self._metrics.resumption("resumed")
        lease = self._sessions.take(upstream.lease)
        if lease is None:
            # The session has ended; what its client has not heard follows.
            await self._relay.run(connection, upstream, dialect, held)
            return
        async with lease:
            upstream.hold(lease)
            log.info("session_resumed", session_id=lease.session_id)
            await self._admission.wait_until_free(lease.session_id, TAKE_OVER_S)
            try:
                held.enter_context(self._admission.claim(lease.session_id))
            except Refused:
                log.warning("previous_connection_stuck", session_id=lease.session_id)
                self._sessions.keep(lease, ExitStack())
                connection.close(AGAIN_CODE, "try again")
                return
            await self._relay.run(connection, upstream, dialect, held)

    async def _first(self, connection: Connection) -> ResumeRequest:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                return decode_request((await connection.receive()).payload())
        except TimeoutError:
            raise TimedOut("Waiting for session.resume", FIRST_MESSAGE_S) from None
        except ConnectionClosed:
            raise Departed("left before session.resume") from None

    def _not_opened(self, connection: Connection, lease: Lease, failure: DialFailed) -> None:
        reason = _REASONS.get(failure.status or 0)
        # Whoever answers at the address of a worker that is gone knows nothing of it.
        is_another = reason == "unknown" and not lease.worker.is_connected
        if reason is not None and not is_another and not lease.is_lost:
            self._refuse(connection, lease.session_id, reason, failure.header(WHY_HEADER))
            return
        if not lease.worker.is_connected and self._sessions.seek_last_words(lease):
            connection.close(AGAIN_CODE, "try again")
            return
        log.warning("worker_unreachable", worker=lease.worker.worker_id, why=str(failure))
        # If its worker is lost and another continues, that will be known when it asks again.
        self._metrics.resumption("unreachable")
        # An answer, whatever it says, and a session that has left its worker say nothing of it.
        if failure.status is None and lease.worker.is_connected and not lease.is_lost:
            self._unreachable(lease)
        connection.close(AGAIN_CODE, "try again")

    def _not_found(self, connection: Connection, session_id: str, client: Client) -> None:
        why = self._sessions.why_lost(session_id, client.key_id)
        if why is not None:
            self._refuse(connection, session_id, "lost", why)
        elif self._sessions.has_ended(session_id, client.key_id):
            self._refuse(connection, session_id, "expired", "No messages are left of it.")
        else:
            self._refuse(connection, session_id, "unknown")

    def _refuse(
        self, connection: Connection, session_id: str, reason: RefusalReason, why: str = ""
    ) -> None:
        log.info("resume_refused", session_id=session_id, reason=reason, why=why)
        self._metrics.error(f"resume_{reason}")
        self._metrics.resumption(reason)
        told = ResumeRefusal(reason=reason, message=refusal_message(reason, why))
        connection.send_text(msgspec.json.encode(told))
        connection.close(REFUSED_CODE, reason)


async def _unless_left(connection: Connection, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`. A client that has given up must not take its session from the
    connection with which it has tried again meanwhile.

    Raises:
        Departed: it left.
    """
    working = asyncio.ensure_future(work)
    first: set[asyncio.Future[Any]] = {working, connection.closed}
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Departed("left before its session was found")
        return working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
