"""Accepts connections that begin with a TLS handshake.

The event loop knows of a connection when its handshake is done. One that never begins it would be
counted nowhere, for a minute, and one that does nothing else would cost a signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
"""Connections accepted before others have their turn."""
NO_FILES_S: Final = 1.0
"""Pause where no connection can be accepted because no file can be opened."""

log = logs.get(__name__)


class TlsListener:
    """A listening socket, in the place of an `asyncio.Server`.

    Args:
        protocol: makes the protocol of a connection.
        clients: an address may have so many handshakes as it may have connections, and begin no
            more of them than it may open connections.
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
        """Accept nothing more; the socket stays its owner's. Safe to repeat."""
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
        # Whoever does not shake hands is none of ours: a scanner, or one who speaks plain HTTP.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._protocol, connected, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
