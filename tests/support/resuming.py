"""A client for docs/protocols/resume.md, written from that page only: it does not share code with
the SDK."""

import asyncio
import contextlib
import json
from collections import deque
from typing import Any

from tests.support.patience import HANG_S, PROCESS_S
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.protocol.resume import REFUSED_CODE

AGAIN_S = 0.1


class ResumeFailed(Exception):
    """The server refused to resume; `args[0]` contains its reason and message."""


class ResumingClient:
    """One session over any number of connections.

    `heard` contains every numbered message once, without its numbers; `doubles` counts those that
    arrived again.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.socket: ClientConnection | None = None
        self.abandoned: list[ClientConnection] = []
        self.token = ""
        self.session_id = ""
        self.window_s = 0.0
        self.seq = 0
        self.generation = 0
        self.heard: list[dict[str, Any]] = []
        self.other: list[dict[str, Any]] = []
        self.doubles = self.holes = self.resumes = 0
        self._base = 0
        self._unsure: deque[str] = deque()

    async def begin(self, *, session_id: str = "", first: dict[str, Any]) -> dict[str, Any]:
        """Wait until the session is ready; returns that message."""
        self.session_id = session_id
        self.socket = await connect(self.url, max_size=None, compression=None)
        if "/live/" not in self.url:
            # OpenAI Realtime starts with `session.created`, the others with messages about the
            # queue.
            async with asyncio.timeout(PROCESS_S):
                while not (await self._next())["type"].endswith(("queue_done", "session.created")):
                    pass
        await self.say(first)
        ready = await self.hear()
        self.session_id = self.session_id or ready.get("session_id") or ready["session"]["id"]
        return ready

    async def say(self, message: dict[str, Any]) -> None:
        """Send a message, now or after the next `resume`."""
        text = json.dumps(message)
        self._unsure.append(text)
        if self.socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await self.socket.send(text)

    async def ack(self) -> None:
        await self._control(type="session.ack", seq=self.seq, generation=self.generation)

    async def hear(self) -> dict[str, Any]:
        """The next numbered message; resumes if the connection has ended. Other messages, which
        arrive as long as a session lives, do not extend the time limit."""
        async with asyncio.timeout(PROCESS_S):
            return await self._hear()

    async def _hear(self) -> dict[str, Any]:
        while True:
            try:
                message = await self._next()
            except ConnectionClosed:
                await self.resume()
                continue
            if "seq" not in message:
                self._take_input_ack(message.get("received"))
                self.other.append(message)
                continue
            seq, received = message.pop("seq"), message.pop("received")
            self._take_input_ack(received)
            if seq <= self.seq:
                self.doubles += 1
                continue
            self.holes += seq - self.seq - 1
            self.seq = seq
            self.token = message.pop("resume_token", self.token)
            self.window_s = message.pop("resume_window_s", self.window_s)
            self.heard.append(message)
            return message

    def cut(self) -> None:
        """Break the connection without a close."""
        if self.socket is not None:
            self.socket.transport.abort()
            self.socket = None

    def half_open(self) -> None:
        """Abandon the connection; the server does not notice it."""
        if self.socket is not None:
            self.socket.transport.pause_reading()
            self.abandoned.append(self.socket)
            self.socket = None

    async def resume(self) -> dict[str, Any]:
        """Resume the session; returns the server's answer."""
        self.cut()
        while True:
            self.socket = await connect(
                self.url + ("&" if "?" in self.url else "?") + "resume=true",
                max_size=None,
                compression=None,
            )
            await self._control(
                type="session.resume",
                session_id=self.session_id,
                resume_token=self.token,
                seq=self.seq,
            )
            try:
                answer = await self._next()
            except ConnectionClosed:
                assert self.socket.close_code != REFUSED_CODE
                # Like real clients: repeated immediate connections would be treated as a flood.
                await asyncio.sleep(AGAIN_S)
                continue
            break
        if answer["type"] == "session.resume_failed":
            raise ResumeFailed(f"{answer['reason']}: {answer['message']}")
        assert answer["type"] == "session.resumed", answer
        self.resumes += 1
        self.token, self.generation = answer["resume_token"], answer["generation"]
        self._take_input_ack(answer["received"])
        await self.ack()
        for text in list(self._unsure):
            await self.socket.send(text)
        return answer

    async def leave(self) -> None:
        """End the session in a dialect without a message for it: the server does not wait for a
        return."""
        if self.socket is not None:
            await self.socket.close()

    async def close(self) -> None:
        for socket in (*self.abandoned, self.socket):
            if socket is not None:
                socket.transport.abort()
        self.socket = None

    async def _control(self, **message: Any) -> None:
        if self.socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await self.socket.send(json.dumps(message))

    async def _next(self) -> dict[str, Any]:
        if self.socket is None:
            await self.resume()
        assert self.socket is not None
        async with asyncio.timeout(HANG_S):
            message: dict[str, Any] = json.loads(await self.socket.recv())
            return message

    def _take_input_ack(self, received: int | None) -> None:
        if received is None:
            return
        while self._base < received and self._unsure:
            self._base += 1
            self._unsure.popleft()


class WaitingClient(ResumingClient):
    """Waits after `waits_after` messages until the test, which waits for all clients, lets it
    continue."""

    waits_after = -1
    there: asyncio.Semaphore
    may_continue: asyncio.Event

    async def hear(self) -> dict[str, Any]:
        message = await super().hear()
        if len(self.heard) == self.waits_after:
            self.there.release()
            await self.may_continue.wait()
        return message
