"""Rebuilds a session whose worker was lost: another worker replays its log.

Each takes the next slot that is free, before all waiting tickets, on a worker of the same model and
version; while there is none it waits for as long as a client may stay away.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

import msgspec

from parley import logs
from parley.errors import ParleyError
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.lost_session import LostSession
from parley.gateway.queue import Ticket
from parley.gateway.sessions import GatewaySession, NotRebuilt
from parley.gateway.successor import ReservedSlot, Successor
from parley.gateway.upstream import UpstreamConnection, UpstreamSettings, upstream_headers
from parley.gateway.waits import wait_until
from parley.gateway.worker_pool import Lease
from parley.protocol.control import (
    FOLLOW_HEADER,
    REBUILD_HEADER,
    LeaseNote,
    ResumeState,
)
from parley.protocol.resume import ResumeWaiting
from parley.settings import LimitSettings
from parley.transport import ConnectionClosed

BROKEN_OFF: Final = 1006
"""Close code of a connection that broke. Source: RFC 6455, section 7.1.5."""

RebuildOutcome = Literal["rebuilt", "lost"]

log = logs.get(__name__)


class Rebuilding:
    """See the module's text. `limits` bound how long a session waits for a slot, and then for its
    client."""

    def __init__(
        self, dispatcher: Dispatcher, upstream_settings: UpstreamSettings, limits: LimitSettings
    ) -> None:
        self.dispatcher = dispatcher
        self.limits = limits
        self._upstream_settings = upstream_settings
        self._clock = dispatcher.clock
        self.outcomes: Counter[RebuildOutcome] = Counter()
        """Number of sessions that another worker continued, and of those that were lost."""

    async def rebuild(self, session: GatewaySession, slot: ReservedSlot | None) -> Lease:
        """Another worker's lease of a lost session, which waits there for its client.

        Args:
            slot: taken for it already; None: it takes the next one.

        Raises:
            NotRebuilt: and why.
        """
        lost = session.lost
        assert lost is not None
        began_at = self._clock.monotonic()
        slot = slot or ReservedSlot(self.ask(lost, lost.fingerprint))
        try:
            while (lease := await self._continued(session, lost, slot, began_at)) is None:
                await slot.close()
            took_s = round(self._clock.monotonic() - began_at, 3)
            worker = lease.worker.worker_id
            log.info("session_rebuilt", session_id=lease.session_id, worker=worker, took_s=took_s)
            self.outcomes["rebuilt"] += 1
            return lease.transfer()
        except NotRebuilt as error:
            log.warning("session_not_rebuilt", session_id=lost.session_id, why=str(error))
            self.outcomes["lost"] += 1
            raise
        finally:
            await slot.close()
            self.dispatcher.cancel(slot.ticket)

    async def _continued(
        self, session: GatewaySession, lost: LostSession, slot: ReservedSlot, began_at: float
    ) -> Lease | None:
        """The lease of the worker that has continued the session; None: try again.

        Raises:
            NotRebuilt: no worker can continue it.
        """
        await self._until_leased(slot.ticket, lost, began_at)
        if slot.successor is None:
            await self._open(lost, slot, follows=False)
        successor, lease = slot.successor, slot.ticket.lease
        if successor is None or lease is None:
            return None
        try:
            return lease if await self._move(session, lost, slot.ticket, successor) else None
        except NotRebuilt as error:
            if not successor.follows:
                raise
            # A worker that has the whole log from the beginning may still succeed.
            log.warning("successor_failed", session_id=lost.session_id, why=str(error))
            self.dispatcher.cancel(slot.ticket)
            slot.ticket = self.ask(lost, lost.fingerprint)
            return None

    async def follow(self, lost: LostSession, slot: ReservedSlot) -> None:
        """Have the worker of a leased slot follow a session that still runs elsewhere. If it cannot
        be reached, the ticket waits for another worker or is refused."""
        await self._open(lost, slot, follows=True)

    def ask(self, session: Lease | LostSession, fingerprint: str) -> Ticket:
        """Queue for a slot to which a session could move, before all other tickets."""
        return self.dispatcher.submit_first(
            session.kind,
            session_id=session.session_id,
            address=session.address,
            key_id=session.key_id,
            fingerprint=fingerprint,
        )

    def has_spare_slot(self, lost: LostSession) -> bool:
        """True if a session could continue in a slot that no client waits for."""
        return self.dispatcher.has_spare_slot(lost.kind, lost.fingerprint)

    async def _until_leased(self, ticket: Ticket, lost: LostSession, began_at: float) -> None:
        # How long it may wait changes with the workers that are loading.
        signals = ticket.changed, self.dispatcher.worker_pool.changed
        if not await wait_until(
            lambda: ticket.state != "waiting", signals, lambda: self._left_s(began_at)
        ):
            raise NotRebuilt(self._why_none(lost))
        if ticket.refusal is not None:
            raise NotRebuilt(str(ticket.refusal))
        if ticket.state != "leased":
            raise NotRebuilt("It was cancelled.")

    def _left_s(self, began_at: float) -> float:
        """Remaining time of a session that has waited since then."""
        limit_s = self.limits.resume_window_s
        if self.dispatcher.worker_pool.loading_workers > 0:
            limit_s = max(limit_s, self.limits.rebuild_wait_s)
        return began_at + limit_s - self._clock.monotonic()

    def waiting(self, began_at: float) -> ResumeWaiting:
        """Message for the client of a session that has waited for a slot since then."""
        times = self.dispatcher.worker_pool.free_in_s()
        return ResumeWaiting(
            estimated_s=round(min(times, default=self.limits.resume_window_s), 1),
            window_s=round(max(0.0, self._left_s(began_at)), 1),
        )

    def _why_none(self, lost: LostSession) -> str:
        usable = [worker for worker in self.dispatcher.worker_pool if worker.is_usable]
        if usable and all(worker.hello.fingerprint != lost.fingerprint for worker in usable):
            there = ", ".join(sorted({worker.hello.fingerprint for worker in usable}))
            return f"It began on another model or version ({lost.fingerprint}; now {there})."
        return "There was no free slot in time."

    async def _open(self, lost: LostSession, slot: ReservedSlot, *, follows: bool) -> None:
        """Ask the worker of a slot to continue a session. If it cannot, the slot gets no successor:
        another worker is to be tried, or the ticket is refused."""
        ticket, lease = slot.ticket, slot.ticket.lease
        assert lease is not None
        lease.granted_time = lost.granted_time
        now_s = self._clock.monotonic()
        lease.granted_at = now_s - max(0.0, self._clock.time() - lost.granted_time)
        if lost.granted_at is not None:
            lease.granted_at = lost.granted_at
        ran_s = now_s - lease.granted_at
        headers = upstream_headers(lease, ran_s=ran_s)
        headers[REBUILD_HEADER] = lost.log_id
        if follows:
            headers[FOLLOW_HEADER] = "true"
        upstream = UpstreamConnection(
            lease, self._upstream_settings, dialect=lost.dialect, headers=headers
        )
        try:
            connection = await upstream.open()
            if connection is not None:
                slot.successor = Successor(connection, upstream.close, follows=follows)
            elif upstream.is_refused:
                self.dispatcher.worker_refused(ticket)
            else:
                self.dispatcher.worker_failed(ticket)
        finally:
            if slot.successor is None:
                upstream.close()

    async def _move(
        self, session: GatewaySession, lost: LostSession, ticket: Ticket, successor: Successor
    ) -> bool:
        """Have a worker continue the session. Returns False if another worker is to be tried, or
        the ticket is refused.

        Raises:
            NotRebuilt: the worker cannot continue it.
        """
        lease = ticket.lease
        assert lease is not None
        try:
            result = await successor.take_over()
        except ConnectionClosed as error:
            if error.closure.code != BROKEN_OFF:
                raise NotRebuilt("The second worker closed the connection.") from None
            # Once more, not for ever: it may be this session that no worker survives.
            self.dispatcher.worker_failed(ticket)
            session.left.add(lease.lease_id)
            return False
        except TimeoutError:
            raise NotRebuilt("The worker took too long.") from None
        except (msgspec.MsgspecError, ParleyError) as error:
            raise NotRebuilt(f"The worker's answer makes no sense: {error}") from None
        if result.problem:
            raise NotRebuilt(result.problem)
        note = msgspec.json.encode(LeaseNote(lost.address, lost.key_id, lost.granted_time)).decode()
        window_s = self.limits.resume_window_s
        lease.resume = ResumeState(lost.dialect, left_s=window_s, note=note, log_id=lost.log_id)
        lease.resume_ends_at = self._clock.monotonic() + window_s
        return True
