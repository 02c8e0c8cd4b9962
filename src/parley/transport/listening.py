"""The socket on which a server listens, and the server."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from parley.errors import SetupError
from parley.tasks import wait_for_event
from parley.transport.clients import OpenConnections
from parley.transport.handshakes import TlsListener
from parley.transport.http import IDLE_LIMIT_S, BoundedHttp
from parley.transport.keepalive import Keepalive
from parley.transport.limits import ConnectionLimits
from parley.transport.server import ServerConnection

BACKLOG: Final = 2048
DATE_EVERY_S: Final = 1.0


class UvicornServer(uvicorn.Server):
    """uvicorn with our connections on sockets that are already listening; the caller handles
    signals.

    Args:
        tls: None for plain HTTP.
        clients: connections by address; None if the app's lifespan yields the state of connections.
        limits: of connections, with `clients`.
        options: uvicorn's own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tls: ssl.SSLContext | None,
        clients: OpenConnections | None = None,
        limits: ConnectionLimits | None = None,
        **options: Any,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHttp,
            ws=ServerConnection,
            interface="asgi3",
            lifespan="auto" if clients is None else "off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_LIMIT_S,
            **options,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)
        self._state: dict[str, Any] = (
            {}
            if clients is None
            else {
                "keepalive": Keepalive(),
                "connection_limits": limits or ConnectionLimits(),
                "open_connections": clients,
            }
        )
        self._ending = asyncio.Event()

    def protocol(self) -> BoundedHttp:
        """The server's end of a new connection."""
        return BoundedHttp(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = self.config.ssl
        self.lifespan.state.update(self._state)
        await super().startup(sockets if context is None else [])
        if context is not None:
            clients = self.lifespan.state["open_connections"]
            for each in sockets or ():
                self.servers.append(TlsListener(each, self.protocol, context, clients))  # type: ignore[arg-type]

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Run until `end`. uvicorn's own loop polls ten times a second for the end; this one only
        renews the date in the headers."""
        while not await self.on_tick(0):  # every tenth tick, from 0 on, updates the date
            await wait_for_event(self._ending, DATE_EVERY_S)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        SetupError: the address is in use or does not belong to this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise SetupError(
            f"'{host}' is not an address of this machine.",
            hint="Use --host 0.0.0.0 for all addresses or --host 127.0.0.1 for this machine only.",
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def listen_on_loopback() -> socket.socket:
    """A listening socket on a free port of 127.0.0.1, or of ::1 on machines without IPv4.

    Raises:
        SetupError: this machine has neither.
    """
    try:
        return listen("127.0.0.1", 0)
    except SetupError:
        return listen("::1", 0)


def _cannot_listen(host: str, port: int, error: OSError) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return SetupError(
            f"Port {port} is in use.",
            hint=f"Stop the other program, or choose a port: --port {port + 1}",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return SetupError(
            f"Port {port} may not be used by this user.",
            hint="Choose a port above 1023: --port 8006",
        )
    return SetupError(
        f"Cannot listen on {host}:{port}: {error.strerror}.",
        hint="Use --host 0.0.0.0 for all addresses or --host 127.0.0.1 for this machine only.",
    )
