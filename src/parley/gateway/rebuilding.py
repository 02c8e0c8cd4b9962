"""Sessions whose worker was lost continue at another one, which replays their log.

Each takes the next slot that is free, before all waiting tickets, on a worker of the same model and
version; while there is none it waits for as long as a client may stay away.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from parley import logs
from parley.clock import Clock
from parley.errors import ParleyError
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.lost_session import LostSession
from parley.gateway.metrics import Metrics
from parley.gateway.queue import Ticket
from parley.gateway.sessions import NotRebuilt
from parley.gateway.signals import Signal
from parley.gateway.upstream import UpstreamConnection, UpstreamSettings, upstream_headers
from parley.gateway.worker_pool import Lease
from parley.protocol.control import (
    REBUILD_HEADER,
    LeaseNote,
    RebuildResult,
    ResumeState,
)
from parley.protocol.resume import ResumeWaiting
from parley.transport import ClientConnection, ConnectionClosed

ANSWER_S: Final = 150.0
"""Time limit for a worker to rebuild a session."""

BROKEN_OFF: Final = 1006
"""Close code of a connection that broke. Source: RFC 6455, section 7.1.5."""

log = logs.get(__name__)
_result = msgspec.json.Decoder(RebuildResult)


class Rebuilding:
    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        upstream_settings: UpstreamSettings,
        metrics: Metrics,
        clock: Clock,
        window_s: float,
        loading_wait_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = upstream_settings
        self._metrics = metrics
        self._clock = clock
        self.window_s = window_s
        """Time for which a session may wait for a slot, and then for its client."""
        self.loading_wait_s = loading_wait_s
        """Time for which it may wait for a slot while a worker is loading."""
        self.given_up: Signal[str, str] = Signal()
        """A session, and a lease under which it may have been rebuilt while another is tried."""

    async def rebuild(self, lost: LostSession, slot: Ticket | None = None) -> Lease:
        """Another worker's lease of a session, which waits there for its client.

        Args:
            slot: taken for it already; None: it takes the next one.

        Raises:
            NotRebuilt: and why.
        """
        began_at = self._clock.monotonic()
        ticket = slot or self.ask(lost, lost.fingerprint)
        try:
            while True:
                await self._until_leased(ticket, lost, began_at)
                lease = ticket.lease
                assert lease is not None
                if await self._move(lost, lease, ticket):
                    break
            took_s = round(self._clock.monotonic() - began_at, 3)
            worker = lease.worker.worker_id
            log.info("session_rebuilt", session_id=lease.session_id, worker=worker, took_s=took_s)
            self._metrics.rebuilt("rebuilt")
            return lease.transfer()
        except NotRebuilt as error:
            log.warning("session_not_rebuilt", session_id=lost.session_id, why=str(error))
            self._metrics.rebuilt("lost")
            raise
        finally:
            self._dispatcher.cancel(ticket)

    def ask(self, session: Lease | LostSession, fingerprint: str) -> Ticket:
        """Queue for a slot to which a session could move, before all other tickets."""
        return self._dispatcher.submit_first(
            session.kind,
            session_id=session.session_id,
            address=session.address,
            key_id=session.key_id,
            fingerprint=fingerprint,
        )

    async def _until_leased(self, ticket: Ticket, lost: LostSession, began_at: float) -> None:
        changed = asyncio.Event()
        # How long it may wait changes with the workers that are loading.
        pool = self._dispatcher.worker_pool
        stops = ticket.changed.listen(changed.set), pool.changed.listen(changed.set)
        try:
            while ticket.state == "waiting" and (left_s := self._left_s(began_at)) > 0:
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await changed.wait()
        finally:
            for stop in stops:
                stop()
        if ticket.state == "waiting":
            raise NotRebuilt(self._why_none(lost))
        if ticket.refusal is not None:
            raise NotRebuilt(str(ticket.refusal))
        if ticket.state != "leased":
            raise NotRebuilt("It was cancelled.")

    def _left_s(self, began_at: float) -> float:
        """Remaining time of a session that has waited since then."""
        is_loading = self._dispatcher.worker_pool.loading_workers > 0
        limit_s = max(self.window_s, self.loading_wait_s) if is_loading else self.window_s
        return began_at + limit_s - self._clock.monotonic()

    def waiting(self, began_at: float) -> ResumeWaiting:
        """Message for the client of a session that has waited for a slot since then."""
        times = self._dispatcher.worker_pool.free_in_s()
        return ResumeWaiting(
            estimated_s=round(min(times, default=self.window_s), 1),
            window_s=round(max(0.0, self._left_s(began_at)), 1),
        )

    def _why_none(self, lost: LostSession) -> str:
        usable = [worker for worker in self._dispatcher.worker_pool if worker.is_usable]
        if usable and all(worker.hello.fingerprint != lost.fingerprint for worker in usable):
            there = ", ".join(sorted({worker.hello.fingerprint for worker in usable}))
            return f"It began on another model or version ({lost.fingerprint}; now {there})."
        return "There was no free slot in time."

    async def _move(self, lost: LostSession, lease: Lease, ticket: Ticket) -> bool:
        """Have the lease's worker continue the session. Returns False if another worker is to be
        tried, or the ticket is refused.

        Raises:
            NotRebuilt: the worker cannot continue it.
        """
        lease.granted_time = lost.granted_time
        since_s = max(0.0, self._clock.time() - lost.granted_time)
        lease.granted_at = self._clock.monotonic() - since_s
        headers = upstream_headers(
            lease,
            secret=self._settings.secret,
            accepted_time=lost.granted_time,
            queue_wait_s=0.0,
            caller="",
            extensions=False,
            parameters={},
        )
        headers[REBUILD_HEADER] = lost.log_id
        async with UpstreamConnection(
            lease, self._settings, dialect=lost.dialect, headers=headers
        ) as upstream:
            connection = await upstream.open()
            if connection is None:
                if upstream.is_refused:
                    self._dispatcher.worker_refused(ticket)
                else:
                    self._dispatcher.worker_failed(ticket)
                return False
            try:
                result = await self._answer(connection)
            except ConnectionClosed as error:
                if error.closure.code != BROKEN_OFF:
                    raise NotRebuilt("The second worker closed the connection.") from None
                # Once more, not for ever: it may be this session that no worker survives.
                self._dispatcher.worker_failed(ticket)
                self.given_up.notify(lost.session_id, lease.lease_id)
                return False
        if result.problem:
            raise NotRebuilt(result.problem)
        note = msgspec.json.encode(LeaseNote(lost.address, lost.key_id, lost.granted_time)).decode()
        lease.resume = ResumeState(
            lost.dialect, left_s=self.window_s, note=note, log_id=lost.log_id
        )
        lease.resume_ends_at = self._clock.monotonic() + self.window_s
        return True

    async def _answer(self, connection: ClientConnection) -> RebuildResult:
        """The worker's result.

        Raises:
            ConnectionClosed: it is gone.
            NotRebuilt: it takes too long, or makes no sense.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                return _result.decode((await connection.receive()).payload())
        except TimeoutError:
            raise NotRebuilt("The worker took too long.") from None
        except (msgspec.MsgspecError, ParleyError) as error:
            raise NotRebuilt(f"The worker's answer makes no sense: {error}") from None
