"""Orders and signals as an operator gives them, to real processes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.blocking import asked, eventually, hear, hear_until, say
from tests.support.patience import HANG_S
from tests.support.processes import running, serving
from websockets.sync.client import connect

from parley.executor.child import SUPERVISED_VARIABLE


def the_worker(url: str) -> dict[str, Any]:
    """The only one, once there is one."""

    def only() -> Any:
        workers = asked(f"{url}/workers")[1]["workers"]
        return len(workers) == 1 and workers[0]

    return dict(eventually(only, "not one worker"))


def test_a_stand_alone_worker_comes_back_from_an_ordered_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a shell of a person whom a supervised process started: none of their business.
    monkeypatch.setenv(SUPERVISED_VARIABLE, str(os.getpid()))
    flags = ("--http", "--host", "127.0.0.1", "--port", "0")
    with running(tmp_path, "gateway", *flags) as gateway:
        gateway.line_with("gateway ready")
        with running(tmp_path, "worker", "--gateway", gateway.url, "--model", "parrot") as worker:
            worker.line_with("gateway_welcomed")
            before = the_worker(gateway.url)
            asked(f"{gateway.url}/api/admin/workers/{before['worker_id']}/restart", method="POST")
            left = gateway.line_with("worker_left")
            worker.line_with("worker_restarting")
            worker.line_with("gateway_welcomed")
            after = the_worker(gateway.url)

    assert json.loads(left)["reason"] == "restart"
    assert after["worker_id"] != before["worker_id"]
    assert after["status"] == "idle"


def test_every_line_of_serve_and_its_workers_is_one_json_object(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json") as server:
        ws = "ws" + server.url.removeprefix("http")
        with connect(f"{ws}/ws/chat") as client:
            client.send(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
            hear_until(client, "prefill_done")
        server.line_with("session_ended")
        worker = the_worker(server.url)
        asked(f"{server.url}/api/admin/workers/{worker['worker_id']}/restart", method="POST")
        server.line_with("starting it again in 0 s")
        server.line_with("worker 0 ready")
        server.send(signal.SIGTERM)
        server.line_with("ended after")
        assert server.popen.wait(HANG_S) == 0

    lines = [json.loads(line) for line in server.seen]
    assert all(line["event"].isidentifier() and "level" in line for line in lines)
    assert any(line.get("worker_index") == 0 for line in lines)
    assert sum(line["event"] == "session_began" for line in lines) == 2, "gateway and worker"


@pytest.mark.parametrize("again", [True, False])
def test_a_drain_ends_with_the_last_call_or_a_second_signal(tmp_path: Path, again: bool) -> None:
    with serving(tmp_path, "--drain-timeout", "600") as server:
        children = server.children
        ws = "ws" + server.url.removeprefix("http")
        with connect(f"{ws}/ws/duplex/omni_1?extensions=true") as client:
            hear_until(client, "queue_done")
            server.send(signal.SIGTERM)
            server.line_with("shutting_down")
            say(client, "prepare")
            assert hear(client)["type"] == "prepared"
            assert server.popen.poll() is None
            if again:
                server.send(signal.SIGTERM)
            else:
                say(client, "stop")
            code = server.popen.wait(HANG_S)
        _, alive = psutil.wait_procs(children, HANG_S)
        server.line_with("ended after")
        said = "".join(server.seen)

    assert (code, alive) == (0, [])
    # At once, and nothing is wrong: a worker whose socket we closed is not lost.
    for fault in ("graceful shutdown exceeded", "control_socket_lost", "worker_lost"):
        assert fault not in said
