"""Conversations through the client's one door to the network, with nothing behind it but a script:
`say` keeps the turns, `turns` gathers answers, nothing is lost while nobody iterates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

import parley
from parley.client.access import Access, SocketClosed
from parley.client.connection import NetworkSocket
from parley.client.events import Ready
from parley.client.pace import Pace
from parley.errors import NotReady, QueueFull, TimedOut
from parley.media.pcm import Pcm, join, to_float32_bytes
from parley.protocol import codec
from parley.protocol.values import SLOWEST_BYTES_PER_S

LOUD = Pcm(0.3 * np.sin(np.arange(8_000) * 0.1, dtype=np.float32), 16_000)
ANSWER = codec.to_base64(to_float32_bytes(Pcm.silence(2_400, 24_000)))

Message = dict[str, Any]


class Script:
    """A server without a network. `answers` gets each message and says what to send for it."""

    def __init__(self, *first: Message, answers: Callable[[Message], list[Message]]) -> None:
        self._out: asyncio.Queue[Message | None] = asyncio.Queue()
        for message in first:
            self._out.put_nowait(message)
        self._answers = answers
        self.heard: list[Message] = []
        self.access: Access | None = None

    async def connect(self, access: Access, url: str) -> Script:
        self.access = access
        return self

    def requests(self, access: Access) -> httpx.AsyncBaseTransport:
        return httpx.MockTransport(
            lambda request: httpx.Response(200, json={"path": request.url.path})
        )

    async def send(self, frame: str | bytes) -> None:
        message = json.loads(frame)
        self.heard.append(message)
        for answer in self._answers(message):
            self._out.put_nowait(answer)

    async def receive(self) -> str:
        message = await self._out.get()
        if message is None or message["type"] == "(closed)":
            raise SocketClosed(1000, "")
        return json.dumps(message)

    async def close(self) -> None:
        self._out.put_nowait(None)


PREPARED = {"type": "prepared", "session_id": "hdx_1", "timeout_s": 180.0}
TURN: list[Message] = [
    {"type": "generating", "speech_duration_ms": 500},
    {"type": "chunk", "text_delta": "Hi ", "audio_data": ANSWER, "chunk_index": 0},
    {"type": "chunk", "text_delta": "there.", "audio_data": None, "chunk_index": 1},
    {"type": "turn_done", "turn_index": 0, "text": "Hi, there.", "audio_duration_ms": 100},
]


def is_silent(message: Message) -> bool:
    samples = np.frombuffer(codec.from_base64(message["audio_base64"], field="x"), "<f4")
    return not samples.any()


def listener() -> Callable[[Message], list[Message]]:
    """Answers the second silent chunk after speech, as voice detection would."""
    state: dict[str, Any] = {"voice": False, "silent": 0}

    def answers(message: Message) -> list[Message]:
        match message["type"]:
            case "prepare":
                return [PREPARED]
            case "stop":
                return [{"type": "stopped"}]
            case "audio_chunk" if not is_silent(message):
                state.update(voice=True, silent=0)
            case "audio_chunk" if state["voice"]:
                state["silent"] += 1
                if state["silent"] == 2:
                    state.update(voice=False)
                    return TURN
        return []

    return answers


async def test_what_is_said_gets_its_answer_although_nobody_iterated_meanwhile() -> None:
    script = Script({"type": "queue_done"}, answers=listener())

    async with parley.HalfDuplexClient("https://a.test", transport=script) as talk:
        assert await talk.say(LOUD) is True
        turns = talk.turns()
        turn = await anext(turns)
        await talk.stop()
        rest = [each async for each in turns]

    assert (turn.text, turn.number) == ("Hi, there.", 0), "as the server says at the end"
    assert turn.sound is not None
    assert turn.sound.duration_s == pytest.approx(0.1)
    assert rest == []
    chunks = [message for message in script.heard if message["type"] == "audio_chunk"]
    assert [is_silent(each) for each in chunks] == 15 * [True] + 17 * [False] + 2 * [True]


async def test_a_busy_machine_does_not_slow_what_is_said_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    loop = SimpleNamespace(time=lambda: now[0])
    there = SimpleNamespace(get_running_loop=lambda: loop, sleep=sleep)
    monkeypatch.setattr("parley.client.pace.asyncio", there)
    pace = Pace(0.032)
    for late_s in (0.0, 0.05, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0):
        await pace.next()
        now[0] += late_s

    # Five steps, a second, and one step: being late by less than two steps is made up for.
    assert now[0] == pytest.approx(5 * 0.032 + 1.0 + 0.032)


async def test_it_may_be_said_while_another_task_iterates() -> None:
    script = Script({"type": "queue_done"}, answers=listener())
    kinds = []

    async with parley.HalfDuplexClient("https://a.test", transport=script) as talk:
        speaking = asyncio.create_task(talk.say(LOUD))
        async for event in talk:
            kinds.append(type(event).__name__)
            if kinds[-1] == "TurnDone":
                await talk.stop()
        assert await speaking is True

    assert kinds == ["Assigned", "Ready", "Thinking", "Piece", "Piece", "TurnDone", "Ended"]


async def test_a_refusal_reaches_anyone_who_speaks() -> None:
    full = {"type": "error", "error": "Queue full", "message": "Queue full", "code": "queue_full"}
    script = Script(full, answers=lambda _: [])

    async with parley.HalfDuplexClient("https://a.test", transport=script) as talk:
        with pytest.raises(QueueFull):
            await talk.say(LOUD)


async def test_nothing_is_said_after_the_end() -> None:
    script = Script({"type": "queue_done"}, answers=listener())

    async with parley.HalfDuplexClient("https://a.test", transport=script) as talk:
        await talk.ready()
        await talk.stop()
        async for _ in talk:
            pass
        with pytest.raises(NotReady):
            await talk.say(LOUD)


async def test_patience_has_the_limit_it_was_given() -> None:
    script = Script(answers=lambda _: [])

    async with parley.HalfDuplexClient("https://a.test", transport=script) as talk:
        with pytest.raises(TimedOut, match=r"longer than 0\.01 s"):
            await talk.ready(timeout_s=0.01)

    script = Script(answers=lambda _: [])
    with pytest.raises(TimedOut, match="The answer"):
        await parley.ChatClient("https://a.test", transport=script).ask("Hello!", timeout_s=0.01)


async def test_between_what_is_said_a_duplex_session_gets_silence_and_pictures() -> None:
    def answers(message: Message) -> list[Message]:
        match message["type"]:
            case "prepare":
                return [{"type": "prepared", "prompt_length": 3, "session_id": "adx_1"}]
            case "audio_chunk" if is_silent(message):
                return [result(False, "Hello.", is_last=True)]
            case "audio_chunk":
                return [result(True, "")]
            case _:
                return [{"type": "stopped"}]

    script = Script({"type": "queue_done"}, answers=answers)

    async with parley.DuplexClient("https://a.test", transport=script) as talk:
        talk.show(b"\xff\xd8jpeg")
        await talk.say(join([LOUD, LOUD, LOUD], 16_000))
        async for turn in talk.turns():
            assert turn.text == "Hello."
            await talk.stop()

    chunks = [message for message in script.heard if message["type"] == "audio_chunk"]
    assert [is_silent(each) for each in chunks[:48]] == 47 * [False] + [True]
    with_pictures = [at for at, each in enumerate(chunks) if each["frame_base64_list"]]
    assert with_pictures == [0, 32]


def result(is_listen: bool, text: str, *, is_last: bool = False) -> Message:
    return {
        "type": "result",
        "is_listen": is_listen,
        "text": text,
        "audio_data": None,
        "end_of_turn": is_last,
        "kv_cache_length": 9,
    }


async def test_address_key_and_trust_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARLEY_URL", "https://b.test:9/x")
    monkeypatch.setenv("PARLEY_TOKEN", "pk_1")
    monkeypatch.setenv("PARLEY_CA", "ca.pem")
    script = Script({"type": "queue_done"}, answers=listener())

    async with parley.HalfDuplexClient(transport=script) as talk:
        assert isinstance(await talk.ready(), Ready)

    access = script.access
    assert access is not None
    assert access.socket_url("/ws/chat") == "wss://b.test:9/x/ws/chat"
    assert access.headers() == {"Authorization": "Bearer pk_1"}
    assert access.ca == "ca.pem"
    assert Access("https://c.test", token="mine").headers()["Authorization"] == "Bearer mine"


async def test_requests_go_through_the_same_door() -> None:
    script = Script(answers=lambda _: [])

    async with parley.Server("http://a.test/prefix", transport=script) as server:
        assert await server.status() == {"path": "/prefix/status"}


async def test_a_pong_may_come_after_what_was_sent_before_it_on_a_slow_line() -> None:
    async with (
        serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0, max_size=None) as server,
        connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as connection,
    ):
        socket = NetworkSocket(connection)
        patience_s = []
        for size in (4 << 20, 2_000):
            await socket.send("x" * size)
            patience_s.append(connection.ping_timeout or 0.0)

    assert patience_s[0] >= (4 << 20) / SLOWEST_BYTES_PER_S
    assert patience_s[1] < 21
