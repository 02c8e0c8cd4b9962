"""A gateway's control socket, run by a test, to which workers connect."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from tests.support.patience import HANG_S
from websockets.asyncio.server import ServerConnection, serve

from parley.protocol.control import FromWorker, ToWorker

M = TypeVar("M")

_decoder = msgspec.json.Decoder(FromWorker)


class FakeGatewayControl:
    """Stores workers' messages in `heard`, sends with `say`, disconnects with `drop`."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.url = ""
        self._socket: ServerConnection | None = None
        self._changed = asyncio.Event()

    async def serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.headers.append({k.lower(): v for k, v in socket.request.headers.raw_items()})
        self.connections += 1
        self._socket = socket
        async for frame in socket:
            self.heard.append(_decoder.decode(frame))
            self._changed.set()

    async def say(self, message: ToWorker | str) -> None:
        assert self._socket is not None
        text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
        await self._socket.send(text)

    async def drop(self) -> None:
        assert self._socket is not None
        await self._socket.close()

    async def until(self, kind: type[M], count: int = 1, limit_s: float = HANG_S) -> M:
        async with asyncio.timeout(limit_s):
            while True:
                found = [message for message in self.heard if isinstance(message, kind)]
                if len(found) >= count:
                    return found[count - 1]
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def fake_gateway_control(
    port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeGatewayControl]:
    built = FakeGatewayControl()
    async with serve(built.serve, "127.0.0.1", port, ssl=tls) as server:
        address = next(iter(server.sockets)).getsockname()
        built.url = f"{'https' if tls else 'http'}://127.0.0.1:{address[1]}"
        yield built
