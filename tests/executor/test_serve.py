"""`parley serve` as people run it: real processes, the parrot, signals."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.sync.client import connect


class Server:
    """A running `parley serve`, its lines, its processes."""

    def __init__(self, folder: Path, *flags: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "parley", "serve", "--http", "--host", "127.0.0.1", *flags],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.process.stdout.close()

    def line_with(self, words: str, limit_s: float = 60) -> str:
        deadline = time.monotonic() + limit_s
        while True:
            line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            self.seen.append(line)
            if words in line:
                return line

    @property
    def url(self) -> str:
        return next(
            word for line in self.seen for word in line.split() if word.startswith("http://")
        ).replace("localhost", "127.0.0.1")

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def status(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/status", timeout=5) as response:
            return json.loads(response.read())


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    server = Server(folder, "--model", "parrot", "--port", "0", *flags)
    children: list[psutil.Process] = []
    try:
        server.line_with("ready after")
        yield server
    finally:
        if server.process.poll() is None:
            children = server.children
            server.process.kill()
        server.process.wait(10)
        psutil.wait_procs(children, 10)


@pytest.mark.slow
def test_serve_answers_survives_a_killed_worker_and_ends_on_ctrl_c(tmp_path: Path):
    with serving(tmp_path) as server:
        (worker,) = server.children
        ws = "ws" + server.url.removeprefix("http")

        with connect(f"{ws}/ws/duplex/omni_1") as client:
            assert json.loads(client.recv(5))["type"] == "queue_done"
            os.kill(worker.pid, signal.SIGKILL)
            told = json.loads(client.recv(5))
            client.close_timeout = 1
        server.line_with("starting it again")
        server.line_with("worker 0 ready")
        with connect(f"{ws}/ws/chat") as client:
            client.send(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
            first = json.loads(client.recv(5))
        status = server.status()
        children = server.children
        server.process.send_signal(signal.SIGINT)
        code = server.process.wait(30)
        _, alive = psutil.wait_procs(children, 5)

    assert (told["type"], told["code"]) == ("error", "inference_error")
    assert first["type"] == "prefill_done"
    assert (status["total_workers"], status["offline_workers"]) == (1, 0)
    assert code == 0
    assert alive == []


@pytest.mark.slow
def test_workers_end_when_serve_is_killed_outright(tmp_path: Path):
    with serving(tmp_path, "--workers", "2") as server:
        children = server.children
        server.process.kill()
        server.process.wait(10)
        _, alive = psutil.wait_procs(children, 20)

    assert len(children) == 2
    assert alive == []


@pytest.mark.slow
def test_a_model_that_does_not_exist_is_named_and_ends_serve(tmp_path: Path):
    server = Server(tmp_path, "--model", "no-such-model", "--port", "0")
    code = server.process.wait(60)
    server.line_with("No worker could start")

    assert code == 2
    assert any("no-such-model" in line and "error:" in line for line in server.seen)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "{taken}"], "is in use"),
        (["--port", "70000"], "70000"),
        (["--slots", "many"], "many"),
        (["--workers", "0"], "greater than or equal to 1"),
        (["--host", "no.such.host.invalid"], "is not an address of this machine"),
        (["--nonsense"], "--nonsense"),
        (["--config", "absent.toml"], "absent.toml"),
    ],
)
def test_a_wrong_start_says_what_is_wrong(tmp_path: Path, flags: list[str], words: str):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "parley",
                "serve",
                "--http",
                "--host",
                "127.0.0.1",
                *(flag.format(taken=taken) for flag in flags),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
