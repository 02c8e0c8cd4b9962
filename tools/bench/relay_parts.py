"""The other processes of the bench `relay`: a real gateway, and a worker that only answers.

`python -m tools.bench.relay_parts gateway [CERTIFICATE_FOLDER]` and `… worker GATEWAY_URL SLOTS
DOWN_BYTES`. Each prints its address as its first line and stops at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
import uvloop
import websockets
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from parley import __version__, logs
from parley.gateway.main import Gateway
from parley.protocol.control import (
    BEAT_EVERY_S,
    CONTROL_PATH,
    KIND_HEADER,
    LEASE_HEADER,
    SESSION_HEADER,
    SESSION_PATH,
    Goodbye,
    Heartbeat,
    Hello,
    SessionPhase,
)
from parley.protocol.kinds import Phase
from parley.settings import GatewaySettings, LimitSettings, Settings
from parley.transport import (
    ConnectionClosed,
    ConnectionLimits,
    Keepalive,
    Message,
    OpenConnections,
    ServerConnection,
    connection_of,
)
from parley.transport.framing import TEXT, frame

SESSIONS_LIMIT: Final = 100_000


def raise_file_limit() -> None:
    """Raise the limit of open files: every session needs several sockets."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def end_of_input() -> None:
    """Return when the parent process has closed our standard input or has ended."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()


async def run_gateway(certificates: Path | None) -> None:
    """Run a gateway as in production, without limits per address; with TLS if a folder for its
    certificate is given. Prints the address for clients and, after a space, the one for workers."""
    folder = certificates or Path()
    settings = Settings(
        gateway=GatewaySettings(
            host="127.0.0.1",
            port=0,
            http=certificates is None,
            ssl_certfile=folder / "cert.pem",
            ssl_keyfile=folder / "key.pem",
        ),
        limits=LimitSettings(sessions_per_client=SESSIONS_LIMIT, realtime_audio_s=86_400.0),
    )
    gateway = Gateway(settings)
    started = asyncio.Event()
    serving = asyncio.create_task(gateway.serve(started.set))
    await started.wait()
    scheme = "http" if certificates is None else "https"
    print(f"{scheme}://127.0.0.1:{gateway.port} {await gateway.open_internal()}", flush=True)
    await end_of_input()
    gateway.stop_now()
    await serving


class AnsweringWorker:
    """Worker that answers every message of a session with one of `down_bytes`."""

    def __init__(self, gateway_url: str, slots: int, down_bytes: int) -> None:
        self._gateway_url = gateway_url
        self._slots = slots
        payload = b'{"type":"result","audio_data":"' + b"A" * down_bytes + b'"}'
        self._answer = Message(TEXT, [frame(TEXT, payload, mask=False)], len(payload))
        self._phases: asyncio.Queue[SessionPhase] = asyncio.Queue()
        self._busy = 0

    async def run(self) -> None:
        """Serve until standard input ends."""
        routes = [Route("/health", _health), WebSocketRoute(SESSION_PATH, self._session)]
        app = Starlette(routes=routes, lifespan=_lifespan)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, ws=ServerConnection, log_config=None, backlog=4096
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve())
        while not server.started:  # noqa: ASYNC110  (uvicorn offers no event)
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        control = asyncio.create_task(self._report(url))
        print(url, flush=True)
        await end_of_input()
        control.cancel()
        server.should_exit = True
        await asyncio.gather(serving, control, return_exceptions=True)

    async def _report(self, url: str) -> None:
        hello = Hello("bench", url, self._slots, "answering", "none", __version__, os.getpid())
        address = "ws" + self._gateway_url.removeprefix("http") + CONTROL_PATH
        async with websockets.connect(address, ping_interval=None) as socket:
            await socket.send(msgspec.json.encode(hello).decode())
            try:
                await self._keep_reporting(socket)
            finally:
                await socket.send(msgspec.json.encode(Goodbye("measured")).decode())

    async def _keep_reporting(self, socket: websockets.ClientConnection) -> None:
        while True:
            heartbeat = Heartbeat("idle", self._slots - self._busy, 0, 0, 0)
            await socket.send(msgspec.json.encode(heartbeat).decode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_EVERY_S):
                    while True:
                        await socket.send(msgspec.json.encode(await self._phases.get()).decode())

    async def _session(self, websocket: WebSocket) -> None:
        await websocket.accept()
        connection = connection_of(websocket)
        lease_id = websocket.headers.get(LEASE_HEADER, "direct")
        session_id = websocket.headers.get(SESSION_HEADER, "direct")
        kind: Any = websocket.headers.get(KIND_HEADER, "audio_duplex")
        counts = lease_id != "direct"
        self._busy += counts
        self._phases.put_nowait(SessionPhase(lease_id, session_id, kind, Phase.ACTIVE, True))
        try:
            while True:
                await connection.receive()
                connection.pass_on(self._answer)
        except ConnectionClosed:
            return
        finally:
            self._busy -= counts
            self._phases.put_nowait(SessionPhase(lease_id, session_id, kind, Phase.ENDED, True))


async def _health(request: Request) -> JSONResponse:
    """Health check: a gateway assigns clients only to workers that answer it."""
    return JSONResponse({"status": "ok"})


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    yield {
        "keepalive": Keepalive(),
        "connection_limits": ConnectionLimits(),
        "open_connections": OpenConnections(),
    }


def main(words: list[str]) -> None:
    """Run one of the processes."""
    raise_file_limit()
    logs.configure(level="warning")
    match words:
        case ["gateway", *folder]:
            uvloop.run(run_gateway(Path(folder[0]) if folder else None))
        case ["worker", gateway_url, slots, down_bytes]:
            uvloop.run(AnsweringWorker(gateway_url, int(slots), int(down_bytes)).run())
        case _:
            raise SystemExit(f"unknown part: {words}")


if __name__ == "__main__":
    main(sys.argv[1:])
