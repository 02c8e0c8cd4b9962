"""`parley serve` as people run it: told to end, it says so to everybody in their own words."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import HANG_S
from tests.support.processes import Process, serving
from tests.support.talking import LOUD
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

pytestmark = [pytest.mark.slow, pytest.mark.starts_python]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """Three conversations at once, and an address."""
    with serving(tmp_path, "--slots", "3") as process:
        yield process, process.url.replace("http", "ws", 1)


def hear(client: ClientConnection, limit_s: float = HANG_S) -> dict[str, Any]:
    return json.loads(client.recv(timeout=limit_s))


def ending(client: ClientConnection) -> tuple[list[dict[str, Any]], int | None]:
    messages = []
    while True:
        try:
            messages.append(hear(client, HANG_S))
        except ConnectionClosed:
            return messages, client.protocol.close_code


def test_everybody_is_told_in_their_dialect_when_serve_is_terminated(
    serve: tuple[Process, str],
) -> None:
    process, url = serve
    with (
        connect(f"{url}/v1/realtime?mode=audio&extensions=true") as realtime,
        connect(f"{url}/ws/duplex/omni_1?extensions=true") as duplex,
        connect(f"{url}/ws/half_duplex/hdx_1?extensions=true") as running_turns,
        connect(f"{url}/ws/half_duplex/hdx_2?extensions=true") as half_duplex,
        connect(f"{url}/ws/chat?extensions=true") as chat,
        connect(f"{url}/v1/realtime?mode=video&extensions=true") as waiting,
    ):
        assert hear(realtime)["type"] == "session.queue_done"
        realtime.send(json.dumps({"type": "session.update", "session": {"instructions": "x"}}))
        assert hear(realtime)["type"] == "session.created"
        assert hear(duplex)["type"] == "queue_done"
        duplex.send(json.dumps({"type": "prepare"}))
        assert hear(duplex)["type"] == "prepared"
        duplex.send(json.dumps({"type": "audio_chunk", "audio": LOUD}))
        assert hear(duplex)["type"] == "result"
        assert hear(running_turns)["type"] == "queue_done"
        running_turns.send(json.dumps({"type": "prepare"}))
        assert hear(running_turns)["type"] == "prepared"
        assert hear(half_duplex)["type"] == "queued"
        chat.send(json.dumps({"messages": [{"role": "user", "content": "Hello"}]}))
        assert hear(chat)["type"] == "queued"
        assert hear(waiting)["type"] == "session.queued"

        process.send(signal.SIGTERM)
        told = {
            name: ending(client)
            for name, client in {
                "realtime": realtime,
                "waiting": waiting,
                "duplex": duplex,
                "running": running_turns,
                "half_duplex": half_duplex,
                "chat": chat,
            }.items()
        }
        assert process.popen.wait(HANG_S) == 0

    closed = {"type": "session.closed", "reason": "server_shutdown"}
    for name in ("realtime", "waiting"):
        messages, code = told[name]
        assert messages[-1] == closed, name
        assert messages.count(closed) == 1
        assert code == 1001
    for name, expected in {
        "duplex": 1001,
        "running": 1001,
        "half_duplex": 1013,
        "chat": 1013,
    }.items():
        messages, code = told[name]
        assert (messages[-1]["type"], messages[-1]["code"]) == ("error", "service_unavailable")
        assert code == expected, name
