"""`parley serve` as people run it: real processes, the parrot, signals."""

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.patience import HANG_S
from tests.support.processes import PARROT, running, serving
from websockets.sync.client import connect

from parley import cli, logs

pytestmark = pytest.mark.starts_python


@pytest.mark.slow
def test_serve_answers_survives_a_killed_worker_and_ends_on_ctrl_c(tmp_path: Path):
    (tmp_path / "parley.toml").write_text("[gateway]\nprot = 1\n")
    with serving(tmp_path) as server:
        (worker,) = server.children
        ws = "ws" + server.url.removeprefix("http")

        with connect(f"{ws}/ws/duplex/omni_1?extensions=true") as client:
            assert json.loads(client.recv(5))["type"] == "queue_done"
            os.kill(worker.pid, signal.SIGKILL)
            told = json.loads(client.recv(5))
            client.close_timeout = 1
        server.line_with("starting it again")
        server.line_with("worker 0 ready")
        with connect(f"{ws}/ws/chat") as client:
            client.send(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
            first = json.loads(client.recv(5))
        with urllib.request.urlopen(f"{server.url}/status", timeout=HANG_S) as answer:
            status = json.loads(answer.read())
        children = server.children
        server.send(signal.SIGINT)
        code = server.popen.wait(HANG_S)
        _, alive = psutil.wait_procs(children, 5)

    assert (told["type"], told["code"]) == ("error", "worker_lost")
    assert first["type"] == "prefill_done"
    assert (status["total_workers"], status["offline_workers"]) == (1, 0)
    assert code == 0
    assert alive == []
    assert sum("unknown setting 'gateway.prot'" in line for line in server.seen) == 1


@pytest.mark.slow
def test_a_worker_that_hangs_is_told_killed_and_replaced(tmp_path: Path):
    (tmp_path / "parley.toml").write_text("[worker]\nheartbeat_limit_s = 7\n")
    with serving(tmp_path) as server:
        (hung,) = server.children
        ws = "ws" + server.url.removeprefix("http")
        hung.suspend()
        # First its sessions are given up, and nobody is promised anything.
        server.line_with("worker_lost")
        with connect(f"{ws}/ws/duplex/omni_1?extensions=true") as client:
            queued = json.loads(client.recv(5))
            server.line_with("worker_hung_killed")
            server.line_with("worker 0 ended (hung: no heartbeat for 7 s)")
            server.line_with("worker 0 ready")
            while (served := json.loads(client.recv(10)))["type"] == "queue_update":
                pass
        (worker,) = server.children

    assert queued["estimated_wait_s"] is None
    assert served["type"] == "queue_done"
    assert worker.pid != hung.pid


@pytest.mark.slow
def test_workers_end_when_serve_is_killed_outright(tmp_path: Path):
    with serving(tmp_path, "--workers", "2") as server:
        children = server.children
        server.popen.kill()
        server.popen.wait(HANG_S)
        _, alive = psutil.wait_procs(children, HANG_S)

    assert len(children) == 2
    assert alive == []


@pytest.mark.slow
def test_a_model_that_does_not_exist_is_named_and_ends_serve(tmp_path: Path):
    with running(tmp_path, "serve", *PARROT, "--model", "no-such-model") as server:
        server.line_with("There is no model called")
        code = server.popen.wait(HANG_S)

    assert code == 2
    assert any("no-such-model" in line and "error:" in line for line in server.seen)


@pytest.fixture
def taken_port() -> Iterator[str]:
    """A port that another person listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


def test_a_taken_port_ends_serve_with_one_sentence(tmp_path: Path, taken_port: str):
    with running(
        tmp_path, "serve", "--http", "--host", "127.0.0.1", "--port", taken_port
    ) as server:
        server.line_with("is in use")
        code = server.popen.wait(HANG_S)

    assert code == 2
    assert not any("Traceback" in line for line in server.seen)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "70000"], "70000"),
        (["--slots", "many"], "many"),
        (["--workers", "0"], "greater than or equal to 1"),
        (["--host", "no.such.host.invalid"], "is not an address of this machine"),
        (["--nonsense"], "--nonsense"),
        (["--config", "absent.toml"], "absent.toml"),
    ],
)
def test_a_wrong_start_says_what_is_wrong(
    tmp_path: Path,
    flags: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    # The log of the other tests stays as it is, and what pytest writes when a library crashes.
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    monkeypatch.setattr(logs, "log_crashes", lambda: None)

    with pytest.raises(SystemExit) as end:
        cli.main(["serve", "--http", "--host", "127.0.0.1", *flags])

    said = capsys.readouterr().err
    assert end.value.code == 2
    assert words in said
    assert "Traceback" not in said
