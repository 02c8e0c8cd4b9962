"""A client network whose connections can be dropped or left half-open, and that can be down."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from parley.client.access import Access, Socket, SocketClosed, Unreachable
from parley.client.connection import NetworkSocket, NetworkTransport
from parley.tasks import end_tasks


class BreakableNetwork:
    """Network that breaks its newest connection on request.

    Args:
        dice: choose between a dropped and a half-open connection; None: never broken.
        heard: called with every received message, before the client receives it.
    """

    def __init__(
        self,
        dice: random.Random | None = None,
        heard: Callable[[str | bytes], None] = lambda frame: None,
    ) -> None:
        self._network = NetworkTransport()
        self._dice = dice or random.Random(0)
        self._heard = heard
        self._newest: BreakableSocket | None = None
        self._sockets: list[BreakableSocket] = []
        self._back_s = 0.0
        self.breaks = 0
        self.silent_breaks = 0
        self.is_explained = True
        """True if the most recently lost connection was broken by this network."""
        self._explained = 0

    async def connect(self, access: Access, url: str) -> Socket:
        if time.monotonic() < self._back_s:
            raise Unreachable(url, "the network is down.", may_pass=True)
        socket = await self._network.connect(access, url)
        self._newest = BreakableSocket(socket, self._heard)
        self._sockets.append(self._newest)
        return self._newest

    def finish(self) -> None:
        """Close half-open connections."""
        for socket in self._sockets:
            socket.abort()
        self._sockets.clear()

    def requests(self, access: Access) -> None:
        """Requests use the default for HTTP."""

    def explain(self) -> None:
        """Update `is_explained` after a connection was lost."""
        self.is_explained = self.breaks > self._explained
        self._explained = self.breaks

    def break_off(self, down_s: float = 0.0) -> None:
        """Break the connection. This end is notified; in half of the cases the far end is not, and
        only receives nothing more. `down_s`: time for which no connection can be made."""
        if self._newest is None:
            return
        is_silent = self._dice.random() < 0.5
        self.breaks += 1
        self.silent_breaks += is_silent
        self._back_s = time.monotonic() + down_s
        self._newest.break_off(is_silent=is_silent)


class BreakableSocket:
    """A socket of the client that can be broken."""

    def __init__(self, socket: NetworkSocket, heard: Callable[[str | bytes], None]) -> None:
        self._socket = socket
        self._heard = heard
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receiving: asyncio.Future[str | bytes] | None = None
        self._is_silent = False

    def break_off(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent
        if not self._broken.done():
            self._broken.set_result(None)

    async def send(self, frame: str | bytes) -> None:
        if self._broken.done():
            raise SocketClosed(1006, "broken")
        await self._socket.send(frame)

    async def receive(self) -> str | bytes:
        receiving = self._receiving or asyncio.ensure_future(self._socket.receive())
        self._receiving = receiving
        first: set[asyncio.Future[Any]] = {receiving, self._broken}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            raise SocketClosed(1006, "broken")
        self._receiving = None
        frame = receiving.result()
        self._heard(frame)
        return frame

    async def close(self) -> None:
        if self._receiving is not None:
            await end_tasks(self._receiving)
        if not self._broken.done():
            await self._socket.close()
        elif not self._is_silent:
            self._socket.abort()

    def abort(self) -> None:
        self._socket.abort()
