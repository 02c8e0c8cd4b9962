"""`/v1/responses` as a WebSocket: responses one after the other over one connection.

Each `response.create` is served as `POST /v1/responses` with `stream`, by the same application:
keys, limits, memory, storage and errors are those of the request. Source: openai-python 3.54
`responses.connect`; LiveKit's `responses.LLM` connects like this by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Scope
from starlette.types import Message as AsgiMessage
from starlette.websockets import WebSocket

from parley.errors import BadInput, InvalidRequest, ParleyError, UnknownEvent
from parley.gateway.authenticator import KEY_SUBPROTOCOL
from parley.gateway.http.auth import CALLER
from parley.gateway.http.bodies import JSON
from parley.gateway.http.errors import REQUEST_ID, openai_error
from parley.gateway.http.openai.stream import EVENTS
from parley.gateway.large_json import read_aside
from parley.settings import LimitSettings
from parley.transport import Connection, ConnectionClosed, Message, connection_of

PATH: Final = "/v1/responses"
CREATE: Final = b'"response.create"'
OF_HANDSHAKE: Final = (
    *(b"connection", b"upgrade", b"sec-websocket-key", b"sec-websocket-version"),
    *(b"sec-websocket-extensions", b"content-type", b"content-length", b"transfer-encoding"),
)
"""Header fields of the upgrade that its requests do not have."""


def route(app: ASGIApp, limits_now: Callable[[], LimitSettings]) -> WebSocketRoute:
    """The route of the WebSocket.

    Args:
        app: serves the requests.
    """

    async def serve(websocket: WebSocket) -> None:
        offered = websocket.scope["subprotocols"]
        names = [name for name in offered if not name.startswith(KEY_SUBPROTOCOL)]
        await websocket.accept(names[0] if names else None)
        connection, limits = connection_of(websocket), limits_now()
        connection.set_message_limit(int(limits.chat_frame_mb * (1 << 20)))
        refusal = websocket.scope["state"][CALLER]
        if isinstance(refusal, ParleyError):
            _send_error(connection, 401, openai_error(401, str(refusal), refusal.code)["error"])
            connection.close(refusal.close_code)
        while (message := await _next(connection, limits.chat_idle_s)) is not None:
            body = await _body(connection, message)
            del message
            if body is not None:
                await _answer(app, websocket.scope, connection, body)
        connection.close(1000)
        await asyncio.wait({connection.gone})

    return WebSocketRoute(PATH, serve)


async def _next(connection: Connection, idle_s: float) -> Message | None:
    while True:
        try:
            async with asyncio.timeout(idle_s):
                return await connection.receive()
        except ConnectionClosed:
            return None
        except TimeoutError:
            if not connection.is_in_message:
                return None


async def _body(connection: Connection, message: Message) -> bytes | None:
    """The body of the request for a message; None for one that was refused."""
    try:
        return await read_aside(message.size, lambda: body_of(message.payload()))
    except BadInput as error:
        refused = openai_error(400, str(error), error.code, error.field)
        _send_error(connection, 400, refused["error"])
        return None
    finally:
        # From here on the request counts it.
        connection.forget(message)


async def _answer(app: ASGIApp, scope: Scope, connection: Connection, body: bytes) -> None:
    is_read = False

    async def receive() -> AsgiMessage:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait({connection.closed})
        return {"type": "http.disconnect"}

    await app(_request(scope, len(body)), receive, _Events(connection).send)


def body_of(raw: bytes) -> bytes:
    """The body of the request for a message; what is not a JSON object is left to the route.

    Raises:
        UnknownEvent: the message is another one than `response.create`.
        InvalidRequest: it is to be prepared only.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return raw
    name = bytes(fields.pop("type", b"(none)"))
    if name != CREATE:
        raise UnknownEvent(name.decode(errors="replace").strip('"'))
    if bytes(fields.pop("generate", b"true")) == b"false":
        raise InvalidRequest("generate must be true: nothing is prepared here.", field="generate")
    fields["stream"] = msgspec.Raw(b"true")
    return msgspec.json.encode(fields)


def _request(scope: Scope, size: int) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name not in OF_HANDSHAKE]
    kept = ("asgi", "root_path", "path", "raw_path", "query_string", "client", "server")
    return {name: scope[name] for name in kept if name in scope} | {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": {"ws": "http", "wss": "https"}[scope["scheme"]],
        "headers": [
            *headers,
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % size),
        ],
        "state": dict(scope["state"]),
        "extensions": {},
    }


class _Events:
    """Sends the events of a response, or its error, as messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._rest = b""

    async def send(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
            return
        self._rest += message.get("body", b"")
        if self._headers.get(b"content-type", b"").startswith(EVENTS.encode()):
            *events, self._rest = self._rest.split(b"\n\n")
            for event in events:
                self._connection.send_text(event.partition(b"data: ")[2])
            await self._connection.room()
        elif self._rest and not message.get("more_body", False):
            headers = {
                name.decode(): self._headers[name].decode()
                for name in (REQUEST_ID, b"retry-after")
                if name in self._headers
            }
            body = msgspec.json.decode(self._rest)
            _send_error(self._connection, self._status, {**body["error"], "headers": headers})


def _send_error(connection: Connection, status: int, error: dict[str, Any]) -> None:
    event = {"type": "error", "status": status, "error": error}
    connection.send_text(msgspec.json.encode(event))
