"""Who waits, in which order.

Pure bookkeeping: one line for all kinds of sessions, first come first served, bounded. Knows
neither workers nor sockets. Source: service.md 2.1.
"""

from __future__ import annotations

import bisect
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from parley.errors import ParleyError, QueueFull
from parley.gateway.signals import Signal
from parley.gateway.worker_pool import Lease
from parley.protocol.kinds import Kind
from parley.protocol.values import QueuePlace

TicketState = Literal["waiting", "leased", "cancelled", "refused"]


def new_ticket_id() -> str:
    """`q_` and 32 lowercase hex characters. Only its holder and admins are told it, and whoever
    knows it may look at the ticket and cancel it."""
    return f"q_{secrets.token_hex(16)}"


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the queue; ends as a lease, a cancellation or a refusal.

    `position` counts from 1 among those waiting, 0 once assigned. `enqueued_at` is monotonic,
    `enqueued_time` Unix seconds. `changed`: its state or position.
    """

    kind: Kind
    session_id: str
    enqueued_at: float
    enqueued_time: float
    address: str = ""
    key_id: str | None = None
    """The key that whoever waits has shown."""
    fingerprint: str | None = None
    """Only a worker of this model and version will do (`Hello.fingerprint`); None: any."""
    ticket_id: str = field(default_factory=new_ticket_id)
    number: int = 0
    """In the order in which tickets joined the queue."""
    position: int = 0
    estimated_wait_s: float | None = 0.0
    state: TicketState = "waiting"
    lease: Lease | None = None
    refusal: ParleyError | None = None
    failed_workers: int = 0
    """How many leases of this ticket led to a worker that could not be reached."""
    refusals: int = 0
    """How many leases of this ticket led to a worker that had no room."""
    changed: Signal[()] = field(default_factory=Signal[()])

    def place(self, queue_length: int) -> QueuePlace:
        """Where it stands, as dialects say it."""
        return QueuePlace(
            position=max(self.position, 1),
            estimated_wait_s=self.estimated_wait_s,
            ticket_id=self.ticket_id,
            queue_length=queue_length,
        )


class Queue:
    """Tickets in order. Full: `join` refuses; a ticket put back at the head is always taken."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tickets: list[Ticket] = []
        self._joined = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def join(self, ticket: Ticket) -> None:
        """Take the last place.

        Raises:
            QueueFull: `limit` tickets wait already.
        """
        self.check_room()
        self._joined += 1
        ticket.number = self._joined
        self._tickets.append(ticket)
        ticket.state = "waiting"
        ticket.position = len(self._tickets)

    def check_room(self) -> None:
        """Whether `join` would take a ticket now. Raises QueueFull."""
        if len(self._tickets) >= self.limit:
            raise QueueFull(len(self._tickets), self.limit)

    def put_back(self, ticket: Ticket) -> None:
        """Return to the head: its worker failed or refused before the session began. Of several
        that return, the one that came first stands first."""
        ticket.state = "waiting"
        ticket.lease = None
        bisect.insort(self._tickets, ticket, key=lambda one: one.number)
        self._number()

    def leave(self, ticket: Ticket) -> bool:
        """Take a ticket out, wherever it stands; false if it does not wait."""
        try:
            self._tickets.remove(ticket)
        except ValueError:
            return False
        ticket.position = 0
        self._number()
        return True

    def find(self, ticket_id: str) -> Ticket | None:
        """The waiting ticket of that id."""
        return next((ticket for ticket in self._tickets if ticket.ticket_id == ticket_id), None)

    def _number(self) -> None:
        for position, ticket in enumerate(self._tickets, start=1):
            if ticket.position != position:
                ticket.position = position
                ticket.changed.notify()
