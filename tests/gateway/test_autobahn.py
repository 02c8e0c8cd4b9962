"""The Autobahn case files against our end of a WebSocket, with the relay and a worker's library
behind it.

Takes minutes and a package that nothing else needs, so it runs when it is asked for:

    pip install kosoku
    PARLEY_AUTOBAHN=1 python -m pytest -n 0 tests/gateway/test_autobahn.py
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from parley.gateway.session_relay import relay
from parley.transport.client import dial
from parley.transport.http import BoundedHttp
from parley.transport.keepalive import Keepalive
from parley.transport.limits import ConnectionLimits, Traffic
from parley.transport.server import ServerConnection, connection_of

CASES = {
    "framing": ["1.*", "2.*", "3.*", "4.*", "5.*", "10.*"],
    "text": ["6.*", "7.*"],
    "limits": ["9.*"],
}
"""Without 12 and 13: compression is declined."""

MESSAGE_BYTES = 64 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not os.environ.get("PARLEY_AUTOBAHN"), reason="takes minutes: set PARLEY_AUTOBAHN=1"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("kosoku") is None, reason="needs the package kosoku"
    ),
]


@contextlib.asynccontextmanager
async def served(app: Starlette, **config: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, **config)
    )
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  (uvicorn offers no event)
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def echo(socket: WebSocket) -> None:
    """What a worker's session socket does, without a session."""
    await socket.accept()
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        if (text := message.get("text")) is not None:
            await socket.send_text(text)
        else:
            await socket.send_bytes(message["bytes"])


def gateway(worker_port: int) -> Starlette:
    """Accepts, dials, relays and closes as the gateway does."""
    keepalive = Keepalive()
    limits = ConnectionLimits(message_bytes=MESSAGE_BYTES, output_bytes=2 * MESSAGE_BYTES)

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        client = connection_of(socket)
        upstream = await dial(
            f"ws://127.0.0.1:{worker_port}/",
            headers={},
            limits=limits,
            keepalive=keepalive,
            open_limit_s=30.0,
        )
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end = await relay(client, upstream, lost=lost, up=Traffic(), down=Traffic())
        if end.who == "client":
            upstream.close(end.closure.code if end.closure.is_clean else 1001, end.closure.reason)
        else:
            client.close(end.closure.code, end.closure.reason)
        await asyncio.wait({client.gone})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        yield {"keepalive": keepalive, "connection_limits": limits}

    return Starlette(routes=[WebSocketRoute("/{path:path}", serve)], lifespan=lifespan)


def read_report(folder: Path) -> dict[str, str]:
    """Case → verdict."""
    (index,) = folder.rglob("index.json")
    (results,) = json.loads(index.read_text()).values()
    return {case: result["behavior"] for case, result in results.items()}


@pytest.mark.parametrize("group", list(CASES))
async def test_every_autobahn_case_passes_through_gateway_and_relay(group: str, tmp_path: Path):
    worker = Starlette(routes=[WebSocketRoute("/", echo)])
    async with (
        served(
            worker,
            ws="websockets-sansio",
            ws_max_size=MESSAGE_BYTES,
            ws_per_message_deflate=False,
        ) as worker_port,
        served(gateway(worker_port), http=BoundedHttp, ws=ServerConnection) as port,
    ):
        chosen = [word for case in CASES[group] for word in ("-i", case)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "import sys; from kosoku._cli import main; sys.exit(main())"),
            *("-m", "fuzzingclient", f"127.0.0.1:{port}", "-o", str(tmp_path), *chosen),
        )
        await process.wait()

    behaviors = read_report(tmp_path)
    print(group, {value: list(behaviors.values()).count(value) for value in behaviors.values()})
    good = {"OK", "NON-STRICT", "INFORMATIONAL"}
    assert len(behaviors) >= 50
    assert {case: one for case, one in behaviors.items() if one not in good} == {}
