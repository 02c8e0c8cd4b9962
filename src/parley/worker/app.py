"""The worker's two routes: one socket per lease, and a health page.

A thin shell: it checks who is calling, reads the lease out of the headers and hands the socket to
the host.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from parley.errors import TooLarge
from parley.protocol.control import (
    ACCEPTED_HEADER,
    LEASE_HEADER,
    QUEUE_WAIT_HEADER,
    SECRET_HEADER,
    SESSION_HEADER,
    SESSION_PATH,
    TASK_HEADER,
    TaskType,
)
from parley.protocol.dialects import DIALECTS, DialectName
from parley.session.life import Disconnected
from parley.worker.host import Host, Lease

FORBIDDEN = 1008
TRY_LATER = 1013

LOADING = {
    "status": "initializing",
    "worker_status": "loading",
    "gpu_id": None,
    "model_loaded": False,
    "current_session_id": None,
    "total_requests": 0,
    "avg_inference_time_ms": 0.0,
    "kv_cache_length": 0,
}
"""The health page before there is a model."""


def make_app(find_host: Callable[[], Host | None], *, secret: str | None = None) -> Starlette:
    """The worker's application.

    Args:
        find_host: the host, once the model is there.
        secret: what the gateway must send in `SECRET_HEADER`. Without one only loopback may call.
    """

    async def session(socket: WebSocket) -> None:
        name = socket.path_params["dialect"]
        if name not in DIALECTS or not _is_welcome(socket, secret):
            await socket.close(FORBIDDEN)
            return
        lease = _lease(cast(DialectName, name), socket.headers)
        if lease is None:
            await socket.close(FORBIDDEN)
            return
        host = find_host()
        await socket.accept()
        if host is None:
            await socket.close(TRY_LATER)
            return
        await host.hold(lease, _Socket(socket, host.frame_limit_bytes(lease.dialect)))

    async def health(request: Request) -> JSONResponse:
        host = find_host()
        return JSONResponse(LOADING if host is None else host.health())

    return Starlette(
        routes=[
            Route("/health", health),
            WebSocketRoute(SESSION_PATH, session),
        ]
    )


def _is_welcome(socket: WebSocket, secret: str | None) -> bool:
    if secret is not None:
        brought = socket.headers.get(SECRET_HEADER, "")
        return hmac.compare_digest(brought.encode(), secret.encode())
    if socket.client is None:
        return False
    try:
        return ipaddress.ip_address(socket.client.host).is_loopback
    except ValueError:
        return False


def _lease(dialect: DialectName, headers: Mapping[str, str]) -> Lease | None:
    """The lease as the gateway wrote it; None when it did not."""
    task = headers.get(TASK_HEADER, "")
    lease_id = headers.get(LEASE_HEADER, "")
    session_id = headers.get(SESSION_HEADER, "")
    if task not in get_args(TaskType) or not lease_id or not session_id:
        return None
    try:
        accepted = headers.get(ACCEPTED_HEADER)
        return Lease(
            lease_id=lease_id,
            session_id=session_id,
            dialect=dialect,
            task=cast(TaskType, task),
            accepted_s=None if accepted is None else float(accepted),
            queue_wait_ms=float(headers.get(QUEUE_WAIT_HEADER, "0")),
        )
    except ValueError:
        return None


class _Socket:
    """A Starlette socket as the session's `Socket`."""

    def __init__(self, socket: WebSocket, limit_bytes: int) -> None:
        self._socket = socket
        self._limit_bytes = limit_bytes
        self._is_closed = False

    async def receive(self) -> str | bytes:
        try:
            message: Any = await self._socket.receive()
        except (RuntimeError, OSError) as error:
            raise Disconnected from error
        if message["type"] == "websocket.disconnect":
            self._is_closed = True
            raise Disconnected
        frame: str | bytes = message.get("text") or message.get("bytes") or ""
        if len(frame) > self._limit_bytes:
            raise TooLarge("The message", len(frame), self._limit_bytes)
        return frame

    async def send(self, text: str) -> None:
        try:
            await self._socket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            self._is_closed = True
            raise Disconnected from error

    async def close(self, code: int, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._socket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise Disconnected from error
