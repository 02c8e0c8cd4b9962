"""A client that returns to its session over another connection.

Its first message names session and token. The gateway dials the session's worker, which decides:
its reply to the handshake is passed to the client. The lease changes hands only if the worker
agrees, so a client without the token cannot disturb a session.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from parley import logs
from parley.dialects.base import Dialect, UpgradeRequest
from parley.errors import Refused, TimedOut
from parley.gateway.acquisition import Client, Departed
from parley.gateway.metrics import Metrics
from parley.gateway.moving import Moving
from parley.gateway.session_relay import SessionRelay
from parley.gateway.sessions import NotYetKnown, Sessions, SessionState
from parley.gateway.upstream import UpstreamConnection, UpstreamSettings, upstream_headers
from parley.gateway.waits import unless
from parley.gateway.worker_pool import Lease
from parley.protocol import resume
from parley.protocol.control import RESUME_STATUSES, WHY_HEADER
from parley.transport import Connection, ConnectionClosed, DialFailed

FIRST_MESSAGE_S: Final = 10.0
TAKE_OVER_S: Final = 2.0
"""Time for the previous connection to leave."""

_REASONS: Final = {status: reason for reason, status in RESUME_STATUSES.items()}

log = logs.get(__name__)


def wants_resume(request: UpgradeRequest) -> bool:
    """True if a connection resumes a session."""
    return request.query.get(resume.QUERY, "").lower() in ("true", "1", "yes")


@dataclass(kw_only=True, eq=False, repr=False)
class Resumption:
    sessions: Sessions
    moving: Moving
    relay: SessionRelay
    upstream_settings: UpstreamSettings
    metrics: Metrics

    async def serve(
        self, connection: Connection, client: Client, dialect: Dialect, held: ExitStack
    ) -> None:
        """Serve such a connection until it ends.

        Args:
            client: the client; its session id is ignored.
            held: what this connection took at admission.

        Raises:
            Departed: the client left before it had its session.
            ParleyError: its request is invalid.
        """
        request = await self._first(connection)
        try:
            finding = self.sessions.find(request.session_id, client.key_id)
            lease = await unless(connection.closed, finding, _left)
        except NotYetKnown:
            self.metrics.resumption("not_yet_known")
            log.info("session_unknown", session_id=request.session_id)
            found = self.sessions.known_to(client.key_id, request.session_id)
            if found is not None and found.rebuilding is not None:
                waiting = self.sessions.rebuilding.waiting(found.session_id, found.since_s)
                connection.send_text(msgspec.json.encode(waiting))
            connection.close(resume.AGAIN_CODE, "try again")
            return
        if lease is None or lease.key_id != client.key_id:
            self._not_found(connection, request.session_id, client)
            return
        assert lease.resume is not None
        headers = upstream_headers(
            lease,
            caller=client.caller,
            extensions=client.extensions,
        )
        async with UpstreamConnection(
            lease, self.upstream_settings, dialect=lease.resume.dialect, headers=headers
        ) as upstream:
            try:
                token = resume.hash_of(request.resume_token)
                resuming = upstream.resume(token, request.seq, request.sent)
                await unless(connection.closed, resuming, _left)
            except DialFailed as failure:
                self._not_opened(connection, lease, failure)
                return
            await self._continue(connection, client, upstream, dialect, held)

    async def _continue(
        self,
        connection: Connection,
        client: Client,
        upstream: UpstreamConnection,
        dialect: Dialect,
        held: ExitStack,
    ) -> None:
        try:
            lease = self.sessions.take(upstream.lease)
        except NotYetKnown:
            # Its old worker has answered a moment too late.
            self.metrics.resumption("not_yet_known")
            connection.close(resume.AGAIN_CODE, "try again")
            return
        self.metrics.resumption("resumed")
        if lease is None:
            # The session has ended; the client receives the messages that it has not received yet.
            await self.relay.run(connection, upstream, dialect, held)
            return
        async with lease:
            upstream.hold(lease)
            log.info("session_resumed", session_id=lease.session_id)
            admission = self.sessions.admission
            await admission.wait_until_free(lease.session_id, TAKE_OVER_S)
            # From now on it is a session that counts.
            held.close()
            held.enter_context(admission.count(client.address, client.key_id))
            try:
                held.enter_context(admission.claim(lease.session_id))
            except Refused:
                log.warning("previous_connection_stuck", session_id=lease.session_id)
                self.sessions.keep(lease, ExitStack())
                connection.close(resume.AGAIN_CODE, "try again")
                return
            await self.relay.run(connection, upstream, dialect, held)

    async def _first(self, connection: Connection) -> resume.ResumeRequest:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                return resume.decode_request((await connection.receive()).payload())
        except TimeoutError:
            raise TimedOut("Waiting for session.resume", FIRST_MESSAGE_S) from None
        except ConnectionClosed:
            raise Departed("left before session.resume") from None

    def _not_opened(self, connection: Connection, lease: Lease, failure: DialFailed) -> None:
        reason = _REASONS.get(failure.status or 0)
        # Another process, which does not know the session, may listen at the address of a lost
        # worker.
        is_another = reason == "unknown" and not lease.worker.is_connected
        if reason is not None and not is_another and not lease.is_lost:
            self._refuse(connection, lease.session_id, reason, failure.header(WHY_HEADER))
            return
        if not lease.worker.is_connected and self.sessions.seek_last_words(lease):
            connection.close(resume.AGAIN_CODE, "try again")
            return
        log.warning("worker_unreachable", worker=lease.worker.worker_id, why=str(failure))
        # If its worker is lost and another one continues it, the client's next attempt finds that
        # out.
        self.metrics.resumption("unreachable")
        # Any reply means that the worker is reachable; so does a session that has moved away.
        if failure.status is None and lease.worker.is_connected and not lease.is_lost:
            self.moving.move_unreachable(lease)
        connection.close(resume.AGAIN_CODE, "try again")

    def _not_found(self, connection: Connection, session_id: str, client: Client) -> None:
        found = self.sessions.known_to(client.key_id, session_id)
        if found is not None and found.state is SessionState.LOST:
            self._refuse(connection, session_id, "lost", found.why)
        elif found is not None and found.has_ended:
            self._refuse(connection, session_id, "expired", "No messages are left of it.")
        else:
            self._refuse(connection, session_id, "unknown")

    def _refuse(
        self, connection: Connection, session_id: str, reason: resume.RefusalReason, why: str = ""
    ) -> None:
        log.info("resume_refused", session_id=session_id, reason=reason, why=why)
        self.metrics.error(f"resume_{reason}")
        self.metrics.resumption(reason)
        refusal = resume.ResumeRefusal(reason=reason, message=resume.refusal_message(reason, why))
        connection.send_text(msgspec.json.encode(refusal))
        connection.close(resume.REFUSED_CODE, reason)


def _left() -> Departed:
    """A client that has given up on this connection must not take the session from its next one."""
    return Departed("left before its session was found")
