"""The port of the copy store for workers of other machines: TLS, and a bounded number of
handshakes.

Whoever connects counts from its first packet, before TLS is agreed on: a stranger must not take the
file descriptors that the gateway and the workers of this machine need.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

HANDSHAKE_LIMIT: Final = 64
"""TLS handshakes at a time."""
HANDSHAKE_S: Final = 5.0
"""How long that may take."""
AGAIN_S: Final = 1.0
"""A system that has no room for another connection is asked again after this."""
BACKLOG: Final = 128


class RemotePort:
    """See the module's text. Belongs to the event loop.

    Args:
        make_protocol: makes the protocol of a connection on which TLS was agreed on.
        refused: told of each that came no further.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], *, refused: Callable[[], None]
    ) -> None:
        self._make_protocol = make_protocol
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen there; gives the port.

        Raises:
            OSError: it cannot be had.
        """
        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                with _missing(family, len(found)):
                    self._listeners.append(_listener(family, address))
        except OSError:
            self.close()
            raise
        self._accepting = [
            asyncio.create_task(self._accept(each, tls), name="copies port")
            for each in self._listeners
        ]
        return int(self._listeners[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more; connections that were made stay."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for listener in self._listeners:
            listener.close()
        self._accepting, self._listeners = [], []

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(AGAIN_S)
                continue
            if len(self._handshakes) >= HANDSHAKE_LIMIT:
                connection.close()
                self._refused()
                continue
            task = asyncio.create_task(self._handshake(connection, tls))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, connection: socket.socket, tls: ssl.SSLContext) -> None:
        with contextlib.ExitStack() as unless_done:
            unless_done.callback(connection.close)
            try:
                await self._loop.connect_accepted_socket(
                    self._make_protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S
                )
            except OSError:
                self._refused()
            else:
                unless_done.pop_all()


@contextlib.contextmanager
def _missing(family: int, families: int) -> Iterator[None]:
    """Of several families of addresses a machine may lack IPv6."""
    try:
        yield
    except OSError as error:
        lacks = error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
        if not (lacks and family == socket.AF_INET6 and families > 1):
            raise


def _listener(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
