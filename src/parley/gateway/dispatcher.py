"""Turns tickets into leases; nothing else does.

Nothing here awaits, so every decision sees one consistent state. It runs after each arrival,
cancellation, release and change of the worker pool. Source: service.md 2.5-2.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from parley.clock import Clock
from parley.errors import ParleyError, ServiceUnavailable, WorkerBusy, WorkerConnectFailed
from parley.gateway.eta import EtaTracker, estimate_waits
from parley.gateway.queue import Queue, Ticket
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.protocol.kinds import Kind
from parley.settings import EtaSettings, QueueSettings

WORKERS_TO_TRY: Final = 2
"""Number of workers tried for a ticket. If the first cannot be reached, the ticket returns to the
head of the queue; after the second it is refused."""
REFUSALS_TO_BEAR: Final = 30
"""A ticket is refused after this many refusals by workers. A worker that refuses reports in its
next heartbeat if it has room."""
ESTIMATES_FRESH_S: Final = 0.2
"""Shortest interval between two computations of the estimates."""
RETURN_S: Final = 1.5
"""Time for which no slot is granted after the first client has asked, if clients of an earlier
gateway may return: one that was ahead of it may return a moment later. Longer than the pause of
clients between two attempts."""

CUT_OFF: Final = "No worker can be reached."


class Owner(Protocol):
    """Owner of a ticket: an `asyncio.Task`."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> object: ...


class Dispatcher:
    """The queue, the worker pool, and the matching of tickets with slots."""

    def __init__(self, clock: Clock, queue: QueueSettings, eta: EtaSettings) -> None:
        self.clock = clock
        self.eta = EtaTracker(eta)
        self.queue = Queue(queue.max_size)
        self.worker_pool = WorkerPool(clock, self.eta)
        self._no_worker_refuse_s = queue.no_worker_refuse_s
        self._estimated_at = float("-inf")
        self._returns_until = self._held_until = float("-inf")
        self._awaits_returns = False
        self.window_s = 0.0
        """Time for which the place of a client that is cut off is kept."""
        self._cut_off: dict[str, tuple[Ticket, float]] = {}
        """By id, tickets whose clients may return, and until when; oldest first. There are at most
        as many as the queue may have: beyond that, the address that has the most of them loses its
        oldest."""
        self._is_closed = False
        self.is_paused = False
        """True while tickets wait although slots are free."""
        self._is_running = False
        self._must_rerun = False
        self.worker_pool.changed.listen(self.run)

    def follow(self, secret: bytes, starts: int, *, window_s: float) -> None:
        """Take over from an earlier gateway. For `window_s`, its clients, and our own that are cut
        off, may return to their places; see `Queue.follow`."""
        self.queue.follow(secret, starts)
        self.window_s = window_s
        self._returns_until = self.clock.monotonic() + window_s

    def await_returns(self) -> None:
        """Clients of the earlier gateway were there a moment ago, in the queue or in sessions that
        have lost their worker: new clients that are faster do not get the slots of these."""
        self._awaits_returns = True

    def submit(self, ticket: Ticket, *, owner: Owner | None = None, waited_as: str = "") -> Ticket:
        """Ask for a slot. The ticket may be leased when this returns.

        Args:
            owner: when it ends, for whatever reason, the ticket leaves the queue and its lease is
                released.
            waited_as: id of the ticket that the client had before, here or at an earlier gateway.

        Raises:
            QueueFull, ServiceUnavailable.
        """
        self._check_workers(ticket.kind)
        self._stamp(ticket)
        held = self.worker_pool.held_by(ticket.caller)
        if not self._returns(ticket, waited_as, held):
            self.queue.join(ticket, held=held)
        if owner is not None:
            owner.add_done_callback(lambda _: self.cancel(ticket))
        self.run()
        return ticket

    def submit_first(self, ticket: Ticket) -> Ticket:
        """Ask for a slot ahead of all other tickets, for a session that has lost its worker. The
        slot must be on a worker with the ticket's fingerprint; tickets that can use another worker
        are not delayed."""
        self._stamp(ticket)
        self.queue.put_back(ticket)
        self.run()
        return ticket

    def has_spare_slot(self, kind: Kind, fingerprint: str) -> bool:
        """True if a worker with this fingerprint has a free slot, and no ticket waits for any."""
        is_granting = not (self.queue or self.is_paused or self._is_closed)
        return is_granting and bool(self.worker_pool.with_room(kind, fingerprint))

    def cut_off(self, ticket: Ticket) -> None:
        """A client was cut off and may return: remember its place, but do not wait for it."""
        self.cancel(ticket)
        kept, now = self._cut_off, self.clock.monotonic()
        kept[ticket.ticket_id] = ticket, now + self.window_s
        while kept and kept[next(iter(kept))][1] <= now:
            del kept[next(iter(kept))]
        if len(kept) > self.queue.limit:
            [(most, _)] = Counter(one.address for one, _ in kept.values()).most_common(1)
            del kept[next(key for key, (one, _) in kept.items() if one.address == most)]

    def _returns(self, ticket: Ticket, waited_as: str, held: int) -> bool:
        now = self.clock.monotonic()
        before, until = self._cut_off.pop(waited_as, (None, now))
        if before is not None and now < until:
            self.queue.replace(before, ticket, held=held)
            return True
        if now >= self._returns_until:
            return False
        has_returned = bool(waited_as) and self.queue.rejoin(ticket, waited_as)
        if self._held_until < 0 and (has_returned or self._awaits_returns):
            self._held_until = now + RETURN_S
        return has_returned

    def _stamp(self, ticket: Ticket) -> None:
        ticket.enqueued_at, ticket.enqueued_time = self.clock.monotonic(), self.clock.time()

    def check(self, kind: Kind) -> None:
        """Check that `submit` would take a client now.

        Raises:
            QueueFull, ServiceUnavailable: as it would.
        """
        self._check_workers(kind)
        self.queue.check_room()

    def _check_workers(self, kind: Kind) -> None:
        if self._is_closed:
            raise ServiceUnavailable("The server is shutting down.")
        away_s = self.clock.monotonic() - self.worker_pool.last_alive_at
        if away_s > self._no_worker_refuse_s:
            raise ServiceUnavailable("No worker is connected.")
        if self.worker_pool.is_cut_off:
            raise ServiceUnavailable(CUT_OFF)
        if not self.worker_pool.can_ever_serve(kind):
            raise ServiceUnavailable("No worker supports this kind of session.")

    def cancel(self, ticket: Ticket) -> bool:
        """Cancel a ticket; returns True if it was waiting. If it has a lease by now, the lease is
        released. Safe to repeat."""
        was_waiting = self.queue.leave(ticket)
        if was_waiting:
            ticket.state = "cancelled"
            ticket.changed.notify()
            self.run()
        elif ticket.lease is not None:
            ticket.lease.release()
        return was_waiting

    def worker_failed(self, ticket: Ticket) -> None:
        """The leased worker could not be reached: return the ticket to the head of the queue the
        first time, then refuse it. If no other worker can be reached either, refuse it immediately,
        together with all waiting tickets."""
        lease = ticket.lease
        if lease is None or ticket.state != "leased":
            return
        ticket.failed_workers += 1
        if not lease.is_lost:
            lease.worker.is_unreachable = True
        may_wait = ticket.failed_workers < WORKERS_TO_TRY and not self.worker_pool.is_cut_off
        self._return(ticket, lease, None if may_wait else WorkerConnectFailed())

    def worker_refused(self, ticket: Ticket) -> None:
        """The leased worker had no room: return the ticket to the head of the queue. The worker
        gets no new session until it reports a free slot."""
        lease = ticket.lease
        if lease is None or ticket.state != "leased":
            return
        ticket.refusals += 1
        if not lease.is_lost:
            lease.worker.said_free = 0
        may_wait = ticket.refusals < REFUSALS_TO_BEAR
        self._return(ticket, lease, None if may_wait else WorkerBusy())

    def _return(self, ticket: Ticket, lease: Lease, refusal: ParleyError | None) -> None:
        """Return a ticket to the head of the queue, or refuse it; releases its lease."""
        # Before the release wakes the dispatcher, so that no other ticket overtakes this one.
        if refusal is None and not self._is_closed:
            self.queue.put_back(ticket)
        else:
            ticket.state = "refused"
            ticket.lease = None
            ticket.refusal = refusal
        lease.release()
        self.run()
        ticket.changed.notify()

    def close(self) -> None:
        """Refuse all tickets from now on."""
        self._is_closed = True

    def pause(self, on: bool) -> None:
        """Stop granting slots, because another gateway may be granting them, or resume."""
        self.is_paused = on
        if not on:
            self.run()

    def run(self) -> None:
        """Grant free slots to the head of the queue until there are no more slots or no more
        tickets."""
        self._must_rerun = True
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._must_rerun:
                self._must_rerun = False
                self._match()
        finally:
            self._is_running = False
        self._estimate()

    def refresh(self) -> None:
        """Update the estimates before they are sent to clients."""
        if self.clock.monotonic() - self._estimated_at >= ESTIMATES_FRESH_S:
            self._estimate()

    def _match(self) -> None:
        if self._is_closed or self.is_paused:
            return
        if self.worker_pool.is_cut_off:
            self._refuse_waiting()
            return
        for ticket in list(self.queue):
            if self.is_held and ticket.fingerprint is None:
                return
            lease = self.worker_pool.lease(
                ticket.kind,
                ticket.session_id,
                address=ticket.address,
                key_id=ticket.key_id,
                fingerprint=ticket.fingerprint,
            )
            if lease is not None:
                self._assign(ticket, lease)
            elif ticket.fingerprint is None and self.worker_pool.can_ever_serve(ticket.kind):
                # Strict order: the tickets behind it wait too, unless it can take no slot that is
                # free now or later, or only one on a worker with its fingerprint.
                return

    @property
    def is_held(self) -> bool:
        """True while no slot is granted, because clients that were ahead may return; call `run`
        `RETURN_S` later."""
        return self.clock.monotonic() < self._held_until

    def _refuse_waiting(self) -> None:
        """Refuse all tickets, because no worker can be reached, except those of sessions that lost
        their worker, which have their own limit."""
        for ticket in [one for one in self.queue if one.fingerprint is None]:
            self.queue.leave(ticket)
            ticket.state = "refused"
            ticket.refusal = ServiceUnavailable(CUT_OFF)
            ticket.changed.notify()

    def _assign(self, ticket: Ticket, lease: Lease) -> None:
        ticket.lease = lease
        ticket.state = "leased"
        ticket.estimated_wait_s = 0.0
        self.queue.leave(ticket)
        ticket.changed.notify()

    def _estimate(self) -> None:
        self._estimated_at = self.clock.monotonic()
        waiting = list(self.queue)
        if not waiting:
            return
        waits = estimate_waits(
            self.worker_pool.free_in_s(), [ticket.kind for ticket in waiting], self.eta
        )
        for ticket, wait_s in zip(waiting, waits, strict=True):
            ticket.estimated_wait_s = wait_s
