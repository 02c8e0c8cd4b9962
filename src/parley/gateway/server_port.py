"""The server's end of a client's WebSocket, under uvicorn.

uvicorn hands an upgraded connection to the class named in its `ws` setting. This one speaks
ordinary ASGI, so Starlette routes work as everywhere, and offers the connection itself as the scope
extension `PORT`: a route that accepted may take the port and stop using `receive` and `send`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import unquote

from starlette.websockets import WebSocket
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected, get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.http11 import Request
from websockets.server import ServerProtocol

from parley.gateway.frames import BINARY, frame
from parley.gateway.port import Budget, Port, PortClosed, PortLimits, Pulse, as_transport

PORT = "parley.port"

log = logging.getLogger("parley.gateway.socket")


class ServerPort(Port):
    """One upgraded connection: handshake, ASGI, port."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        pulse: Pulse = app_state["pulse"]
        limits: PortLimits = app_state["port_limits"]
        budget: Budget | None = app_state.get("budget")
        super().__init__(is_server=True, limits=limits, pulse=pulse, budget=budget)
        self._config = config
        self._app_state = app_state
        self._connections = server_state.connections
        self._tasks = server_state.tasks
        self._handshake = ServerProtocol()
        self._request_seen = False
        self._answered = False
        self._connect_told = False

    # uvicorn's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = as_transport(transport)
        self._connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """uvicorn stops; whoever uses the port has said its words by then."""
        if self._is_open:
            self.close(1001, "server shutdown")
        elif self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._request_seen:
            super().data_received(data)
            return
        self._handshake.receive_data(data)
        for event in self._handshake.events_received():
            if isinstance(event, Request):
                self._request_seen = True
                self._connect(event)
                return
        if self._transport is not None:
            self._transport.close()

    def eof_received(self) -> None:
        return None

    def _connect(self, request: Request) -> None:
        assert self._transport is not None
        self._response = self._handshake.accept(request)
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
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "root_path": self._config.root_path,
            "path": self._config.root_path + unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": [
                (name.lower().encode("ascii"), value.encode("latin-1"))
                for name, value in request.headers.raw_items()
            ],
            "subprotocols": subprotocols,
            "state": self._app_state.copy(),
            "extensions": {PORT: self},
        }
        task = self._loop.create_task(self._run(scope), name=f"socket {path[:40]}")
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def _answer(self) -> None:
        """Send the handshake's answer."""
        assert self._transport is not None
        self._answered = True
        self._handshake.send_response(self._response)
        self._transport.write(b"".join(self._handshake.data_to_send()))

    async def _run(self, scope: dict[str, Any]) -> None:
        code = 1000
        try:
            await self._config.loaded_app(scope, self._asgi_receive, self._asgi_send)
        except ClientDisconnected:
            code = 1001
        except Exception:
            log.exception("a socket route failed")
            code = 1011
        finally:
            self._finish(code)

    def _finish(self, code: int) -> None:
        if self._is_open:
            self.close(code)
        elif self._transport is not None and not self._transport.is_closing():
            if not self._answered:
                self._reject(500)
            self._transport.close()

    def _reject(self, status: int) -> None:
        self._response = self._handshake.reject(status, "")
        self._answer()

    # ASGI's side

    async def _asgi_receive(self) -> dict[str, Any]:
        if not self._connect_told:
            self._connect_told = True
            return {"type": "websocket.connect"}
        try:
            message = await self.receive()
        except PortClosed as end:
            closure = end.closure
            return {
                "type": "websocket.disconnect",
                "code": closure.code,
                "reason": closure.reason,
            }
        payload = message.payload()
        if not message.is_text:
            return {"type": "websocket.receive", "bytes": payload}
        try:
            return {"type": "websocket.receive", "text": payload.decode()}
        except UnicodeDecodeError:
            self._fail(1007, "Text that is not UTF-8.")
            return {"type": "websocket.disconnect", "code": 1007}

    async def _asgi_send(self, message: Any) -> None:
        kind = message["type"]
        if self._closure is not None and self._answered:
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
        elif kind == "websocket.close":
            if self._answered:
                self.close(message.get("code") or 1000, message.get("reason") or "")
            else:
                self._reject(403)
                if self._transport is not None:
                    self._transport.close()
        elif kind == "websocket.send":
            if message.get("text") is not None:
                self.send_text(message["text"].encode())
            elif self.is_open:
                self._write((frame(BINARY, message["bytes"], mask=False),))
        else:
            raise RuntimeError(f"Unexpected ASGI message {kind!r}.")


def port_of(websocket: WebSocket) -> Port:
    """The connection behind an accepted Starlette socket."""
    port = websocket.scope["extensions"][PORT]
    assert isinstance(port, Port)
    return port
