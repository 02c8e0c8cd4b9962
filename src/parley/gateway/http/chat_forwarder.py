"""Forwards one chat request over HTTP: admission, queue, lease, request, answer.

The only path from an HTTP route to a worker. A request waits in the same queue as WebSockets and is
sent to the worker in the chat dialect.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

import msgspec
from starlette.requests import Request

from parley import logs
from parley.clock import Clock
from parley.errors import (
    InvalidPayload,
    InvalidRequest,
    ParleyError,
    ServiceUnavailable,
    TimedOut,
    WorkerLost,
)
from parley.gateway.acquisition import Client, ClientWatch, Departed, TicketCancelled
from parley.gateway.http.requester import Requester
from parley.gateway.large_json import read_aside
from parley.gateway.parts import MIB
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.upstream import UpstreamConnection
from parley.gateway.waits import unless
from parley.protocol import chat, legacy
from parley.protocol.kinds import Kind
from parley.transport import Connection, ConnectionClosed, Message

BAD_INPUT_CODES = frozenset(
    {
        InvalidRequest.code,
        InvalidPayload.code,
        "context_full",
        "invalid_config",
        "missing_field",
        "too_large",
    }
)


class WorkerRefused(ParleyError):
    """The worker returned an error, which has a sentence, a code and possibly a field."""

    def __init__(self, code: str, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field
        # The code is a constant of other errors; here it comes from the worker.
        self.code = code  # type: ignore[misc]
        bad = code in BAD_INPUT_CODES
        unavailable = code in ("service_unavailable", "worker_busy")
        self.http_status = 400 if bad else 503 if unavailable else 502  # type: ignore[misc]


class PendingAnswer:
    """A worker's answer to one request."""

    def __init__(self, upstream: UpstreamConnection, watch: ClientWatch[None]) -> None:
        self._upstream = upstream
        self._watch = watch
        self.waited_s = upstream.waited_s
        self.expected_wait_s = upstream.expected_wait_s

    async def messages(self) -> AsyncGenerator[chat.ServerMessage, None]:
        """All messages up to `Done`, as they arrive; the client is watched meanwhile.

        Raises:
            Departed: the client left.
            WorkerLost: the worker disconnected.
            WorkerRefused: it returned an error.
        """
        while True:
            message = await self._watch.attend(self._next())
            if isinstance(message, legacy.Error):
                raise WorkerRefused(
                    message.code, message.message or message.error, message.param or None
                )
            yield message
            if isinstance(message, chat.Done):
                return

    async def done(self) -> chat.Done:
        """The end of the answer; raises the same errors as `messages`."""
        async with contextlib.aclosing(self.messages()) as messages:
            async for message in messages:
                if isinstance(message, chat.Done):
                    return message
        raise WorkerLost

    def stop(self) -> None:
        """Stop the answer; `done` then returns the part that was generated."""
        self._upstream.connection.send_text(msgspec.json.encode(legacy.Stop()))

    async def _next(self) -> chat.ServerMessage:
        received = _received(self._upstream.connection)
        try:
            return await unless(self._upstream.lost, received, WorkerLost)
        except ConnectionClosed:
            raise WorkerLost from None


async def _received(connection: Connection) -> chat.ServerMessage:
    received = await connection.receive()
    return await read_aside(received.size, partial(_read, received))


def _read(message: Message) -> chat.ServerMessage:
    return chat.decode_server(message.payload())


class ChatForwarder:
    """Forwards chat requests to workers."""

    def __init__(self, runtime: GatewayRuntime) -> None:
        self.acquisition = runtime.serving.acquisition
        self.admission = runtime.access.admission
        self.body_bytes = int(runtime.settings.limits.chat_frame_mb * MIB)
        self.apps = runtime.access.apps
        self.closing = runtime.closing
        self.metrics = runtime.metrics
        self.queue_settings = runtime.settings.queue

    @property
    def clock(self) -> Clock:
        return self.acquisition.dispatcher.clock

    def check(self, request: Request) -> None:
        """Refuse a client that may not send requests, before its body is read.

        Raises:
            OriginForbidden, AppDisabled.
        """
        self.admission.check_origin(request.headers)
        self.apps.check(Kind.CHAT)

    @contextlib.asynccontextmanager
    async def visit(self, request: Request, name: str) -> AsyncIterator[str]:
        """During the block, count a request for its address and key; yields its session id.

        Raises:
            TooManySessions: they have reached their limit, and its turn did not come.
        """
        who: Requester = request.state.requester
        session_id = f"chat_{secrets.token_hex(16)}"
        async with (
            # First, so that requests that wait for it take nothing of their address, which other
            # keys may share.
            contextlib.nullcontext()
            if who.key is None
            else self.admission.visit_in_turn(f"key {who.key_id}", limit=who.key.max_sessions),
            self.admission.visit_in_turn(who.address),
        ):
            with logs.bind_session(session_id, dialect=name):
                yield session_id

    def check_room(self, request: Request) -> None:
        """Refuse a request that could not wait in the queue, before anything is decoded.

        Raises:
            QueueFull, ServiceUnavailable, QuotaExceeded: as `forward`.
        """
        self.acquisition.check(Kind.CHAT, request.state.requester.key_id)

    @contextlib.asynccontextmanager
    async def forward(
        self, request: Request, session_id: str, body: Message
    ) -> AsyncIterator[PendingAnswer]:
        """Wait in the queue and ask; all resources are released at the end.

        Raises:
            Departed: the client disconnected.
            TimedOut: no answer within `queue.request_timeout_s`.
            ParleyError: refused by the queue, or no worker could be reached.
        """
        who: Requester = request.state.requester
        client = Client(
            kind=Kind.CHAT,
            dialect="chat",
            session_id=session_id,
            address=who.address,
            key_id=who.key_id,
            caller=who.word,
            extensions=True,
        )
        limit_s = self.queue_settings.request_timeout_s
        try:
            async with (
                asyncio.timeout(limit_s),
                _RequestWatch(request, self.closing) as watch,
                self.acquisition.acquire(client, watch) as upstream,
            ):
                # A server that shuts down lets a started answer finish.
                watch.ignore_closing()
                upstream.connection.pass_on(body)
                yield PendingAnswer(upstream, watch)
        except TicketCancelled:
            raise ServiceUnavailable("The request was cancelled while it waited.") from None
        except TimeoutError:
            raise TimedOut("The answer", limit_s) from None


class _RequestWatch(ClientWatch[None]):
    """Watches an HTTP client, which can only disconnect."""

    def __init__(self, request: Request, closing: asyncio.Future[bool]) -> None:
        super().__init__(closing)
        self._request = request

    def server_closes(self) -> None:
        raise ServiceUnavailable("The server is shutting down.")

    async def next(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise Departed("hung up")
