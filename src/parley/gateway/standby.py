"""A standby gateway: it listens on its port, so that load balancers and workers find it, and
refuses everything else.

It opens no file of the data folder, which belongs to the active gateway. It shares the listening
socket with the gateway that runs next in this process, so the port is never closed in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from parley import __version__, logs
from parley.gateway.leadership import Leadership
from parley.protocol.control import STANDBY_HEADER
from parley.tasks import end_tasks
from parley.transport import OpenConnections, UvicornServer

RETRY_AFTER_S: Final = 1
STATUS: Final = 502
"""Proxies ask the next gateway after this answer; a 503 is the active one's, with a reason."""

log = logs.get(__name__)


async def stand_by(
    leadership: Leadership,
    listener: socket.socket,
    *,
    tls: ssl.SSLContext | None,
    clients: OpenConnections,
    url: str,
    stopping: asyncio.Event,
) -> bool:
    """Wait until this gateway becomes active; returns False if it is stopped first.

    Args:
        listener: the listening socket of clients and workers; stays open.
        tls: of the gateway that runs next.
        url: of this gateway, for the log.
    """
    acquiring = asyncio.create_task(leadership.acquire(), name="leadership")
    stopped = asyncio.create_task(stopping.wait())
    try:
        # If no gateway is active, do not log that this one waits.
        await asyncio.wait({acquiring, stopped}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done() and not stopping.is_set():
            async with answering_as_standby(listener, tls, clients):
                log.info("gateway_on_standby", url=url, leader=leadership.leader or "unknown")
                await asyncio.wait({acquiring, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if acquiring.done():
            acquiring.result()
        return acquiring.done() and not stopping.is_set()
    finally:
        await end_tasks(acquiring, stopped)


@contextlib.asynccontextmanager
async def answering_as_standby(
    listener: socket.socket, tls: ssl.SSLContext | None, clients: OpenConnections
) -> AsyncIterator[None]:
    """Refuse everything on a listening socket, which stays open."""
    server = UvicornServer(
        refuse, tls=tls, clients=clients, proxy_headers=False, timeout_graceful_shutdown=1
    )
    # A second descriptor of the same socket, because uvicorn closes the one that it gets.
    serving = asyncio.create_task(server._serve([listener.dup()]), name="standby")
    try:
        yield
    finally:
        server.end()
        await serving


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    answer = _answer_at("" if scope["type"] == "websocket" else scope["path"])
    answer.headers.update({"retry-after": str(RETRY_AFTER_S), STANDBY_HEADER: "1"})
    await answer(scope, receive, send)


def _answer_at(path: str) -> Response:
    why = "This gateway is on standby; another one is active."
    match path:
        case "/health":
            return JSONResponse({"status": "standby", "healthy": True, "version": __version__})
        case "/ready":
            return JSONResponse({"ready": False, "why": why}, STATUS)
        case "/metrics":
            text = "# TYPE parley_gateway_active gauge\nparley_gateway_active 0.0\n"
            return PlainTextResponse(text)
        case _:
            return JSONResponse({"detail": why, "code": "service_unavailable"}, STATUS)
