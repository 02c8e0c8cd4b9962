"""Every row of the tables of bad input, said to the whole server. Source: service.md 4.2 to 4.5.

Whatever is said: the documented code, the documented close code or none, and whoever comes next is
served.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.support.faults import Faulty
from tests.support.gateways import all_free
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack, running_stack
from tests.support.talking import (
    ASK,
    LOUD,
    PATHS,
    QUIET,
    Message,
    ask_aloud,
    begin_duplex,
    begin_half_duplex,
    begin_realtime,
    hear,
    hear_until,
    say,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.engine.work import Stage
from parley.models.parrot import Parrot

NAN = base64.b64encode(struct.pack("<4000f", *[float("nan")] * 4000)).decode()
SHORT = base64.b64encode(bytes(4 * 319)).decode()
ODD = base64.b64encode(bytes(64_001)).decode()
LONG = base64.b64encode(bytes(4 * 16_000 * 11)).decode()


def png(width: int, height: int) -> str:
    """A picture that claims a size, in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


@pytest.fixture
def model() -> Faulty:
    return Faulty(Parrot(1))


@pytest.fixture
async def server(model: Faulty) -> AsyncIterator[RunningStack]:
    async with running_stack(load_model=lambda: model, worker={"vad": "energy"}) as running:
        yield running
        await all_free(running)
        async with connect(running.ws("/ws/chat")) as client:
            await say(client, **ASK)
            await hear_until(client, "done")


async def ending(client: ClientConnection) -> tuple[Message, int | None]:
    """The last message and the close code."""
    last: Message = {}
    async with asyncio.timeout(HANG_S):
        try:
            while True:
                last = json.loads(await client.recv())
        except ConnectionClosed:
            await client.wait_closed()
    return last, client.close_code


def content(*items: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(items)}]}


# ---- chat ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code", "close_code"),
    [
        ("{", "invalid_json", 1003),
        (b"\x00\xff", "invalid_json", 1003),
        ({}, "invalid_request", 1008),
        ({"messages": []}, "invalid_request", 1008),
        ({"messages": "hello"}, "invalid_request", 1008),
        ({"messages": [{"role": "pope", "content": "x"}]}, "invalid_request", 1008),
        (content({"type": "audio"}), "invalid_request", 1008),
        (content({"type": "smell", "data": "AAAA"}), "invalid_request", 1008),
        ({**ASK, "generation": {"max_new_tokens": 0}}, "invalid_request", 1008),
        ({**ASK, "generation": {"temperature": "hot"}}, "invalid_request", 1008),
        (content({"type": "audio", "data": "%%%%"}), "invalid_payload", 1008),
        (content({"type": "audio", "data": ODD}), "invalid_payload", 1008),
        (content({"type": "audio", "data": NAN}), "invalid_payload", 1008),
        (content({"type": "image", "data": "AAAA"}), "invalid_payload", 1008),
        (content({"type": "image", "data": png(10_000, 10_000)}), "invalid_payload", 1008),
        (content({"type": "image", "data": png(60_000, 60_000)}), "invalid_payload", 1008),
        (content({"type": "video", "data": "AAAA"}), "invalid_payload", 1008),
        (
            {**ASK, "tts": {"ref_audio_data": base64.b64encode(b"x").decode()}},
            "invalid_payload",
            1008,
        ),
        (content({"type": "text", "text": "word " * 9000}), "context_full", 1008),
    ],
)
async def test_chat(server: RunningStack, request_: Any, code: str, close_code: int) -> None:
    async with connect(server.ws("/ws/chat"), max_size=None) as client:
        await client.send(request_ if isinstance(request_, str | bytes) else json.dumps(request_))
        told, closed = await ending(client)

    assert (told["type"], told["code"], closed) == ("error", code, close_code)
    assert told["error"] == told["message"] != ""


async def test_chat_when_the_model_fails(server: RunningStack, model: Faulty) -> None:
    model.fail_at(Stage.DECODE)
    async with connect(server.ws("/ws/chat")) as client:
        await say(client, **ASK)
        told, closed = await ending(client)

    assert (told["code"], closed) == ("inference_error", 1011)
    assert "injected" not in told["error"]


# ---- half-duplex ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "code", "close_code"),
    [
        ("{", "invalid_json", 1003),
        (b"\x00", "invalid_json", 1003),
        ({"type": "audio_chunk", "audio_base64": LOUD}, "not_prepared", 1008),
        ({"type": "prepare", "config": {"vad": {"threshold": 2}}}, "invalid_config", 1008),
        ({"type": "prepare", "config": {"vad": {"threshold": "x"}}}, "invalid_config", 1008),
        ({"type": "prepare", "config": {"session": {"timeout_s": 1}}}, "invalid_config", 1008),
        ({"type": "prepare", "config": 7}, "invalid_config", 1008),
        ({"type": "prepare", "ref_audio_base64": "%"}, "invalid_payload", 1008),
        ({"type": "dance"}, "unknown_event", 1008),
    ],
)
async def test_half_duplex_before_it_is_prepared(
    server: RunningStack, first: Any, code: str, close_code: int
) -> None:
    async with connect(server.ws(PATHS["half_duplex"])) as client:
        await hear_until(client, "queue_done")
        await client.send(first if isinstance(first, str | bytes) else json.dumps(first))
        told, closed = await ending(client)

    assert (told["type"], told["code"], closed) == ("error", code, close_code)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "prepare"}, "already_prepared"),
        ({"type": "audio_chunk", "audio_base64": "%%"}, "invalid_payload"),
        ({"type": "audio_chunk", "audio_base64": "AAA"}, "invalid_payload"),
        ({"type": "audio_chunk", "audio_base64": NAN}, "invalid_payload"),
        ({"type": "dance"}, "unknown_event"),
    ],
)
async def test_half_duplex_while_it_listens(
    server: RunningStack, message: Message, code: str
) -> None:
    async with connect(server.ws(PATHS["half_duplex"])) as client:
        await begin_half_duplex(client)
        await say(client, type="audio_chunk")  # without sound: ignored
        await say(client, **message)
        told, closed = await ending(client)

    assert (told["type"], told["code"], closed) == ("error", code, 1008)
    if message["type"] == "dance":
        assert told["error"] == "Unknown type: dance"


async def test_half_duplex_goes_on_after_a_turn_that_failed(
    server: RunningStack, model: Faulty
) -> None:
    model.fail_at(Stage.DECODE, after=2)
    async with connect(server.ws(PATHS["half_duplex"])) as client:
        await begin_half_duplex(client)
        await ask_aloud(client)
        _, failed = await hear_until(client, "turn_done")
        await ask_aloud(client)
        _, turn = await hear_until(client, "turn_done")

    assert failed["failed"] is True
    assert not turn.get("failed")
    assert turn["text"]


# ---- duplex --------------------------------------------------------------------------------


async def told_and_open(client: ClientConnection, message: Any) -> Message:
    """What is answered; whoever closes instead fails the test."""
    await client.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return await hear(client)


@pytest.mark.parametrize("message", ["{", b"\x00"])
async def test_duplex_closes_on_what_is_no_json(server: RunningStack, message: str | bytes) -> None:
    async with connect(server.ws(PATHS["duplex"])) as client:
        await begin_duplex(client)
        await client.send(message)
        told, closed = await ending(client)

    assert (told["code"], closed) == ("invalid_json", 1003)


async def test_duplex_stays_open(server: RunningStack) -> None:
    async with connect(server.ws(PATHS["duplex"]), max_size=None) as client:
        await hear_until(client, "queue_done")
        early = await told_and_open(client, {"type": "audio_chunk", "audio_base64": QUIET})
        config = await told_and_open(client, {"type": "prepare", "config": {"top_p": 7}})
        await begin_again(client)
        rows: list[tuple[Message, str]] = [
            ({"type": "audio_chunk"}, "missing_field"),
            ({"type": "audio_chunk", "audio_base64": "%%"}, "invalid_payload"),
            ({"type": "audio_chunk", "audio_base64": ODD}, "invalid_payload"),
            ({"type": "audio_chunk", "audio_base64": NAN}, "invalid_payload"),
            ({"type": "audio_chunk", "audio_base64": QUIET, "frames": ["AAAA"]}, "invalid_payload"),
            (
                {"type": "audio_chunk", "audio_base64": QUIET, "frames": [png(10_000, 10_000)]},
                "invalid_payload",
            ),
            (
                {"type": "audio_chunk", "audio_base64": QUIET, "max_slice_nums": 99},
                "invalid_payload",
            ),
            ({"type": "prepare"}, "invalid_event"),
            ({"type": "dance"}, "unknown_event"),
        ]
        told = [await told_and_open(client, message) for message, _ in rows]
        fine = await told_and_open(client, {"type": "audio_chunk", "audio_base64": QUIET})
        paused = await told_and_open(client, {"type": "pause"})
        in_pause = await told_and_open(client, {"type": "audio_chunk", "audio_base64": QUIET})

    assert early["code"] == "not_ready"
    assert config["code"] == "invalid_config"
    assert [message["code"] for message in told] == [code for _, code in rows]
    assert told[0]["error"] == "Missing audio_base64"
    assert told[-1]["error"] == "Unknown message type: dance"
    assert fine["type"] == "result"
    assert paused["type"] == "paused"
    assert in_pause["error"] == "Worker is paused"


async def begin_again(client: ClientConnection) -> None:
    assert (await told_and_open(client, {"type": "prepare"}))["type"] == "prepared"


@pytest.mark.parametrize("dialect", ["duplex", "realtime"])
async def test_two_failed_units_are_told_and_the_third_in_a_row_ends_the_session(
    server: RunningStack, model: Faulty, dialect: str
) -> None:
    async with connect(server.ws(PATHS[dialect])) as client:
        if dialect == "duplex":
            await begin_duplex(client)
            unit: Message = {"type": "audio_chunk", "audio_base64": QUIET}
        else:
            await begin_realtime(client)
            unit = {"type": "input_audio_buffer.append", "audio": QUIET}
        model.fail_at(Stage.ENCODE, times=2)
        failures = [await told_and_open(client, unit) for _ in range(2)]
        fine = await told_and_open(client, unit)
        model.fail_at(Stage.ENCODE, times=3)
        for _ in range(3):
            await say(client, **unit)
            failures.append(await hear(client))
        last, closed = await ending(client)

    def code(message: Message) -> str:
        return message["code"] if dialect == "duplex" else message["error"]["code"]

    assert [code(message) for message in failures] == ["inference_error"] * 5
    assert fine["type"] in ("result", "response.listen")
    assert closed == 1011
    if dialect == "realtime":
        assert last == {"type": "session.closed", "reason": "error"}


# ---- realtime ------------------------------------------------------------------------------


def update(**session: Any) -> Message:
    return {"type": "session.update", "session": session}


def append(audio: Any = QUIET, **more: Any) -> Message:
    return {"type": "input_audio_buffer.append", "audio": audio, **more}


BEFORE: Sequence[tuple[Any, str]] = [
    (append(), "not_ready"),
    ({"type": "dance"}, "unknown_event"),
    ({"no": "type"}, "unknown_event"),
    ([1, 2], "unknown_event"),
    ({"type": "session.update"}, "missing_field"),
    (update(), "missing_field"),
    (update(instructions=7), "invalid_payload"),
    (update(instructions=""), "invalid_payload"),
    (update(instructions="x", max_slice_nums=10), "invalid_payload"),
    (update(instructions="x", ref_audio="%"), "invalid_payload"),
    (update(instructions="word " * 7500), "invalid_payload"),
]
AFTER: Sequence[tuple[Any, str]] = [
    (update(instructions="x"), "invalid_event"),
    ({"type": "input_audio_buffer.append"}, "missing_field"),
    (append(7), "invalid_payload"),
    (append("%%"), "invalid_payload"),
    (append(SHORT), "invalid_payload"),
    (append(ODD), "invalid_payload"),
    (append(NAN), "invalid_payload"),
    (append(LONG), "invalid_payload"),
    (append(video_frames=["AAAA"]), "invalid_payload"),
    (append(video_frames=[png(10_000, 10_000)]), "invalid_payload"),
    (append(video_frames="no list"), "invalid_payload"),
    (append(max_slice_nums=0), "invalid_payload"),
    (append(force_listen="perhaps"), "invalid_payload"),
    ({"type": "dance"}, "unknown_event"),
]


async def test_realtime_stays_open_after_every_client_error(server: RunningStack) -> None:
    async with connect(server.ws("/v1/realtime?mode=video"), max_size=None) as client:
        await hear_until(client, "session.queue_done")
        told = [await told_and_open(client, message) for message, _ in BEFORE]
        created = await told_and_open(client, update(instructions="Be kind."))
        told += [await told_and_open(client, message) for message, _ in AFTER]
        fine = await told_and_open(client, append())

    for message, (sent, code) in zip(told, [*BEFORE, *AFTER], strict=True):
        assert message["type"] == "error", (sent, message)
        assert message["error"]["code"] == code, (str(sent)[:200], message)
        assert message["error"]["type"] == "client_error"
        assert message["error"]["message"]
    assert created["type"] == "session.created"
    assert fine["type"] == "response.listen"


@pytest.mark.parametrize("message", ["{", "", b"{}"])
@pytest.mark.parametrize("is_ready", [False, True])
async def test_realtime_closes_on_what_is_no_json_or_binary(
    server: RunningStack, message: str | bytes, is_ready: bool
) -> None:
    async with connect(server.ws(PATHS["realtime"])) as client:
        if is_ready:
            await begin_realtime(client)
        else:
            await hear_until(client, "session.queue_done")
        await client.send(message)
        _, closed = await ending(client)

    assert closed == 1003


async def test_realtime_of_an_unknown_mode_is_refused(server: RunningStack) -> None:
    async with connect(server.ws("/v1/realtime?mode=smell")) as client:
        told, closed = await ending(client)

    assert (told["error"]["code"], closed) == ("invalid_payload", 1008)
