"""The table of docs/protocols/README.md, "The same mistake in each dialect", line by line."""

import asyncio
import base64
import contextlib
import json
import re
from typing import Any

import pytest
from tests.docs.printed import ROOT
from tests.support.gateways import HELLO, all_free, occupied, running_gateway, until
from tests.support.patience import HANG_S
from tests.support.stack import running_stack
from websockets import ConnectionClosed, InvalidStatus
from websockets.asyncio.client import ClientConnection, connect

Json = dict[str, Any]
LARGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20 * 1024 * 1024)).decode()
BROKEN = "!!!"
PATHS = {
    "chat": "/ws/chat",
    "half_duplex": "/ws/half_duplex/h1",
    "duplex": "/ws/duplex/omni_1",
    "realtime": "/v1/realtime?mode=video",
    "minicpmo_v2": "/v1/realtime?mode=video",
    "minicpmo_v2 chat": "/v1/realtime?mode=chat",
    "openai_realtime": "/v1/realtime?model=m",
    "openai_live": "/v1/live/sessions",
}
OPENINGS: dict[str, tuple[Json | None, str]] = {
    "chat": (None, ""),
    "half_duplex": ({"type": "prepare"}, "prepared"),
    "duplex": ({"type": "prepare"}, "prepared"),
    "realtime": ({"type": "session.update", "session": {"instructions": "x"}}, "session.created"),
    "minicpmo_v2": ({"type": "session.init", "payload": {"system_prompt": "x"}}, "session.created"),
    "minicpmo_v2 chat": ({"type": "session.init", "payload": {}}, "session.created"),
    "openai_realtime": (None, "session.created"),
    "openai_live": ({"type": "session.start", "session": {}}, "session.started"),
}
SILENCE = base64.b64encode(bytes(64_000)).decode()


def asked(image: str) -> list[Json]:
    return [{"role": "user", "content": [{"type": "image", "data": image}]}]


def item(image: str) -> Json:
    content = [{"type": "input_image", "image_url": f"data:image/png;base64,{image}"}]
    return {"type": "conversation.item.create", "item": {"role": "user", "content": content}}


def with_image(name: str, image: str) -> Json:
    messages: dict[str, Json] = {
        "chat": {"messages": asked(image)},
        "duplex": {"type": "audio_chunk", "audio_base64": SILENCE, "frame_base64_list": [image]},
        "realtime": {
            "type": "input_audio_buffer.append",
            "audio": SILENCE,
            "video_frames": [image],
        },
        "minicpmo_v2": {
            "type": "input.append",
            "input": {"audio": SILENCE, "video_frames": [image]},
        },
        "minicpmo_v2 chat": {"type": "input.append", "input": {"messages": asked(image)}},
        "openai_realtime": item(image),
        "openai_live": {"type": "session.input_image.append", "image": image},
    }
    return messages[name]


SOUND: dict[str, Json] = {
    "chat": {
        "messages": [{"role": "user", "content": [{"type": "audio", "data": BROKEN}]}],
    },
    "half_duplex": {"type": "audio_chunk", "audio_base64": BROKEN},
    "duplex": {"type": "audio_chunk", "audio_base64": BROKEN},
    "realtime": {"type": "input_audio_buffer.append", "audio": BROKEN},
    "minicpmo_v2": {"type": "input.append", "input": {"audio": BROKEN}},
    "minicpmo_v2 chat": {
        "type": "input.append",
        "input": {"messages": [{"role": "user", "content": [{"type": "audio", "data": BROKEN}]}]},
    },
    "openai_realtime": {"type": "input_audio_buffer.append", "audio": BROKEN},
    "openai_live": {"type": "session.input_audio.append", "audio": BROKEN},
}
EARLY: dict[str, Json] = {
    "chat": {"type": "prepare"},
    "half_duplex": {"type": "audio_chunk", "audio_base64": SILENCE},
    "duplex": {"type": "audio_chunk", "audio_base64": SILENCE},
    "realtime": {"type": "input_audio_buffer.append", "audio": SILENCE},
    "minicpmo_v2": {"type": "input.append", "input": {"audio": SILENCE}},
    "minicpmo_v2 chat": {"type": "input.append", "input": {"messages": []}},
    "openai_realtime": {"type": "response.cancel"},
    "openai_live": {"type": "session.input_audio.append", "audio": SILENCE},
}


def table() -> dict[str, dict[str, str]]:
    """Dialect → mistake → what the page promises."""
    page = (ROOT / "docs/protocols/README.md").read_text()
    lines = page.split("## The same mistake in each dialect", 1)[1].split("\n## ", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines.splitlines()
        if line.startswith("|")
    ]
    head, _, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


PROMISED = table()


async def refusal(url: str) -> str:
    """What a newcomer is told: a status, or an error's code and the close code."""
    try:
        async with connect(url) as socket:
            return await told(socket)
    except InvalidStatus as refused:
        response = refused.response
        retry = " Retry-After" if "retry-after" in response.headers else ""
        return f"HTTP {response.status_code}{retry}"


async def told(socket: ClientConnection) -> str:
    """The code of the next error, and how the connection closes; "open": it does not."""
    code = ""
    async with asyncio.timeout(HANG_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                if code:
                    # Nothing else is due on a connection that stays open.
                    await socket.send('{"type": "no.such.event"}')
                event = json.loads(await socket.recv())
                if code and event["type"] == "error":
                    break
                if event["type"] == "error":
                    code = error_code(event)
    return f"`{code}`, {socket.close_code or 'open'}"


def error_code(event: Json) -> str:
    """A machine code, or the sentence of the dialects that have none without extensions."""
    error = event["error"]
    if isinstance(error, dict):
        return str(error["code"])
    return str(event.get("code") or re.sub(r"[\d,.]+ ?\w*", "…", str(error))[:40])


def url_of(server: Any, name: str) -> str:
    path = PATHS[name]
    is_ours = name in ("chat", "half_duplex", "duplex")
    more = ("&" if "?" in path else "?") + "extensions=true" if is_ours else ""
    return f"ws://127.0.0.1:{server.gateway.port}{path}{more}"


def promised(mistake: str) -> dict[str, str]:
    return {name: row[mistake] for name, row in PROMISED.items()}


def test_the_table_has_every_dialect():
    assert PROMISED.keys() == PATHS.keys()


async def test_a_wrong_key():
    async with running_gateway(security={"needs_key": True}) as server:
        urls = {name: url_of(server, name) for name in PATHS}
        found = {
            name: await refusal(f"{url}{'&' if '?' in url else '?'}token=wrong")
            for name, url in urls.items()
        }

    assert found == promised("wrong key")


async def test_no_worker():
    async with running_gateway(queue={"no_worker_refuse_s": 0.001}) as server:
        found = {}
        for name in PATHS:
            async with asyncio.timeout(HANG_S):
                found[name] = await newcomer(url_of(server, name), name)

    assert found == promised("no worker")


async def test_a_full_queue():
    async with (
        running_stack(queue={"max_size": 1}) as server,
        occupied(server),
        server.http() as http,
    ):
        waiting = asyncio.create_task(http.post("/api/chat", json=HELLO))
        await until(lambda: len(server.runtime.dispatcher.queue) == 1)
        found = {name: await newcomer(url_of(server, name), name) for name in PATHS}
        waiting.cancel()

    assert found == promised("full queue")


async def newcomer(url: str, name: str) -> str:
    """As `refusal`; a chat is refused once it has asked."""
    if name != "chat":
        return await refusal(url)
    async with connect(url) as socket:
        await socket.send(json.dumps(HELLO))
        return await told(socket)


@pytest.mark.parametrize("name", PATHS)
async def test_what_a_message_may_not_be(name):
    row = PROMISED[name]
    messages = {"broken base64": SOUND[name], "wrong order": EARLY[name]}
    if name != "half_duplex":
        messages["oversized image"] = with_image(name, LARGE)
    found: dict[str, str] = {}

    async with running_stack(limits={"frame_mb": 64}) as server:
        for mistake, message in messages.items():
            async with connect(url_of(server, name), max_size=None) as socket:
                await opened(socket, name, is_early=mistake == "wrong order")
                await socket.send(json.dumps(message))
                found[mistake] = await told(socket)
            await all_free(server)

    assert found == {mistake: row[mistake] for mistake in messages}


async def opened(socket: ClientConnection, name: str, *, is_early: bool) -> None:
    """Up to the session; only up to the place where something is to come too early."""
    opening, awaited = OPENINGS[name]
    if name not in ("chat", "openai_realtime", "openai_live"):
        while "queue_done" not in str(await socket.recv()):
            pass
    if is_early and name != "openai_realtime":
        return
    if opening is not None:
        await socket.send(json.dumps(opening))
    while awaited and json.loads(await socket.recv())["type"] != awaited:
        pass
