"""The server's end of a client's WebSocket, under uvicorn.

uvicorn passes an upgraded connection to the class in its `ws` setting. This class uses ASGI until a
Starlette route accepts or refuses, and provides the connection itself as a scope extension
(`connection_of`), on which messages are received and sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.websockets import WebSocket
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected, get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.http11 import Request
from websockets.server import ServerProtocol

from parley import logs
from parley.protocol.networks import network_of
from parley.transport.clients import HELD_OFF_S, OpenConnections
from parley.transport.connection import Connection, as_transport
from parley.transport.keepalive import Keepalive
from parley.transport.limits import Budget, ConnectionLimits
from parley.transport.state import ConnectionState

EXTENSION: Final = "parley.connection"

log = logs.get(__name__)


class ServerConnection(Connection):
    """One upgraded connection: handshake and ASGI interface."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        keepalive: Keepalive = app_state["keepalive"]
        limits: ConnectionLimits = app_state["connection_limits"]
        budget: Budget | None = app_state.get("budget")
        super().__init__(is_server=True, limits=limits, keepalive=keepalive, budget=budget)
        self._open_connections: OpenConnections = app_state["open_connections"]
        self._owner_of: Callable[[str | None, Mapping[str, str]], str] | None
        self._owner_of = app_state.get("owner_of")
        self._config = config
        self._app_state = app_state
        self._connections = server_state.connections
        self._tasks = server_state.tasks
        self._protocol = ServerProtocol()
        self._has_request = self._is_answered = False
        """The opening handshake (RFC 6455, 4.2): the application decides between request and
        response."""
        self._refusal: tuple[int, list[tuple[bytes, bytes]]] = (403, [])

    # uvicorn's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = as_transport(transport)
        self._connections.add(self)  # type: ignore[arg-type]
        peer = get_remote_addr(self._transport)
        self._address = network_of(peer[0]) if peer else "unknown"
        # The HTTP connection that it was until now has just released its count.
        self._open_connections.enter(self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._open_connections.leave(self._address)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Called when uvicorn stops, after the application has sent its last messages."""
        if self.state is not ConnectionState.CONNECTING:
            self.close(1001, "server shutdown")
        elif self._transport is not None:
            self._transport.close()

    def _received(self, data: bytes) -> None:
        if self._has_request:
            super()._received(data)
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._has_request = True
                self._connect(event)
                return
        if self._transport is not None:
            self._transport.close()

    def _flooded(self) -> None:
        if self.owner is not None:
            self._open_connections.flooded(self.owner, self._now())

    def _give_up(self, waiting_bytes: int) -> None:
        self._open_connections.ended["slow_reader"] += 1
        super()._give_up(waiting_bytes)

    def _starved(self) -> None:
        self._open_connections.ended["slow_body"] += 1
        super()._starved()

    def _connect(self, request: Request) -> None:
        assert self._transport is not None
        # Nothing is read before the client is admitted.
        self._hold_reading("handshake", True)
        self._response = self._protocol.accept(request)
        if self._response.status_code != 101:
            self._answer()
            self._transport.close()
            return
        path, _, query = request.path.partition("?")
        subprotocols = [
            token.strip()
            for header in request.headers.get_all("Sec-WebSocket-Protocol")
            for token in header.split(",")
        ]
        headers = [
            (name.lower().encode("ascii"), value.encode("latin-1"))
            for name, value in request.headers.raw_items()
        ]
        client = get_remote_addr(self._transport)
        if self._owner_of is not None:
            self.owner = self._owner_of(client[0] if client else None, Headers(raw=headers))
        if self._is_held_off():
            sentence = "Too many messages. Try again in a few seconds."
            self._reject(429, sentence, [(b"retry-after", b"%d" % HELD_OFF_S)])
            return
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": get_local_addr(self._transport),
            "client": client,
            "root_path": self._config.root_path,
            "path": self._config.root_path + unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": headers,
            "subprotocols": subprotocols,
            "state": self._app_state.copy(),
            "extensions": {EXTENSION: self, "websocket.http.response": {}},
        }
        task = self._loop.create_task(self._run(scope), name=f"socket {path[:40]}")
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def _is_held_off(self) -> bool:
        counter, owner = self._open_connections, self.owner
        return owner is not None and counter.is_held_off(owner, self._now())

    def _answer(self) -> None:
        assert self._transport is not None
        self._is_answered = True
        self._protocol.send_response(self._response)
        self._transport.write(b"".join(self._protocol.data_to_send()))

    async def _run(self, scope: dict[str, Any]) -> None:
        code = 1000
        try:
            await self._config.loaded_app(scope, self._asgi_receive, self._asgi_send)
        except ClientDisconnected:
            code = 1001
        except Exception:
            log.exception("socket_route_failed", path=scope["path"])
            code = 1011
        finally:
            self._finish(code)

    def _finish(self, code: int) -> None:
        if self.state is not ConnectionState.CONNECTING:
            self.close(code)
        elif self._transport is not None and not self._transport.is_closing():
            self._reject(500)

    def _reject(
        self, status: int, body: str = "", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        self._response = self._protocol.reject(status, body)
        for raw_name, value in headers:
            name = raw_name.decode("latin-1")
            if name not in ("content-length", "connection"):
                if name in self._response.headers:
                    del self._response.headers[name]
                self._response.headers[name] = value.decode("latin-1")
        self._answer()
        if self._transport is not None:
            self._transport.close()

    # ASGI's side

    async def _asgi_receive(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def _asgi_send(self, message: Any) -> None:
        kind = message["type"]
        if self.closed.done() and self._is_answered:
            raise ClientDisconnected
        if kind == "websocket.accept":
            if self._transport is None or self._transport.is_closing():
                raise ClientDisconnected
            for name, value in message.get("headers") or ():
                self._response.headers[name.decode("latin-1")] = value.decode("latin-1")
            if message.get("subprotocol"):
                self._response.headers["Sec-WebSocket-Protocol"] = message["subprotocol"]
            self._answer()
            self._opened(self._transport)
            self._hold_reading("handshake", False)
        elif kind == "websocket.close":
            if self._is_answered:
                self.close(message.get("code") or 1000, message.get("reason") or "")
            else:
                self._reject(403)
        elif kind == "websocket.http.response.start":
            self._refusal = (message["status"], list(message.get("headers") or ()))
        elif kind == "websocket.http.response.body":
            status, headers = self._refusal
            self._reject(status, message.get("body", b"").decode(), headers)
        else:
            raise RuntimeError(f"Unexpected ASGI message {kind!r}.")


def connection_of(websocket: WebSocket) -> Connection:
    """The connection behind an accepted Starlette socket."""
    connection = websocket.scope["extensions"][EXTENSION]
    assert isinstance(connection, Connection)
    return connection
