"""A server that plays recorded conversations, for testing clients without a server.

    async with FakeServer(find("half_duplex", "two turns")) as server:
        client = HalfDuplexClient(server.url)

Each connection plays the next conversation of the list (the last one repeatedly): server lines are
sent, client lines are awaited and must have the recorded type. `heard` contains the messages that
clients sent.
"""

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import Any, Self

from tests.support.patience import HANG_S
from tests.support.transcripts import Conversation
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed


@dataclass
class Drop:
    """In place of a conversation: cut the connection after `after` frames of `talk`, or
    immediately."""

    talk: Conversation | None = None
    after: int = 0


GOODBYES = {"stop", "session.close"}
STREAMED = {"audio_chunk", "input_audio_buffer.append"}
"""A client that streams may have sent more when it learns that it may stop."""


class _Left(Exception):
    """The client ended the session before the recorded end."""


class FakeServer:
    """Plays `talks`, one per connection, on a free loopback port."""

    def __init__(self, *talks: Conversation | Drop, ssl: Any = None) -> None:
        self._talks = list(talks)
        self._ssl = ssl
        self.heard: list[list[dict[str, Any]]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.mistakes: list[str] = []

    async def __aenter__(self) -> Self:
        self._server = await serve(self._play, "127.0.0.1", 0, ssl=self._ssl, max_size=None)
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        assert self.mistakes == []

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    async def _play(self, socket: ServerConnection) -> None:
        item = self._talks.pop(0) if len(self._talks) > 1 else self._talks[0]
        heard: list[dict[str, Any]] = []
        self.heard.append(heard)
        assert socket.request is not None
        self.paths.append(socket.request.path)
        self.headers.append(dict(socket.request.headers.raw_items()))
        talk = item.talk if isinstance(item, Drop) else item
        limit = item.after if isinstance(item, Drop) else None
        try:
            for index, line in enumerate(talk.lines if talk else ()):
                if limit is not None and index >= limit:
                    break
                if line.sender == "server":
                    await socket.send(line.raw)
                else:
                    await self._hear(socket, line.message, heard)
            if isinstance(item, Drop):
                socket.transport.abort()
            else:
                await socket.close(item.close_code or 1000)
        except ConnectionClosed:
            return  # The client disconnected in the middle.
        except _Left:
            await socket.close(1000)

    async def _hear(
        self, socket: ServerConnection, expected: dict[str, Any] | None, heard: list[dict[str, Any]]
    ) -> None:
        assert expected is not None, "only well-formed conversations can be played to a client"
        async with asyncio.timeout(HANG_S):
            message = json.loads(await socket.recv())
            heard.append(message)
            while expected.get("type") in GOODBYES and message.get("type") in STREAMED:
                message = json.loads(await socket.recv())
                heard.append(message)
        if message.get("type") in GOODBYES and expected.get("type") not in GOODBYES:
            raise _Left
        if message.get("type") != expected.get("type"):
            self.mistakes.append(f"expected {expected.get('type')}, heard {message.get('type')}")


class Elsewhere:
    """A FakeServer in a separate thread."""

    def __init__(self, *talks: Conversation) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = FakeServer(*talks)
        asyncio.run_coroutine_threadsafe(self.server.__aenter__(), self._loop).result(HANG_S)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.__aexit__(), self._loop).result(HANG_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
