"""`parley serve` as people run it: told to end, it says so to everybody in their own words."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.blocking import asked, ending, eventually, hear, hear_until, prepare, say
from tests.support.patience import HANG_S, PROCESS_S
from tests.support.ports import free_port
from tests.support.processes import Process, serving
from tests.support.talking import LOUD
from websockets.sync.client import connect

pytestmark = pytest.mark.starts_python


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """Three conversations at a time, and an address."""
    with serving(tmp_path, "--slots", "3") as process:
        yield process, process.url.replace("http", "ws", 1)


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
        hear_until(realtime, "session.queue_done")
        say(realtime, "session.update", session={"instructions": "x"})
        assert hear(realtime)["type"] == "session.created"
        prepare(duplex)
        say(duplex, "audio_chunk", audio=LOUD)
        assert hear(duplex)["type"] == "result"
        prepare(running_turns)
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
        process.line_with("ended after")
        # It waits for no task until its limit of five seconds.
        assert "graceful shutdown exceeded" not in "".join(process.seen)

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


@pytest.mark.parametrize(
    ("verb", "path", "streams"),
    [
        ("gateway", "/status", "<&- >&- 2>&-"),
        ("serve --model parrot --log-format json", "/ready", ">/dev/full 2>&1"),
        ("serve --model parrot --log-format text", "/ready", ">/dev/full 2>&1"),
    ],
)
def test_a_server_whose_log_goes_nowhere_serves(
    tmp_path: Path, verb: str, path: str, streams: str
) -> None:
    if "full" in streams and not Path("/dev/full").exists():
        pytest.skip("this system has no full device")
    port = free_port()
    command = f"exec '{sys.executable}' -m parley {verb} --http --host 127.0.0.1 --port {port}"
    with subprocess.Popen(["/bin/sh", "-c", f"{command} {streams}"], cwd=tmp_path) as process:
        try:
            eventually(lambda: answers(port, path), "no answer", PROCESS_S)
        finally:
            process.terminate()
        assert process.wait(HANG_S) == 0


def test_processes_that_it_starts_have_standard_streams(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(
        "import sys; from pathlib import Path\n"
        "Path('told').write_text(str(None in (sys.stdin, sys.stdout, sys.stderr)))\n"
    )
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys; from parley.cli import _prepare_streams\n"
        "_prepare_streams()\n"
        "subprocess.run([sys.executable, 'child.py'], check=True)\n"
    )
    command = f"exec '{sys.executable}' parent.py <&- >&- 2>&-"

    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True, timeout=HANG_S)

    assert (tmp_path / "told").read_text() == "False"


def answers(port: int, path: str) -> bool:
    return asked(f"http://127.0.0.1:{port}{path}")[0] == 200
