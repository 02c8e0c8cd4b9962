"""A stand-in for the llama.cpp-omni server: its exact protocol, and a model of three rules.

It sends, refuses and omits the same messages as `ws_handler.cpp`, `protocol.cpp` and
`server-omni.cpp` of tc-mb/llama.cpp-omni. In duplex it listens while the audio is loud, speaks in
the two units after that, does not answer one unit, and listens again; in turns it repeats the last
text.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from tests.support.patience import HANG_S

MOST_SAMPLES = 30 * 16_000


class Refused(Exception):
    """The session ends with this reason."""


class LlamaCppServer:
    """One server process, with one session at a time.

    Args:
        sound_delay_s: delay of a unit's audio after its text.
        token_s: time between two texts of an answer.
    """

    def __init__(self, *, sound_delay_s: float = 0.0, token_s: float = 0.0) -> None:
        self.sound_delay_s = sound_delay_s
        self.token_s = token_s
        self.inits: list[dict[str, Any]] = []
        self.inputs: list[dict[str, Any]] = []
        self.closed: list[str] = []
        self.active = ""
        self._count = 0
        self._stop, self._freed = asyncio.Event(), asyncio.Event()

    # The server.

    def __enter__(self) -> LlamaCppServer:
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/sessions/{session_id}/close", self._close, methods=["POST"]),
                WebSocketRoute("/backend", self._backend),
            ]
        )
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="websockets-sansio")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        until_s = time.monotonic() + HANG_S
        while not self._server.started and time.monotonic() < until_s:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.force_exit = self._server.should_exit = True
        self._thread.join(HANG_S)
        self._socket.close()

    async def _health(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "engine": "comni"}, headers={"X-Engine": "comni"})

    async def _close(self, request: Request) -> JSONResponse:
        session_id = request.path_params["session_id"]
        if session_id != self.active:
            error = {"error": {"message": "session not found", "type": "not_found"}}
            return JSONResponse(error, status_code=404)
        self.closed.append(session_id)
        self._stop.set()
        while self.active == session_id:
            self._freed.clear()
            await self._freed.wait()
        return JSONResponse({"ok": True, "session_id": session_id, "closed": True})

    # A session.

    async def _backend(self, ws: WebSocket) -> None:
        await ws.accept()
        try:
            init = json.loads(await ws.receive_text())
            payload = init["payload"]
            assert init["type"] == "session.init"
            mode = payload.get("mode", "full_duplex")
            assert mode in ("full_duplex", "turn_based")
        except (ValueError, KeyError, AssertionError, WebSocketDisconnect):
            await ws.close()
            return
        if self.active:
            await ws.close()
            return
        self._count += 1
        self.active = session_id = f"sess_{self._count}"
        self.inits.append(payload)
        self._stop.clear()
        session = _Session(self, ws, session_id, mode, payload.get("use_tts", True))
        reason = "client_disconnected"
        try:
            for name in ("ref_audio", "tts_ref_audio"):
                if name in payload.get("voice", {}):
                    decoded(payload["voice"][name])
            await session.send("session.created", mode=mode, **session.metrics())
            reading = asyncio.create_task(session.read())
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._stop.is_set():
                reason = "client_closed"
                reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        except Refused as refused:
            reason = str(refused)
        except WebSocketDisconnect:
            pass
        finally:
            session.stop()
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await session.send("session.closed", reason=reason)
                await ws.close()
            self.active = ""
            self._freed.set()


class _Session:
    def __init__(
        self, server: LlamaCppServer, ws: WebSocket, session_id: str, mode: str, use_tts: bool
    ) -> None:
        self._server, self._ws, self._id = server, ws, session_id
        self._mode, self._use_tts = mode, use_tts
        self._context = 40
        self._response = ""
        self._number = 0
        self._left = 0
        self._idle = False
        self._sounds: set[asyncio.Task[None]] = set()

    def metrics(self) -> dict[str, Any]:
        return {"metrics": {"backend": "llama.cpp-omni", "kv_cache_length": self._context}}

    async def send(self, event_type: str, /, **fields: Any) -> None:
        event = {
            "type": event_type,
            "session_id": self._id,
            **fields,
            "server_send_ts": time.time(),
        }
        await self._ws.send_text(json.dumps(event))

    async def delta(self, kind: str, **fields: Any) -> None:
        await self.send(
            "response.output.delta",
            kind=kind, response_id=self._response, **fields, **self.metrics(),
        )  # fmt: skip

    def stop(self) -> None:
        for task in self._sounds:
            task.cancel()

    async def read(self) -> None:
        while True:
            text = await self._ws.receive_text()
            try:
                message = json.loads(text)
            except ValueError:
                raise Refused("invalid_json") from None
            if message.get("type") != "input.append":
                raise Refused("unexpected_message_type")
            given = message.get("input")
            if not isinstance(given, dict):
                raise Refused("invalid_input")
            self._server.inputs.append(given)
            self._number += 1
            self._response = f"{self._id}_resp_{self._number}"
            is_turn = isinstance(given.get("messages"), list)
            if is_turn is not (self._mode == "turn_based"):
                raise Refused("mode_mismatch")
            await (self._turn(given) if is_turn else self._unit(given))

    async def _unit(self, given: dict[str, Any]) -> None:
        if not given.get("audio"):
            raise Refused("missing_audio")
        samples = decoded(given["audio"])
        for frame in given.get("video_frames", []):
            assert base64.b64decode(frame).startswith(b"\xff\xd8")
        self._context += 12
        if given.get("force_listen"):
            await self.delta("listen")
            return
        if np.abs(samples).max(initial=0) > 0.1:
            self._left, self._idle = 2, False
            await self.delta("listen")
            return
        if self._left:
            self._left -= 1
            self._idle = not self._left
            text = f"word{2 - self._left} "
            await self.delta("text", text=text)
            self._sound(self._server.sound_delay_s)
            await self._done(text, None)
            return
        if self._idle:
            # It neither listens nor speaks: nothing is sent.
            self._idle = False
            return
        await self.delta("listen")

    def _sound(self, delay_s: float) -> None:
        if not self._use_tts:
            return

        async def later() -> None:
            await asyncio.sleep(delay_s)
            # Of the response that is the newest at that time.
            await self.delta("audio", audio=encoded(np.full(12_000, 0.25, np.float32)))

        task = asyncio.get_running_loop().create_task(later())
        self._sounds.add(task)

    async def _done(self, text: str, audio: str | None, **metrics: int) -> None:
        fields = self.metrics()
        fields["metrics"] |= metrics
        await self.send(
            "response.done",
            response_id=self._response, text=text, reason="turn_end", audio=audio, **fields,
        )  # fmt: skip

    async def _turn(self, given: dict[str, Any]) -> None:
        messages = given["messages"]
        if not messages:
            raise Refused("empty_messages")
        user = next((one for one in reversed(messages) if one["role"] == "user"), None)
        said, sounds = "", []
        for part in user["content"] if user else []:
            match part["type"]:
                case "text":
                    said = part["text"]
                case "audio":
                    sounds.append(decoded(part["data"]))
                case "image":
                    assert base64.b64decode(part["data"]).startswith(b"\xff\xd8")
        heard = f" and {len(sounds[0]) / 16_000:.1f} s of sound" if sounds else ""
        words = f"You said: {said}{heard}".split(" ")
        limit = given.get("generation", {}).get("max_new_tokens", 512)
        full = ""
        for number, word in enumerate(words[:limit]):
            text = word if not number else f" {word}"
            full += text
            if given.get("streaming", True):
                await self.delta("text", text=text)
            await asyncio.sleep(self._server.token_s)
        audio = None
        if given.get("use_tts_template") and self._use_tts:
            samples = encoded(np.full(24_000, 0.5, np.float32))
            if given.get("streaming", True):
                await self.delta("audio", audio=samples)
            else:
                audio = samples
        await self._done(full, audio, n_tokens=min(limit, len(words)))


def decoded(text: str) -> np.ndarray:
    """Samples of base64 float32; audio that is too long is refused."""
    raw = base64.b64decode(text)
    if len(raw) % 4 or len(raw) > 4 * MOST_SAMPLES:
        raise Refused("voice_audio_decode_failed")
    return np.frombuffer(raw, "<f4")


def encoded(samples: np.ndarray) -> str:
    return base64.b64encode(samples.astype("<f4").tobytes()).decode()
