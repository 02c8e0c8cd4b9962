"""A client of the newest public MiniCPM-o dialect, written from its list of fields."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.patience import HANG_S
from tests.support.sounds import silence, speak
from tests.support.stack import RunningStack, running_stack
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed


def sound(pcm: Any) -> str:
    return base64.b64encode(pcm.samples.astype("<f4").tobytes()).decode()


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(file, "JPEG")
    return base64.b64encode(file.getvalue()).decode()


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []

    async def say(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(HANG_S):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        self.told.append(message)
        return message

    async def until(self, name: str) -> dict[str, Any]:
        while (message := await self.next())["type"] != name:
            pass
        return message

    async def unit(self, pcm: Any, **more: Any) -> list[dict[str, Any]]:
        """One second, and all deltas of it."""
        await self.say(type="input.append", input={"audio": sound(pcm), **more})
        deltas = [await self.until("response.output.delta")]
        while deltas[-1]["kind"] == "text" and deltas[-1]["metrics"]["n_tts_tokens"]:
            deltas.append(await self.until("response.output.delta"))
        return deltas

    async def init(self, **payload: Any) -> dict[str, Any]:
        await self.say(type="session.init", payload={"system_prompt": "Be kind.", **payload})
        return await self.until("session.created")

    async def end(self) -> int | None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code


@contextlib.asynccontextmanager
async def client(mode: str, **parts: Any) -> AsyncIterator[tuple[RunningStack, Client]]:
    async with running_stack(**parts) as running:
        url = f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?mode={mode}"
        async with connect(url, max_size=None) as socket:
            yield running, Client(socket)


@pytest.mark.parametrize("mode", ["audio", "video"])
async def test_a_session_hears_and_answers_one_kind_per_message(mode):
    async with client(mode) as (_, talk):
        created = await talk.init(config={"force_listen_count": 0}, max_slice_nums=1)
        frames = {"video_frames": [picture()]} if mode == "video" else {}
        await talk.unit(speak(1.0), **frames)
        said: list[dict[str, Any]] = []
        while not said or said[-1]["kind"] != "listen" or len(said) < 3:
            said += await talk.unit(silence(1.0), hints={"max_slice_nums": [1, 1]})
        await talk.say(type="session.close", reason="user")
        closed = await talk.until("session.closed")
        code = await talk.end()

    deltas = [m for m in talk.told if m["type"] == "response.output.delta"]
    kinds = [delta["kind"] for delta in deltas]
    assert talk.told[0]["type"] == "session.queue_done"
    assert created["mode"] == "full_duplex"
    assert created["session_id"]
    assert {"listen", "text", "audio"} == set(kinds)
    for delta in deltas:
        assert {"text", "audio"} & delta.keys() == {delta["kind"]} - {"listen"}
        assert delta["metrics"]["kv_cache_length"] > 0
        assert delta["server_send_ts"] > 1e9
    audio = next(delta["audio"] for delta in deltas if delta["kind"] == "audio")
    assert len(np.frombuffer(base64.b64decode(audio), "<f4")) == 24_000
    # Usage comes once per unit; a turn ends with one `listen`.
    first = {delta["chunk_index"]: delta for delta in reversed(deltas)}
    assert all(("usage" in delta) == (first[delta["chunk_index"]] is delta) for delta in deltas)
    assert kinds[kinds.index("audio") :].count("listen") >= 1
    assert closed["reason"] == "user_stop"
    assert closed["usage"]["input_token_details"]["audio_tokens"] >= 20
    assert (closed["usage"]["input_token_details"]["vision_tokens"] > 0) == (mode == "video")
    assert code == 1000


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"type": "session.init"}], "missing_field"),
        ([{"type": "session.init", "payload": []}], "invalid_payload"),
        (
            [
                {"type": "session.init", "payload": {"system_prompt": "x"}},
                {"type": "session.init", "payload": {"system_prompt": "x"}},
            ],
            "invalid_event",
        ),
        (
            [
                {"type": "session.init", "payload": {"system_prompt": "x"}},
                {"type": "input.append", "input": {"audio": "!!!"}},
            ],
            "invalid_payload",
        ),
    ],
)
async def test_a_mistake_is_fatal(messages, code):
    async with client("audio") as (_, talk):
        await talk.until("session.queue_done")
        for message in messages:
            await talk.say(**message)
            if message is not messages[-1]:
                await talk.until("session.created")
        closing = await talk.end()

    *_, error, closed = talk.told
    assert error["error"]["code"] == code
    assert closed["type"] == "session.closed"
    assert closed["reason"] == "protocol_error"
    assert closing is not None
    assert closing != 1000


async def test_an_init_sent_while_waiting_is_kept():
    async with client("audio") as (running, _), occupied_by_another(running) as talk:
        await talk.until("session.queued")
        await talk.say(type="session.init", payload={"instructions": "Be kind."})
        await _.socket.close()
        await talk.until("session.created")

    assert [m["type"] for m in talk.told].count("session.queue_done") == 1


@contextlib.asynccontextmanager
async def occupied_by_another(running: RunningStack) -> AsyncIterator[Client]:
    url = f"ws://127.0.0.1:{running.gateway.port}/v1/realtime?mode=audio"
    async with connect(url) as socket:
        yield Client(socket)


async def test_the_requirement_texts_dialect_is_as_it_was():
    async with client("audio") as (_, talk):
        await talk.until("session.queue_done")
        await talk.say(type="session.update", session={"instructions": "Be kind."})
        created = await talk.until("session.created")

    assert created["session_id"].startswith("rt_")
    assert "mode" not in created
