"""Who waits, in which order.

Pure bookkeeping: one line for all kinds of tasks, first come first served, bounded. Knows neither
workers nor sockets. Source: service.md 2.1.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from parley.errors import ParleyError, QueueFull
from parley.protocol.control import TaskType
from parley.protocol.values import Place

if TYPE_CHECKING:
    from parley.gateway.fleet import Lease

TicketState = Literal["waiting", "leased", "cancelled", "refused"]


def new_ticket_id() -> str:
    """`q_` and twelve lowercase hex characters."""
    return f"q_{secrets.token_hex(6)}"


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the queue; ends as a lease, a cancellation or a refusal.

    `position` counts from 1 among those waiting, 0 once assigned. `enqueued_at` is monotonic,
    `enqueued_time` Unix seconds. `changed` is called on every change of state or position.
    """

    task: TaskType
    session_id: str
    enqueued_at: float
    enqueued_time: float
    address: str = ""
    ticket_id: str = field(default_factory=new_ticket_id)
    position: int = 0
    estimated_wait_s: float | None = 0.0
    state: TicketState = "waiting"
    lease: Lease | None = None
    refusal: ParleyError | None = None
    failed_workers: int = 0
    """How many leases of this ticket led to a worker that could not be reached."""
    changed: Callable[[], None] = lambda: None

    def place(self, queue_length: int) -> Place:
        """Where it stands, as dialects say it."""
        return Place(
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

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def join(self, ticket: Ticket) -> None:
        """Take the last place.

        Raises:
            QueueFull: `limit` tickets wait already.
        """
        if len(self._tickets) >= self.limit:
            raise QueueFull(len(self._tickets), self.limit)
        self._tickets.append(ticket)
        ticket.state = "waiting"
        ticket.position = len(self._tickets)

    def put_back(self, ticket: Ticket) -> None:
        """Return to the head: its worker failed before the session began."""
        ticket.state = "waiting"
        ticket.lease = None
        self._tickets.insert(0, ticket)
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
                ticket.changed()
