"""Accepts connections that start with a TLS handshake.

The event loop reports a connection only after its handshake. Without this module, a connection that
never starts the handshake would not be counted for a minute, and one that does only the handshake
would cost a signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from parley import logs
from parley.protocol.networks import network_of
from parley.transport.clients import OpenConnections

HANDSHAKE_S: Final = 10.0
ACCEPTED_AT_ONCE: Final = 64
"""Number of connections accepted in one iteration of the event loop."""
NO_FILES_S: Final = 1.0
"""Pause if no connection can be accepted because there are no free file descriptors."""

HEAD_BYTES: Final = 16_384
PLAIN_HTTP: Final = re.compile(
    rb"[A-Z]+ (/\S*) HTTP/1\.[01]\r\n(?:[^\n]*\n)*?host: *([\w.:\[\]-]+)\r\n", re.IGNORECASE
)
"""A request without TLS: path and host."""

log = logs.get(__name__)


class TlsListener:
    """A listening socket; replaces `asyncio.Server`.

    Args:
        protocol: creates the protocol of a connection.
        clients: limits of an address for concurrent and new connections, which also apply to
            handshakes.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        clients: OpenConnections,
    ) -> None:
        self._listener, self._protocol, self._context = listener, protocol, context
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._by_address: Counter[str] = Counter()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._complaints = logs.Complaints()
        self._listen()

    def close(self) -> None:
        """Stop accepting; the socket stays open for its owner. Safe to repeat."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        for each in self._handshakes:
            each.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, (peer, *_) = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if self._complaints.is_news(str(error), self._loop.time()):
                    log.error("connections_not_accepted", why=str(error))
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(NO_FILES_S, self._listen)
                return
            address, clients = network_of(peer), self._clients
            if not (clients.has_room(self._by_address, address) and clients.may_open(address)):
                connected.close()
                continue
            self._by_address[address] += 1
            task = self._loop.create_task(self._begin(connected), name=f"handshake {address}")
            self._handshakes.add(task)
            task.add_done_callback(functools.partial(self._ended, address))

    async def _begin(self, connected: socket.socket) -> None:
        # A client that leaves, or a scanner: there is no valid handshake.
        with contextlib.suppress(OSError), contextlib.ExitStack() as unused:
            unused.enter_context(connected)
            connected.setblocking(False)
            arrived = asyncio.Event()
            self._loop.add_reader(connected, arrived.set)
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    await arrived.wait()
            finally:
                self._loop.remove_reader(connected)
            if answer := _answer_to_plain_http(connected.recv(HEAD_BYTES, socket.MSG_PEEK)):
                # If bytes were left unread, closing would withdraw the answer.
                connected.recv(HEAD_BYTES)
                connected.send(answer)
                return
            unused.pop_all()
            await self._loop.connect_accepted_socket(
                self._protocol, connected, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def _answer_to_plain_http(head: bytes) -> bytes:
    """The answer to a request without TLS; b"" if `head` is not one. Browsers are sent to the same
    page over HTTPS. Programs are not: their key should not be sent in this way again."""
    if (request := PLAIN_HTTP.match(head)) is None:
        return b""
    path, host = request.groups()
    is_page = b"text/html" in head
    status = b"307 Temporary Redirect" if is_page else b"400 Bad Request"
    sentence = b"This server speaks HTTPS only: use https://%b." % host
    # Our clients read `detail`, OpenAI's read `error`.
    body = b'{"detail":"%b","code":"invalid_request","error":{"message":"%b"}}' % (
        sentence,
        sentence,
    )
    return (
        b"HTTP/1.1 %b\r\nlocation: https://%b%b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n%b"
    ) % (status, host, path, len(body), body)
