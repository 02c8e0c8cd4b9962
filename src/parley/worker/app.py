"""The worker's routes: one socket per lease, a health page, and recordings for the gateway.

A thin layer: it checks the caller, reads the lease from the headers and passes the socket to the
host.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from parley import logs
from parley.engine.engine import SlotHandle
from parley.errors import ParleyError, Refused, ServiceUnavailable
from parley.media import decoder
from parley.protocol import codec
from parley.protocol.control import (
    BUSY_STATUS,
    CALLER_HEADER,
    CUT_CODE,
    EXTENSIONS_HEADER,
    FOLLOW_HEADER,
    INCOMPLETE_STATUS,
    KIND_HEADER,
    LEASE_HEADER,
    NOTE_HEADER,
    PARAMETERS_HEADER,
    QUEUE_WAIT_HEADER,
    REBUILD_HEADER,
    RECORDINGS_PATH,
    RESUME_HEADER,
    RESUME_STATUSES,
    SECRET_HEADER,
    SESSION_HEADER,
    SESSION_PATH,
    UNKNOWN_DIALECT_STATUS,
    WHY_HEADER,
)
from parley.protocol.kinds import Kind
from parley.protocol.networks import host_name, is_private_name
from parley.protocol.resume import REFUSED_CODE, ResumeRefusal
from parley.recording.store import StillRecording
from parley.session.resumable import ResumeRefused
from parley.session.socket import Disconnected
from parley.tracing import TRACE_HEADER
from parley.transport import connection_of
from parley.transport.peer import Peer
from parley.worker.finished import FinishedRecordings, tar_bytes, tar_files, tar_pieces
from parley.worker.host import Host
from parley.worker.lease import LeasedSlot
from parley.worker.socket import GatewaySocket

FORBIDDEN = 1008

log = logs.get(__name__)
_parameters = msgspec.json.Decoder(dict[str, str])

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
"""The health page before the model is loaded."""


def make_app(
    find_host: Callable[[], Host | None],
    *,
    secret: str | None = None,
    finished: FinishedRecordings | None = None,
    name: str = "",
) -> ASGIApp:
    """The worker's application.

    Args:
        find_host: returns the host once the model is loaded.
        secret: the value that the gateway must send in `SECRET_HEADER`. Without one, only programs
            of this worker's user on this machine may call.
        finished: recordings that the gateway may fetch.
        name: of this worker in the gateway's address for it.
    """

    async def session(socket: WebSocket) -> None:
        name = socket.path_params["dialect"]
        if not _is_welcome(socket, secret):
            await socket.close(FORBIDDEN)
            return
        lease = _lease(name, socket.headers)
        if lease is None:
            await socket.close(FORBIDDEN)
            return
        decoder.owner.set(lease.owner)
        host = find_host()
        if host is None:
            await _refuse(socket, "The model is loading.")
            return
        if RESUME_HEADER in socket.headers:
            await _resume(socket, host, lease)
            return
        if host.dialects.find(name) is None:
            sentence = "This worker does not speak that dialect."
            await _refuse(socket, sentence, UNKNOWN_DIALECT_STATUS)
            return
        try:
            slot = await host.admit(lease)
        except Refused as error:
            await _refuse(socket, str(error))
            return
        try:
            await socket.accept()
        except BaseException:
            # The gateway has disconnected meanwhile.
            await asyncio.shield(slot.close())
            raise
        wire = GatewaySocket(connection_of(socket), host.frame_limit_bytes(lease.kind))
        if REBUILD_HEADER in socket.headers:
            await _rebuild(host, lease, slot, wire, follows=FOLLOW_HEADER in socket.headers)
        else:
            await host.hold(lease, slot, wire)

    async def health(request: Request) -> JSONResponse:
        host = find_host()
        # A rollout waits for 200 before it replaces the next worker.
        return JSONResponse(LOADING, 503) if host is None else JSONResponse(host.health())

    routes = [Route("/health", health), WebSocketRoute(SESSION_PATH, session)]
    app = Starlette(routes=routes + (_recording_routes(finished, secret) if finished else []))
    return _NoPages(app, name.lower())


class _NoPages:
    """ASGI middleware that refuses browsers: pages of any origin, including a site that has pointed
    its own public name at this machine."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            named = (host_name(f"//{headers.get('host', '')}") or "").rstrip(".")
            if "origin" in headers:
                refusal = PlainTextResponse("Pages may not talk to a worker.", 403)
            elif "host" in headers and named != self._name and not is_private_name(named):
                refusal = PlainTextResponse("This worker has another name.", 421)
        await (refusal or self._app)(scope, receive, send)


def _recording_routes(finished: FinishedRecordings, secret: str | None) -> list[BaseRoute]:
    """Routes for the gateway only: list finished recordings, fetch one, and remove it."""

    def checked(work: Callable[[Request], Awaitable[Response]]) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            if not _is_welcome(request, secret):
                return PlainTextResponse("The worker secret does not match.", 403)
            return await work(request)

        return answer

    async def ready(request: Request) -> Response:
        del request
        return JSONResponse({"recordings": await asyncio.to_thread(finished.ready)})

    async def one(request: Request) -> Response:
        recording_id = request.path_params["recording_id"]
        folder = await asyncio.to_thread(finished.find, recording_id)
        if folder is None and await asyncio.to_thread(finished.is_coming, recording_id):
            return PlainTextResponse("It is not complete yet.", INCOMPLETE_STATUS)
        if folder is None:
            return PlainTextResponse("There is no such recording.", 404)
        files = await asyncio.to_thread(tar_files, folder)
        return StreamingResponse(
            tar_pieces(folder, files),
            media_type="application/x-tar",
            headers={"content-length": str(tar_bytes(files))},
        )

    async def release(request: Request) -> Response:
        try:
            there = await asyncio.to_thread(finished.release, request.path_params["recording_id"])
        except StillRecording as error:
            return PlainTextResponse(str(error), error.http_status)
        return Response(status_code=204 if there else 404)

    path = RECORDINGS_PATH + "/{recording_id}"
    return [
        Route(RECORDINGS_PATH, checked(ready)),
        Route(path, checked(one)),
        Route(path, checked(release), methods=["DELETE"]),
    ]


async def _rebuild(
    host: Host, lease: LeasedSlot, slot: SlotHandle, wire: GatewaySocket, *, follows: bool
) -> None:
    """Continue a session of another worker."""
    try:
        await host.rebuild(lease, slot, wire, follows=follows)
    except (ParleyError, Disconnected) as error:
        log.warning("session_not_rebuilt", session_id=lease.session_id, why=str(error))
        await wire.close(1011, "not rebuilt")


async def _resume(socket: WebSocket, host: Host, lease: LeasedSlot) -> None:
    token_hash, *numbers = socket.headers[RESUME_HEADER].split(" ")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        await socket.close(FORBIDDEN)
        return
    after, sent = map(int, numbers)
    wire = GatewaySocket(connection_of(socket), host.frame_limit_bytes(lease.kind))
    try:
        host.resumable(lease.lease_id).check(token_hash, after)
        await socket.accept()
        await host.resumable(lease.lease_id).attach(wire, token_hash, after, sent)
    except ResumeRefused as error:
        if socket.application_state is WebSocketState.CONNECTING:
            await _refuse(socket, str(error), RESUME_STATUSES[error.reason], why=error.why)
        else:
            # The conditions have changed since the handshake.
            refusal = ResumeRefusal(reason=error.reason, message=str(error))
            with contextlib.suppress(Disconnected):
                await wire.send(codec.encode(refusal))
            await wire.close(REFUSED_CODE, error.reason)
    except ServiceUnavailable as error:
        if socket.application_state is WebSocketState.CONNECTING:
            await _refuse(socket, str(error))
        else:
            await wire.close(CUT_CODE, "try again")


async def _refuse(
    socket: WebSocket, sentence: str, status: int = BUSY_STATUS, *, why: str = ""
) -> None:
    """Refuse before the socket is open: the client is not affected, and the gateway decides."""
    headers = {WHY_HEADER: why} if why.isascii() and why.isprintable() else {}
    await socket.send_denial_response(PlainTextResponse(sentence, status, headers))


def _is_welcome(socket: HTTPConnection, secret: str | None) -> bool:
    if secret is not None:
        brought = socket.headers.get(SECRET_HEADER, "")
        return hmac.compare_digest(brought.encode(), secret.encode())
    return Peer.of(socket.scope, socket.headers).is_own_program


def _lease(dialect: str, headers: Mapping[str, str]) -> LeasedSlot | None:
    """The lease from the gateway's headers; None if they have none."""
    kind = headers.get(KIND_HEADER, "")
    lease_id = headers.get(LEASE_HEADER, "")
    session_id = headers.get(SESSION_HEADER, "")
    if not lease_id or not session_id:
        return None
    try:
        known = Kind(kind)
        return LeasedSlot(
            lease_id=lease_id,
            session_id=session_id,
            dialect=dialect,
            kind=known,
            queue_wait_ms=float(headers.get(QUEUE_WAIT_HEADER, "0")),
            extensions=headers.get(EXTENSIONS_HEADER) == "true",
            parameters=_parameters.decode(headers.get(PARAMETERS_HEADER, "{}")),
            caller=headers.get(CALLER_HEADER, ""),
            trace=headers.get(TRACE_HEADER, ""),
            note=headers.get(NOTE_HEADER, ""),
            log_id=headers.get(REBUILD_HEADER, ""),
        )
    except ValueError:
        return None
