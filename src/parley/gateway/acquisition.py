"""Acquires a worker for a client, for sockets and REST alike.

`Acquisition.acquire` queues a client, waits, leases a slot and connects to the worker, and retries
if that fails. What it yields is released when the block ends. Meanwhile a `ClientWatch` serves the
client. Source: service.md 2.4-2.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from parley.errors import ServiceUnavailable
from parley.gateway.dispatcher import RETURN_S, Dispatcher
from parley.gateway.metrics import Metrics
from parley.gateway.queue import Ticket
from parley.gateway.upstream import UpstreamConnection, UpstreamSettings, upstream_headers
from parley.gateway.usage import KeyUsage
from parley.protocol.kinds import Kind
from parley.tracing import TraceSpan, Tracing

QUIET_S: Final = 0.5
"""Time for dialling a worker before its client is notified that it waits."""

MOVES_EVERY_S: Final = 1.0
"""Clients learn of a new position at most this often: each arrival may move every ticket."""
MOVES_PER_S: Final = 200
"""Clients that learn of their new position, in the order of the queue, so that one ticket that
leaves a long queue does not hold up calls."""

T = TypeVar("T")
Received = TypeVar("Received")


class Departed(Exception):
    """The client left, or has received its last message."""

    def __init__(self, why: str, *, is_error: bool = False, is_cut_off: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_cut_off = is_cut_off
        """True if its connection broke: the client may return."""
        self.is_error = is_error
        """True if `why` is the code of an error that was sent to the client."""


class TicketCancelled(Exception):
    """The client or an admin cancelled the ticket."""


@dataclass(frozen=True, slots=True)
class Client:
    """The admitted client that requests a slot.

    Args:
        kind: what the queue calls the session.
        dialect: whose socket of the worker is dialled.
        caller: its description for workers; see `CALLER_HEADER`.
        extensions: True if the client requested extensions to the published protocol.
        parameters: those of its query that the worker's side of the dialect needs.
        waited_as: id of the ticket with which it waited over an earlier connection.
    """

    kind: Kind
    dialect: str
    session_id: str
    address: str
    key_id: str | None
    caller: str
    extensions: bool
    parameters: Mapping[str, str] = field(default_factory=dict)
    waited_as: str = ""


class ClientWatch(Generic[Received]):
    """Serves one client while the server waits for something else.

    Args:
        closing: completed when the server shuts down; its result is true if another gateway takes
            over.
    """

    def __init__(self, closing: asyncio.Future[bool]) -> None:
        self._closing = closing
        self._receiving: asyncio.Task[Received] | None = None
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop_receiving()

    async def until_leased(self, ticket: Ticket) -> None:
        """Wait while `ticket` waits, and keep the client informed.

        Raises:
            Departed: the client left or has received its last message.
        """
        loop = asyncio.get_running_loop()
        informed_at, nudge = loop.time(), loop.call_soon(self._wake)

        def changed() -> None:
            nonlocal nudge
            if ticket.state != "waiting":
                self._wake()
            elif nudge.cancelled():
                behind_s = ticket.position / MOVES_PER_S
                due_s = max(informed_at + MOVES_EVERY_S, loop.time() + behind_s)
                nudge = loop.call_at(due_s, self._wake)

        stop = ticket.changed.listen(changed)
        try:
            while ticket.state == "waiting":
                nudge.cancel()
                informed_at, timeout_s = loop.time(), self.inform(ticket)
                await self._event(None, timeout_s=timeout_s)
        finally:
            stop()
            nudge.cancel()

    async def attend(self, work: Coroutine[Any, Any, T], ticket: Ticket | None = None) -> T:
        """Do `work` while the client is served.

        Args:
            ticket: if `work` takes longer than `QUIET_S`, the client is notified that it waits.

        Raises:
            Departed: the client left; `work` was cancelled and has ended.
        """
        task = asyncio.create_task(work, name="while the client is minded")
        timeout_s = None if ticket is None else QUIET_S
        quiet_until = asyncio.get_running_loop().time() + QUIET_S
        try:
            while not task.done():
                await self._event(task, timeout_s=timeout_s)
                if ticket is not None and asyncio.get_running_loop().time() >= quiet_until:
                    timeout_s = None if task.done() else self.inform(ticket)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            # An error's traceback would keep this frame, and the callers' requests, in a cycle.
            del task

    def ignore_closing(self) -> None:
        """From now on, a server that shuts down waits for this client."""
        self._closing = asyncio.get_running_loop().create_future()

    # Overridden for each kind of client

    async def next(self) -> Received:
        """The client's next message. Raises `Departed` if the client has left."""
        raise NotImplementedError

    def inform(self, ticket: Ticket) -> float | None:
        """Send the client its position in the queue if that is due. Returns the seconds until the
        next one is due."""
        return None

    async def received(self, what: Received) -> None:
        """The client sent something. May raise `Departed`."""

    def server_closes(self) -> None:
        """The server is shutting down. May raise `Departed` or an error for the client."""

    def deadline_s(self) -> float | None:
        """Seconds until `expired`; None: never."""
        return None

    def expired(self) -> None:
        """The client's time is up. Raises `Departed`."""

    async def _event(self, task: asyncio.Task[Any] | None, *, timeout_s: float | None) -> None:
        """Wait for an event and handle it if the client caused it."""
        if self._receiving is None:
            self._receiving = asyncio.create_task(self.next(), name="client watch")
        waited: set[asyncio.Future[Any]] = {self._receiving, self._woken, self._closing}
        if task is not None:
            waited.add(task)
        left_s = self.deadline_s()
        limits_s = [seconds for seconds in (timeout_s, left_s) if seconds is not None]
        await asyncio.wait(
            waited, timeout=min(limits_s, default=None), return_when=asyncio.FIRST_COMPLETED
        )
        if self._woken.done():
            self._woken = asyncio.get_running_loop().create_future()
        if self._receiving.done():
            receiving, self._receiving = self._receiving, None
            try:
                received = receiving.result()
            finally:
                del receiving, waited  # see `attend`
            await self.received(received)
        if self._closing.done():
            self.server_closes()
        if left_s is not None and self.deadline_s() == 0:
            self.expired()

    async def _stop_receiving(self) -> None:
        if self._receiving is None:
            return
        receiving, self._receiving = self._receiving, None
        receiving.cancel()
        await asyncio.wait({receiving})
        if not receiving.cancelled():
            # Retrieved here, so that asyncio does not report it.
            receiving.exception()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


@dataclass(kw_only=True, eq=False, repr=False)
class Acquisition:
    dispatcher: Dispatcher
    upstream_settings: UpstreamSettings
    metrics: Metrics
    usage: KeyUsage
    tracing: Tracing

    def check(self, kind: Kind, key_id: str | None) -> None:
        """Check that `acquire` would let a client wait now.

        Raises:
            QueueFull, ServiceUnavailable, QuotaExceeded: as it would.
        """
        self.usage.check(key_id)
        self.dispatcher.check(kind)

    @asynccontextmanager
    async def acquire(
        self, client: Client, watch: ClientWatch[Any]
    ) -> AsyncIterator[UpstreamConnection]:
        """An open connection to a worker that has a slot for `client`.

        Raises:
            QueueFull, ServiceUnavailable, QuotaExceeded: it may not wait.
            Unauthorized: its key was revoked meanwhile.
            Departed: the client left while it waited.
            TicketCancelled: its ticket was cancelled.
            ParleyError: no worker could be reached or had room.
        """
        self.usage.check(client.key_id)
        who = {
            "parley.session_id": client.session_id,
            "parley.dialect": client.dialect,
            "parley.kind": client.kind.value,
        }
        with self.tracing.session(who) as trace:
            async with self._acquire(client, watch, trace) as upstream:
                yield upstream

    @asynccontextmanager
    async def _acquire(
        self, client: Client, watch: ClientWatch[Any], trace: TraceSpan
    ) -> AsyncIterator[UpstreamConnection]:
        ticket = self.dispatcher.submit(
            Ticket(client.kind, client.session_id, client.address, client.key_id),
            owner=asyncio.current_task(),
            waited_as=client.waited_as,
        )
        if self.dispatcher.is_held:
            asyncio.get_running_loop().call_later(RETURN_S, self.dispatcher.run)
        expected_wait_s = ticket.estimated_wait_s
        try:
            while True:
                with trace.begin("queue"):
                    await watch.until_leased(ticket)
                if ticket.state == "cancelled":
                    raise TicketCancelled
                if ticket.refusal is not None:
                    raise ticket.refusal
                lease = ticket.lease
                assert lease is not None
                waited_s = self.dispatcher.clock.monotonic() - ticket.enqueued_at
                headers = upstream_headers(
                    lease,
                    queue_wait_s=waited_s,
                    caller=client.caller,
                    extensions=client.extensions,
                    parameters=client.parameters,
                    trace=trace.header,
                )
                async with (
                    lease,
                    UpstreamConnection(
                        lease, self.upstream_settings, dialect=client.dialect, headers=headers
                    ) as upstream,
                ):
                    # The key may have been revoked, or its day used up, while it waited.
                    self.usage.check(client.key_id)
                    with trace.begin("connect", {"parley.worker": lease.worker.worker_id}):
                        opened = await watch.attend(upstream.open(), ticket)
                    if opened:
                        upstream.waited_s, upstream.expected_wait_s = waited_s, expected_wait_s
                        self.metrics.session(client.kind, waited_s)
                        with trace.begin("relay"):
                            yield upstream
                        return
                    if upstream.is_unknown:
                        raise ServiceUnavailable("No worker supports this protocol.")
                    if upstream.is_refused:
                        self.dispatcher.worker_refused(ticket)
                    else:
                        self.dispatcher.worker_failed(ticket)
        except Departed as departure:
            if departure.is_cut_off:
                self.dispatcher.cut_off(ticket)
            raise
        finally:
            self.dispatcher.cancel(ticket)
