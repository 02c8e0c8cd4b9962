"""A fake worker: real sockets, the real control protocol, no model.

It connects to the gateway like a worker and answers each dialect with the minimum of messages for a
conversation. Tests control it: it can die, stop sending, refuse, or delay its cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from tests.support.patience import HANG_S

from parley.protocol.control import (
    CONTROL_PATH,
    KIND_HEADER,
    LEASE_HEADER,
    SECRET_HEADER,
    SESSION_HEADER,
    SESSION_PATH,
    EndSession,
    Goodbye,
    Heartbeat,
    Hello,
    Leave,
    SessionPhase,
    StopResult,
    StopTurn,
    ToWorker,
    Welcome,
)

_decoder = msgspec.json.Decoder(ToWorker)
_pids = iter(range(100_000, 1_000_000))


class StandInWorker:
    """`async with StandInWorker(gateway_url) as worker`: connected and welcomed within the
    context."""

    def __init__(
        self,
        gateway_url: str,
        *,
        name: str = "stand-in",
        slots: int = 1,
        secret: str | None = None,
        beat_every_s: float = 0.05,
    ) -> None:
        self.gateway_url = gateway_url
        self.name = name
        self.slots = slots
        self.secret = secret
        self.beat_every_s = beat_every_s
        self.pid = next(_pids)
        self.version, self.build = "0", ""
        self.url = ""
        self.state = "idle"
        self.problem = ""
        self.headers: list[dict[str, str]] = []
        self.heard: list[Any] = []
        """All messages of clients, parsed, in order."""
        self.ended: list[str] = []
        """Session ids, in the order in which they ended."""
        self.most_at_once = 0
        self.sessions: dict[str, WebSocket] = {}
        self.leases: dict[str, str] = {}
        """Lease id → session id."""
        self.may_clean_up = asyncio.Event()
        self.may_clean_up.set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.joined = asyncio.Event()
        self.kept: tuple[SessionPhase, ...] = ()
        """Sessions that it reports as kept."""
        self.answers_health = True
        self._server: uvicorn.Server | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._control: websockets.ClientConnection | None = None
        self._is_silent = False
        self.is_dead = False
        """True if it was killed."""
        self._busy = 0

    async def __aenter__(self) -> StandInWorker:
        try:
            await self.listen()
            await self.join()
        except BaseException:
            # `__aexit__` is not called if `__aenter__` fails.
            await self.leave()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.leave()

    async def listen(self) -> None:
        app = Starlette(
            routes=[
                Route("/health", self._health),
                WebSocketRoute(SESSION_PATH, self._session),
            ]
        )
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            ws="websockets-sansio",
            ws_max_size=1 << 28,
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._tasks.append(asyncio.create_task(self._server._serve()))
        while not self._server.started:  # noqa: ASYNC110  (uvicorn offers no event)
            await asyncio.sleep(0.005)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def join(self) -> None:
        """Connect to the control socket and wait for the welcome."""
        self.joined.clear()
        self._tasks.append(asyncio.create_task(self._talk_to_gateway()))
        await asyncio.wait_for(self.joined.wait(), HANG_S)

    async def leave(self) -> None:
        """Stop everything, in any state."""
        self.may_clean_up.set()
        self.may_answer.set()
        if self._control is not None:
            with contextlib.suppress(websockets.ConnectionClosed):
                await self._say(Goodbye("end of test"))
            await self._control.close()
        if self._server is not None:
            self._server.should_exit = True
        for task in self._tasks:
            if task is not self._tasks[0]:
                task.cancel()
        await asyncio.wait(self._tasks)

    def kill(self) -> None:
        """The effect of `kill -9`: every socket breaks without a message."""
        self.is_dead = True
        if self._control is not None:
            self._control.transport.abort()
            self._control = None
        assert self._server is not None
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()

    def freeze(self) -> None:
        """The effect of SIGSTOP: sockets stay open, but no message is sent."""
        self._is_silent = True

    def break_control(self) -> None:
        """Break the control socket; sessions continue."""
        assert self._control is not None
        self._control.transport.abort()

    # Control socket

    async def _talk_to_gateway(self) -> None:
        url = "ws" + self.gateway_url.removeprefix("http") + CONTROL_PATH
        headers = {SECRET_HEADER: self.secret} if self.secret else {}
        try:
            async with websockets.connect(
                url, additional_headers=headers, ping_interval=None
            ) as control:
                self._control = control
                await self._say(
                    Hello(
                        worker_id=self.name,
                        url=self.url,
                        slots=self.slots,
                        model="stand-in",
                        device="none",
                        version=self.version,
                        build=self.build,
                        pid=self.pid,
                        sessions=self.kept,
                    )
                )
                heartbeats = asyncio.create_task(self._heartbeat())
                try:
                    async for raw in control:
                        await self._obey(_decoder.decode(raw))
                finally:
                    heartbeats.cancel()
        except websockets.ConnectionClosed:
            return

    async def _heartbeat(self) -> None:
        while True:
            free = self.slots - self._busy if self.state == "idle" else 0
            beat = Heartbeat(self.state, free, len(self.ended), 0.0, 0, problem=self.problem)  # type: ignore[arg-type]
            await self._say(beat)
            await asyncio.sleep(self.beat_every_s)

    async def _obey(self, order: Any) -> None:
        match order:
            case Welcome():
                self.joined.set()
            case StopTurn(request_id=request_id):
                # It has no long answers to stop.
                await self._say(StopResult(request_id, False))
            case EndSession(lease_id=lease_id, reason=reason, request_id=request_id):
                session_id = self.leases.get(lease_id, "")
                found = session_id in self.sessions
                if request_id:
                    await self._say(StopResult(request_id, found))
                if found and reason == "stopped":
                    await self._end(session_id, {"type": "stopped", "session_id": session_id}, 1000)
                elif found:
                    await self._end(
                        session_id, {"type": "session.closed", "reason": "server_shutdown"}, 1001
                    )
            case Leave():
                await self.leave()

    async def _say(self, message: Any) -> None:
        if self._control is not None and not self._is_silent:
            with contextlib.suppress(websockets.ConnectionClosed):
                await self._control.send(msgspec.json.encode(message).decode())

    # Session sockets

    async def _health(self, request: Any) -> JSONResponse:
        return JSONResponse({}, 200 if self.answers_health else 503)

    async def _session(self, socket: WebSocket) -> None:
        headers = {name: value for name, value in socket.headers.items() if "parley" in name}
        self.headers.append(headers)
        session_id, kind = headers[SESSION_HEADER], headers[KIND_HEADER]
        if self.secret and headers.get(SECRET_HEADER) != self.secret:
            await socket.close(1008)
            return
        await socket.accept()

        async def phase(name: str, **more: Any) -> None:
            await self._say(
                SessionPhase(headers[LEASE_HEADER], session_id, kind, name, **more)  # type: ignore[arg-type]
            )

        self._busy += 1
        self.most_at_once = max(self.most_at_once, self._busy)
        self.sessions[session_id] = socket
        self.leases[headers[LEASE_HEADER]] = session_id
        was_ready = False
        try:
            await phase("preparing")
            async for message in self._messages(socket):
                self.heard.append(message)
                if not was_ready:
                    was_ready = True
                    await phase("active", was_ready=True)
                await self.may_answer.wait()
                if await self._answer(socket, socket.path_params["dialect"], session_id, message):
                    return
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.sessions.pop(session_id, None)
            await phase("cleanup", was_ready=was_ready)
            await self.may_clean_up.wait()
            self._busy -= 1
            self.ended.append(session_id)
            await phase("ended", was_ready=was_ready)

    async def _messages(self, socket: WebSocket) -> AsyncIterator[Any]:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            yield message["bytes"] if text is None else json.loads(text)

    async def _answer(self, socket: WebSocket, dialect: str, session_id: str, message: Any) -> bool:
        """Send the next answer; returns True if the session has ended."""
        if isinstance(message, bytes):
            await socket.send_bytes(message)
            return False
        if dialect == "chat":
            if message["messages"][-1]["content"] == "fail":
                await self._end(session_id, {"type": "error", "code": "context_full"}, 1008)
                return True
            await socket.send_json({"type": "prefill_done", "input_tokens": 3})
            done = {"type": "done", "text": "hello", "generated_tokens": 2, "input_tokens": 3}
            await self._end(session_id, done, 1000)
            return True
        match message["type"]:
            case "prepare":
                await socket.send_json({"type": "prepared", "session_id": session_id})
            case "session.update":
                await socket.send_json({"type": "session.created", "session_id": session_id})
            case "stop":
                await self._end(session_id, {"type": "stopped", "session_id": session_id}, 1000)
                return True
            case "session.close":
                closed = {"type": "session.closed", "reason": "stopped"}
                await self._end(session_id, closed, 1000)
                return True
            case _:
                await socket.send_json({"type": "echo", "message": message})
        return False

    async def _end(self, session_id: str, last: dict[str, Any], code: int) -> None:
        socket = self.sessions[session_id]
        await socket.send_json(last)
        await socket.close(code, "as told")
