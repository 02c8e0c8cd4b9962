"""The queue of tickets.

Pure bookkeeping: one bounded queue for all kinds of sessions, first come, first served. If a caller
(a key, or an address without one) already has sessions or tickets, its next ticket is placed as if
it had arrived later: by `STEPS_BACK` arrivals for each of them. So one caller with many tickets
cannot hold up all others, no ticket is overtaken for ever, and the order is strict among the
tickets of one caller and among callers that have one each. Knows neither workers nor sockets.
Source: service.md 2.1.

The id of a ticket contains its order, sealed with the gateways' common secret: a client that was
waiting when its gateway died, or that was cut off, sends it to get its place back.
"""

from __future__ import annotations

import bisect
import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal

from parley.errors import ParleyError, QueueFull
from parley.gateway.signals import Signal
from parley.gateway.worker_pool import Lease, caller_of
from parley.protocol.kinds import Kind
from parley.protocol.values import QueuePlace

STEPS_BACK: Final = 64
"""Number of later arrivals of other callers that may overtake a ticket, for each session or ticket
that its caller already has."""

ORDER_BYTES: Final = 6
ORDERS_PER_START: Final = 1 << 28
STARTS: Final = 1 << 20
"""After so many starts of gateways their orders begin again; the clients then waiting, if any, lose
their places."""
SEALED_BYTES: Final = 8
"""Length of the sealed part of a ticket's id: its order and random bytes. The seal follows and is
as long."""

TicketState = Literal["waiting", "leased", "cancelled", "refused"]


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the queue; ends as a lease, a cancellation or a refusal.

    `position` counts from 1 among those waiting, 0 once assigned. `enqueued_at` is monotonic,
    `enqueued_time` Unix seconds; the dispatcher sets both. `changed`: its state or position.
    """

    kind: Kind
    session_id: str
    address: str = ""
    key_id: str | None = None
    """Id of its client's key."""
    fingerprint: str | None = None
    """Restricts it to workers with this model and version (`Hello.fingerprint`); None: any."""
    enqueued_at: float = 0.0
    enqueued_time: float = 0.0
    ticket_id: str = ""
    """`q_` and 32 lowercase hex characters. Only the ticket's owner and admins receive it; it gives
    access to the ticket."""
    arrival: int = 0
    rank: int = 0
    """Number of sessions and tickets that its caller already had."""
    order: int = 0
    """Tickets are served in ascending order."""
    position: int = 0
    estimated_wait_s: float | None = 0.0
    state: TicketState = "waiting"
    lease: Lease | None = None
    refusal: ParleyError | None = None
    failed_workers: int = 0
    """Number of its leases whose worker could not be reached."""
    refusals: int = 0
    """Number of its leases whose worker had no room."""
    changed: Signal[()] = field(default_factory=Signal[()])

    @property
    def caller(self) -> str:
        """The owner, among which positions are shared; "" if unknown."""
        return caller_of(self.address, self.key_id)

    def place(self, queue_length: int) -> QueuePlace:
        return QueuePlace(
            position=max(self.position, 1),
            estimated_wait_s=self.estimated_wait_s,
            ticket_id=self.ticket_id,
            queue_length=queue_length,
        )


class Queue:
    """Ordered tickets. When full, `join` refuses; `put_back` always succeeds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tickets: list[Ticket] = []
        self._joined = 0
        self._began = 0
        """Order of the first ticket of this gateway; those of earlier ones are below."""
        self._secret = secrets.token_bytes(32)
        self._returned: set[str] = set()

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def follow(self, secret: bytes, starts: int) -> None:
        """Take over from earlier gateways, with which `secret` is common. `starts`: number of
        starts of all of them. Their orders are lower, even those of callers far back, provided that
        they had fewer arrivals than `ORDERS_PER_START`."""
        self._secret = secret
        self._began = self._joined = starts % STARTS * ORDERS_PER_START

    def rejoin(self, ticket: Ticket, ticket_id: str) -> bool:
        """Take the place of a ticket of an earlier gateway. Returns False if `ticket_id` is not
        such a ticket or was used before."""
        try:
            sealed = bytes.fromhex(ticket_id.removeprefix("q_"))
        except ValueError:
            return False
        # The same bytes can be written in many ways; all of them are one ticket.
        ticket_id = f"q_{sealed.hex()}"
        order = int.from_bytes(sealed[:ORDER_BYTES], "big")
        is_ours = hmac.compare_digest(self._sealed(sealed[:SEALED_BYTES]), sealed)
        if not is_ours or order >= self._began or ticket_id in self._returned:
            return False
        self._returned.add(ticket_id)
        ticket.ticket_id, ticket.arrival, ticket.order = ticket_id, order, order
        self._insert(ticket)
        return True

    def replace(self, old: Ticket, ticket: Ticket, *, held: int) -> None:
        """Take the place of a ticket that has left. It keeps its rank, or gets a higher one if its
        caller has used that rank since: leaving and returning gains nothing."""
        taken = {each.rank for each in self._tickets if each.caller == ticket.caller}
        ticket.ticket_id, ticket.arrival, ticket.rank = old.ticket_id, old.arrival, old.rank
        if ticket.caller:
            free = (rank for rank in count(max(old.rank, held)) if rank not in taken)
            ticket.rank = next(free)
        ticket.order = ticket.arrival + STEPS_BACK * ticket.rank
        self._insert(ticket)

    def join(self, ticket: Ticket, *, held: int = 0) -> None:
        """Take the last place that this caller may have.

        Args:
            held: sessions that the caller has.

        Raises:
            QueueFull: `limit` tickets are waiting.
        """
        self.check_room()
        self._joined += 1
        ticket.arrival = ticket.order = self._joined
        if ticket.caller:
            own = [each.order for each in self._tickets if each.caller == ticket.caller]
            ticket.rank = held + len(own)
            ticket.order += STEPS_BACK * ticket.rank
            # Among a caller's own tickets, the first is served first.
            ticket.order = max(ticket.order, max(own, default=0))
        self._insert(ticket)

    def check_room(self) -> None:
        """Check that `join` would accept a ticket now. Raises QueueFull."""
        if len(self._tickets) >= self.limit:
            raise QueueFull(len(self._tickets))

    def put_back(self, ticket: Ticket) -> None:
        """Return a ticket to the head, because its worker failed or refused before the session
        started. Returned tickets keep their order."""
        ticket.lease = None
        self._insert(ticket)

    def leave(self, ticket: Ticket) -> bool:
        """Remove a ticket; returns False if it was not waiting."""
        try:
            self._tickets.remove(ticket)
        except ValueError:
            return False
        ticket.position = 0
        self._number()
        return True

    def find(self, ticket_id: str) -> Ticket | None:
        return next((ticket for ticket in self._tickets if ticket.ticket_id == ticket_id), None)

    def _insert(self, ticket: Ticket) -> None:
        """Insert a ticket behind those of the same order."""
        ticket.state = "waiting"
        if not ticket.ticket_id:
            order = ticket.order.to_bytes(ORDER_BYTES, "big")
            plain = order + secrets.token_bytes(SEALED_BYTES - ORDER_BYTES)
            ticket.ticket_id = f"q_{self._sealed(plain).hex()}"
        bisect.insort(self._tickets, ticket, key=lambda one: one.order)
        self._number()

    def _sealed(self, plain: bytes) -> bytes:
        seal = hashlib.blake2b(plain, key=self._secret, person=b"ticket", digest_size=8)
        return plain + seal.digest()

    def _number(self) -> None:
        for position, ticket in enumerate(self._tickets, start=1):
            if ticket.position != position:
                ticket.position = position
                ticket.changed.notify()
