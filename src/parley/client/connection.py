"""One WebSocket to a server, with its send queues.

Independent of the dialect. There are two send queues: control messages wait until they are sent;
live audio is dropped, oldest first, if the network cannot keep up, because current audio is more
important. Both are counted; nothing is lost silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from parley.client.access import (
    PATH_HINT,
    REDIRECT_HINT,
    RUNNING_HINT,
    Access,
    ConnectionLost,
    NoWebSocket,
    Socket,
    SocketClosed,
    Transport,
    Unreachable,
    as_error,
    unreachable,
)
from parley.client.resuming import SentMessages, with_query
from parley.clock import Clock
from parley.errors import ParleyError
from parley.protocol import codec, resume
from parley.protocol.values import SLOWEST_BYTES_PER_S
from parley.tasks import end_tasks

FRAME_LIMIT_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of a server's message: a chat answer with ten minutes of speech."""

EXTENSIONS: Final = "extensions=true"
"""Query of every connection: this client uses parley's protocol extensions."""

PONG_S: Final = 20.0
"""Time for the server to answer a ping."""

GOODBYE_S: Final = 2.0
"""Time limit for closing a connection."""

CONTROL_LIMIT: Final = 64
BACKOFF_S: Final = 0.5
LONGEST_WAIT_S: Final = 1.0
"""Pause between attempts to resume a session or to return to a place in the queue."""
PLACE_KEPT_S: Final = 30.0
"""Time for which the client tries to return to its place in the queue: as long as servers keep
sessions."""
TRY_AGAIN_CODES: Final = frozenset({1001, 1006, 1011, 1012})
"""Close codes after which a retry makes sense: going away, lost, failed, restarting."""

LIVE_S: Final = 3.0
"""Maximum live audio that waits for a slow network, and maximum that is in flight: the buffers of
system and network hold minutes of small messages."""
QUIET_S: Final = 2.5
ANSWER_S: Final = 3.5
"""Time without a message after which the server is asked for one, and time for which that is waited
for: a network that has forgotten a connection closes nothing."""
STALLED_S: Final = 1.0
"""Time for which an answer is due until the network stands still rather than being slow."""
MUCH_S: Final = 2.0
"""Live audio in flight after which the server is asked how much has arrived."""
AWAY_BYTES: Final = 8 << 20
"""Maximum size of audio that is kept while there is no connection, about a minute and a half; the
oldest is dropped first."""

Outgoing = msgspec.Struct | Mapping[str, Any]
"""A message of the client: a struct of its dialect, or an equivalent object."""


class NetworkTransport:
    """Default transport: WebSockets and HTTP."""

    async def connect(self, access: Access, url: str) -> NetworkSocket:
        try:
            socket = await connect(
                url,
                ssl=access.verify() if url.startswith("wss:") else None,
                additional_headers=access.headers(),
                open_timeout=access.open_timeout_s,
                close_timeout=GOODBYE_S,
                ping_timeout=PONG_S,
                max_size=FRAME_LIMIT_BYTES,
                # Base64 of audio does not compress well; trying costs more than it saves.
                compression=None,
                proxy=None if access.is_loopback() else True,
            )
        except InvalidStatus as error:
            raise _refusal(url, error) from None
        except InvalidHandshake as error:
            raise NoWebSocket(url, f"not a parley server ({error}).", hint=RUNNING_HINT) from None
        except InvalidURI as error:
            # It was redirected to an address that is none of a WebSocket.
            where = error.uri.partition("?")[0]
            raise NoWebSocket(url, f"redirected to {where}", hint=REDIRECT_HINT) from None
        except OSError as error:
            raise unreachable(url, error) from None
        return NetworkSocket(socket)

    def requests(self, access: Access) -> httpx.AsyncBaseTransport | None:
        return None


def _refusal(url: str, error: InvalidStatus) -> ParleyError:
    """The error behind an HTTP response that refused the upgrade."""
    try:
        said = json.loads(error.response.body or b"")
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("code"):
        return as_error(str(said["code"]), str(said.get("detail") or said.get("message") or ""))
    if error.response.status_code == 401:
        return as_error("unauthorized", "A key is required.")
    hint = PATH_HINT if error.response.status_code == 404 else RUNNING_HINT
    return NoWebSocket(url, f"not a parley server ({error}).", hint=hint)


class NetworkSocket:
    """A connection of the library `websockets`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, frame: str | bytes) -> None:
        # The answer to a ping comes after everything that was sent before it.
        self._connection.ping_timeout = PONG_S + len(frame) / SLOWEST_BYTES_PER_S
        try:
            await self._connection.send(frame)
        except ConnectionClosed:
            raise self._closed() from None

    async def receive(self) -> str | bytes:
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            raise self._closed() from None

    async def close(self) -> None:
        await self._connection.close()

    def abort(self) -> None:
        """Drop the connection without closing it properly. Safe to repeat."""
        self._connection.transport.abort()

    def _closed(self) -> SocketClosed:
        return SocketClosed(
            self._connection.close_code or 1006, self._connection.close_reason or ""
        )


NETWORK: Final[Transport] = NetworkTransport()


async def open_socket(access: Access, path: str) -> Socket:
    """Connect once.

    Raises:
        Unreachable: no server there, an untrusted certificate, or no such address.
        ParleyError: the server refused; the class says why.
    """
    url = access.socket_url(with_query(path, EXTENSIONS))
    return await (access.transport or NETWORK).connect(access, url)


class Attempts:
    """Counts attempts to connect: at most `Access.attempts`; for a client that waited in the queue,
    as many as fit into `PLACE_KEPT_S`."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self.made = 1
        self._most = access.attempts
        self._clock = clock
        self._ticket_id = ""
        self._until = math.inf

    def waits(self, ticket_id: str) -> None:
        """The client received this ticket in the queue."""
        self._ticket_id, self._until = ticket_id, math.inf

    def path(self, path: str) -> str:
        """The path of the next attempt, which includes the ticket."""
        ticket = self._ticket_id
        return with_query(path, f"{resume.TICKET_QUERY}={ticket}") if ticket else path

    async def pause(self, error: ParleyError) -> None:
        """Wait before the next attempt after a failed one; raises `error` if there is no further
        one."""
        now, has_place = self._clock.monotonic(), bool(self._ticket_id)
        self._until = min(self._until, now + PLACE_KEPT_S)
        if isinstance(error, ConnectionLost):
            may_pass = error.ended_with in TRY_AGAIN_CODES
        else:
            # A refusal of a waiting client may come from a server that is restarting.
            may_pass = has_place or (isinstance(error, Unreachable) and error.may_pass)
        if not may_pass or not (now < self._until if has_place else self.made < self._most):
            raise error from None
        pause_s = BACKOFF_S * 2 ** (self.made - 1)
        self.made += 1
        await asyncio.sleep(min(pause_s, LONGEST_WAIT_S) if has_place else pause_s)


class Link:
    """An open connection with its send queues. Open with `await Link.open(…)`; `close` is safe to
    repeat."""

    def __init__(self, socket: Socket, live_s: float) -> None:
        self._socket = socket
        self._control: deque[str] = deque()
        self._live: deque[tuple[Outgoing, float]] = deque()
        self._live_s = live_s
        self._something = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closed: SocketClosed | None = None
        self._again: deque[str | bytes] = deque()
        self._meanwhile: deque[str | bytes] = deque()
        self._meanwhile_bytes = 0
        self._asides: deque[str] = deque()
        self.sent: SentMessages | None = None
        """Messages that may have to be sent again; set if the session can be resumed. From then on,
        messages that are posted while the connection is broken are kept for the next one."""
        self._heard_s = 0.0
        """Time of the server's newest message."""
        self._question: Callable[[], Outgoing] | None = None
        self._before: asyncio.Task[None] | None = None
        """Closes the previous socket, which may no longer answer."""
        self.frame: Callable[[Any], str | bytes] = codec.encode
        """Makes a message from live audio."""
        self.dropped = 0
        """Number of live messages that were dropped because the network was too slow, or
        unavailable for too long."""
        self._sender = asyncio.create_task(self._send(), name="parley-client-sender")

    @classmethod
    async def open(cls, access: Access, path: str, *, live_s: float = LIVE_S) -> Link:
        """Connect once.

        Raises:
            Unreachable: no server there, an untrusted certificate, or no such address.
            ParleyError: the server refused; the class says why.
        """
        return cls(await open_socket(access, path), live_s)

    async def move(self, socket: Socket, again: Sequence[str | bytes]) -> None:
        """Continue over another socket: send `again`, then the messages that were not sent over the
        previous connection."""
        await end_tasks(self._sender)
        before, self._socket = self._socket, socket
        self._again.extendleft(reversed(again))
        self._asides.clear()
        self._closed = None
        self._wake()
        self._sender = asyncio.create_task(self._send(), name="parley-client-sender")
        if self._before is not None:
            await self._before
        self._before = asyncio.create_task(before.close(), name="parley-client-closer")

    @property
    def waiting(self) -> int:
        """Number of messages that were not sent yet."""
        sound = len(self._meanwhile) + len(self._live)
        return len(self._again) + len(self._control) + sound

    def post(self, message: Outgoing) -> None:
        """Send a control message, before any queued audio.

        Raises:
            ConnectionLost: the socket is closed, or 64 messages are already waiting.
        """
        if self._is_lost or len(self._control) >= CONTROL_LIMIT:
            raise self._lost()
        self._control.append(codec.encode(message))
        self._wake()

    def post_live(self, message: Outgoing, seconds: float) -> list[Outgoing]:
        """Send live audio; returns the oldest queued messages if they were dropped. While a session
        that can be resumed has no connection, everything is kept, up to `AWAY_BYTES`.

        Raises:
            ConnectionLost: the socket is gone.
        """
        if self._is_lost:
            raise self._lost()
        self._live.append((message, seconds))
        dropped: list[Outgoing] = []
        if self._is_away:
            self._keep_live()
            return dropped
        waiting_s = sum(length_s for _, length_s in self._live)
        while waiting_s > self._live_s and len(self._live) > 1:
            oldest, length_s = self._live.popleft()
            waiting_s -= length_s
            dropped.append(oldest)
        self.dropped += len(dropped)
        self._wake()
        return dropped

    def post_aside(self, message: Outgoing) -> None:
        """Send a message that is not part of the conversation and never sent again."""
        self._asides.append(codec.encode(message))
        self._wake()

    def amend_next(self, change: Callable[[Any], Outgoing]) -> None:
        """Change the next live message, e.g. to preserve a flag of a dropped one."""
        if self._live:
            message, seconds = self._live[0]
            self._live[0] = change(message), seconds

    async def receive(self, *, question: Callable[[], Outgoing] | None = None) -> str | bytes:
        """Receive the next message.

        Args:
            question: makes the message that asks the server for a sign of life, if it answers one;
                without an answer the connection is lost.

        Raises:
            ConnectionLost: the socket was closed, even normally with code 1000.
        """
        self._question = question
        while True:
            try:
                async with asyncio.timeout(self._patience_s):
                    frame = await self._socket.receive()
            except SocketClosed as closed:
                self._closed = closed
                raise self._lost() from None
            except TimeoutError:
                if self._ask() or self._silent_s < ANSWER_S:
                    continue
                self._closed = SocketClosed(1006, "the server no longer answers")
                raise self._lost() from None
            self._heard_s = asyncio.get_running_loop().time()
            if self._live:
                self._something.set()
            return frame

    @property
    def _patience_s(self) -> float | None:
        """Time to wait for the server's next message."""
        if self._question is None or self.sent is None:
            return None
        return QUIET_S if self.sent.asked_s is None else max(0.0, ANSWER_S - self._silent_s)

    @property
    def _silent_s(self) -> float:
        """Time for which an answer has been due and nothing has come."""
        asked_s = None if self.sent is None else self.sent.asked_s
        if asked_s is None:
            return 0.0
        return asyncio.get_running_loop().time() - max(self._heard_s, asked_s)

    def _ask(self) -> bool:
        """Ask the server for a sign of life; returns False if it was asked before."""
        assert self._question is not None
        assert self.sent is not None
        if self.sent.asked_s is not None:
            return False
        self.sent.asked_s = asyncio.get_running_loop().time()
        self.post_aside(self._question())
        return True

    async def flush(self) -> None:
        """Wait until everything posted so far was sent, or the connection was closed."""
        quiet = asyncio.create_task(self._quiet.wait())
        try:
            await asyncio.wait({quiet, self._sender}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            quiet.cancel()

    async def close(self) -> bool:
        """Send the queued messages, for at most `GOODBYE_S`, and close; returns True if all were
        sent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self.flush()
        is_sent = self._quiet.is_set()
        await self.abandon()
        return is_sent

    async def abandon(self) -> None:
        """Close without sending the queued messages."""
        await end_tasks(self._sender)
        await self._socket.close()
        if self._before is not None:
            await self._before

    def _wake(self) -> None:
        self._quiet.clear()
        self._something.set()

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            while (frame := self._next_frame()) is not None:
                try:
                    await self._socket.send(frame)
                except SocketClosed as closed:
                    self._closed = closed
                    return  # `receive` raises the reason.
            if not self._live:
                self._quiet.set()

    def _next_frame(self) -> str | bytes | None:
        sound_s = 0.0
        if self._asides:
            return self._asides.popleft()
        if self._again:
            frame: str | bytes = self._again.popleft()
        elif self._control:
            frame = self._control.popleft()
        elif self._meanwhile:
            frame = self._meanwhile.popleft()
            self._meanwhile_bytes -= len(frame)
        elif self._live and self._has_room:
            message, sound_s = self._live.popleft()
            frame = self.frame(message)
        else:
            return None
        if self.sent is not None:
            self.sent.add(frame, sound_s)
        return frame

    @property
    def _has_room(self) -> bool:
        """False while a slow network still carries earlier audio."""
        if self.sent is None or self._question is None or self.sent.in_flight_s < MUCH_S:
            return True
        self._ask()
        return self.sent.in_flight_s < self._live_s or self._silent_s > STALLED_S

    @property
    def _is_away(self) -> bool:
        """True while there is no connection but another one may follow."""
        return self.sent is not None and (self._closed is not None or self._sender.done())

    def _keep_live(self) -> None:
        """Keeps audio while there is no connection and sends it afterwards."""
        while self._live:
            frame = self.frame(self._live.popleft()[0])
            self._meanwhile.append(frame)
            self._meanwhile_bytes += len(frame)
        while self._meanwhile_bytes > AWAY_BYTES:
            self._meanwhile_bytes -= len(self._meanwhile.popleft())
            self.dropped += 1

    @property
    def _is_lost(self) -> bool:
        return self._sender.done() and self.sent is None

    def _lost(self) -> ConnectionLost:
        closed = self._closed or SocketClosed(1006, "")
        return ConnectionLost(closed.code, closed.reason, self.waiting)
