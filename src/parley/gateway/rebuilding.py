"""Rebuilds a session whose worker was lost: another worker replays its log.

Each session takes the next free slot, ahead of all waiting tickets, on a worker with the same model
and version. If there is none, it waits for as long as a client may be away.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from parley import logs
from parley.errors import ParleyError
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.queue import Ticket
from parley.gateway.successor import LostSession, ReservedSlot
from parley.gateway.upstream import UpstreamConnection, UpstreamSettings, upstream_headers
from parley.gateway.waits import wait_until
from parley.gateway.worker_pool import Lease
from parley.protocol import codec
from parley.protocol.control import (
    FOLLOW_HEADER,
    REBUILD_HEADER,
    LeaseNote,
    RebuildResult,
    ResumeState,
)
from parley.protocol.resume import ResumeWaiting
from parley.settings import LimitSettings
from parley.transport import ConnectionClosed

BROKEN_OFF: Final = 1006
"""Close code of a connection that broke. Source: RFC 6455, section 7.1.5."""

RebuildOutcome = Literal["rebuilt", "lost"]

log = logs.get(__name__)


class NotRebuilt(Exception):
    """No other worker can continue the session; the message gives the reason."""


@dataclass(eq=False, repr=False)
class Rebuilding:
    """See the module. `limits` bound how long a session waits for a slot, and then for its
    client."""

    dispatcher: Dispatcher
    upstream_settings: UpstreamSettings
    limits: LimitSettings

    def __post_init__(self) -> None:
        self._clock = self.dispatcher.clock
        self.outcomes: Counter[RebuildOutcome] = Counter()
        """Numbers of sessions that another worker continued, and that were lost."""
        self._replayed_from: dict[str, float] = {}
        """By session id, when a worker was asked to replay its log."""
        self._replay_s = 0.0
        """Duration of the last replay."""

    async def rebuild(self, lost: LostSession, slot: ReservedSlot | None, left: set[str]) -> Lease:
        """Have another worker continue a lost session; returns its lease. The session waits there
        for its client.

        Args:
            slot: the slot that was taken for it; None: it takes the next one.
            left: receives the leases of workers that were lost while they tried.

        Raises:
            NotRebuilt: and why.
        """
        began_at = self._clock.monotonic()
        slot = slot or ReservedSlot(self.ask(lost))
        try:
            while (lease := await self._continued(lost, slot, left, began_at)) is None:
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
        self, lost: LostSession, slot: ReservedSlot, left: set[str], began_at: float
    ) -> Lease | None:
        """One attempt: the lease of the worker that has continued the session; None: try again.

        Raises:
            NotRebuilt: no worker can continue it.
        """
        await self._until_leased(slot.ticket, lost, began_at)
        if not slot.has_successor:
            await self.open(lost, slot, follows=False)
        if not slot.has_successor:
            return None
        try:
            return await self._taken_over(lost, slot, left)
        except NotRebuilt as error:
            if not slot.follows:
                raise
            # A worker that reads the whole log from its start may still succeed.
            log.warning("successor_failed", session_id=lost.session_id, why=str(error))
            self.dispatcher.cancel(slot.ticket)
            slot.ticket = self.ask(lost)
            return None

    def ask(self, lost: LostSession) -> Ticket:
        """Queue for a slot to which a session could move, ahead of all other tickets."""
        who = lost.kind, lost.session_id, lost.address, lost.key_id
        return self.dispatcher.submit_first(Ticket(*who, fingerprint=lost.fingerprint))

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
        """Remaining time of a session that has been waiting since then."""
        limit_s = self.limits.resume_window_s
        if self.dispatcher.worker_pool.loading_workers > 0:
            limit_s = max(limit_s, self.limits.rebuild_wait_s)
        return began_at + limit_s - self._clock.monotonic()

    def waiting(self, session_id: str, began_at: float) -> ResumeWaiting:
        """Message for the client of a session that has been waiting since then."""
        window_s, replayed_from = self.limits.resume_window_s, self._replayed_from.get(session_id)
        if replayed_from is None:
            estimated_s = min(self.dispatcher.worker_pool.free_in_s(), default=window_s)
            window_s = self._left_s(began_at)
        else:
            # When the replay is done, the session waits for its client for a whole window.
            estimated_s = self._replay_s - (self._clock.monotonic() - replayed_from)
        return ResumeWaiting(
            estimated_s=round(max(0.0, estimated_s), 1), window_s=round(max(0.0, window_s), 1)
        )

    def _why_none(self, lost: LostSession) -> str:
        usable = [worker for worker in self.dispatcher.worker_pool if worker.is_usable]
        if usable and all(worker.hello.fingerprint != lost.fingerprint for worker in usable):
            there = ", ".join(sorted({worker.hello.fingerprint for worker in usable}))
            return f"It began on another model or version ({lost.fingerprint}; now {there})."
        return "There was no free slot in time."

    async def open(self, lost: LostSession, slot: ReservedSlot, *, follows: bool) -> None:
        """Ask the worker of a leased slot to continue a session. If it cannot, `slot.has_successor`
        stays False, and the ticket waits for another worker or is refused.

        Args:
            follows: True if the session is still running elsewhere.
        """
        ticket, lease = slot.ticket, slot.ticket.lease
        assert lease is not None
        lease.granted_time = lost.granted_time
        now_s = self._clock.monotonic()
        lease.granted_at = now_s - max(0.0, self._clock.time() - lost.granted_time)
        if lost.granted_at is not None:
            lease.granted_at = lost.granted_at
        lease.ran_s = lease.counted_s = now_s - lease.granted_at
        headers = upstream_headers(lease)
        headers[REBUILD_HEADER] = lost.log_id
        if follows:
            headers[FOLLOW_HEADER] = "true"
        upstream = UpstreamConnection(
            lease, self.upstream_settings, dialect=lost.dialect, headers=headers
        )
        try:
            if await upstream.open():
                slot.hold(upstream, follows=follows)
            elif upstream.is_refused:
                self.dispatcher.worker_refused(ticket)
            else:
                self.dispatcher.worker_failed(ticket)
        finally:
            if not slot.has_successor:
                upstream.close()

    async def _replayed(self, lost: LostSession, slot: ReservedSlot) -> RebuildResult:
        """As `ReservedSlot.take_over`."""
        began_s = self._replayed_from[lost.session_id] = self._clock.monotonic()
        try:
            result = await slot.take_over()
            self._replay_s = self._clock.monotonic() - began_s
            return result
        finally:
            del self._replayed_from[lost.session_id]

    async def _taken_over(
        self, lost: LostSession, slot: ReservedSlot, left: set[str]
    ) -> Lease | None:
        """The lease of this slot once its worker has continued the session; None: try another
        worker, or the ticket was refused.

        Raises:
            NotRebuilt: the worker cannot continue it.
        """
        lease = slot.ticket.lease
        assert lease is not None
        try:
            result = await self._replayed(lost, slot)
        except ConnectionClosed as error:
            if error.closure.code != BROKEN_OFF:
                raise NotRebuilt("The second worker closed the connection.") from None
            # A bounded number of times: this session may be what kills its workers.
            self.dispatcher.worker_failed(slot.ticket)
            left.add(lease.lease_id)
            return None
        except TimeoutError:
            raise NotRebuilt("The worker took too long.") from None
        except (msgspec.MsgspecError, ParleyError) as error:
            raise NotRebuilt(f"The worker's answer is invalid: {error}") from None
        if result.problem:
            raise NotRebuilt(result.problem)
        note = codec.encode(LeaseNote(lost.address, lost.key_id, lost.granted_time))
        window_s = self.limits.resume_window_s
        lease.resume = ResumeState(lost.dialect, left_s=window_s, note=note, log_id=lost.log_id)
        lease.resume_ends_at = self._clock.monotonic() + window_s
        return lease
