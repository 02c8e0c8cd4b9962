"""Processes forked for tests (`tests/support/starts.py`) are as those that Python starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support import starts
from tests.support.patience import HANG_S
from tests.support.processes import PARROT, is_fork_server, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does")
WORKER = [sys.executable, "-m", "parley", "worker", "--gateway", "ws://127.0.0.1:9"]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[starts.ForkServer]:
    server = starts.ForkServer()
    yield server
    server.close()


@pytest.fixture(params=[True, False], ids=["forked", "started"])
def is_forked(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    fork_server: starts.ForkServer,
) -> bool:
    monkeypatch.setattr(fork_server, "is_used", request.param)
    monkeypatch.setattr(subprocess, "_fork_exec", fork_server.fork_exec)
    return bool(request.param)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["parley", "gateway", "--nonsense"], 2),
        (["parley.media.decoder_child", "100000000"], 0),
        (["parley.media.decoder_child", "no number"], 1),
        (["parley.nothing"], 1),
    ],
)
def test_exit_codes(is_forked: bool, words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", *words], stdin=subprocess.DEVNULL, capture_output=True
    )

    assert done.returncode == code, done.stderr.decode()


def test_what_a_process_has_of_its_own(is_forked: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "PARLEY_SECURITY__WORKER_SECRET": "a secret"}
    process = subprocess.Popen(
        WORKER,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    with process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        here = psutil.Process(process.pid)

        assert {"event", "level", "logger", "timestamp"} <= set(first)
        assert here.ppid() == os.getpid()
        assert here.cmdline() == WORKER
        assert here.cwd() == str(tmp_path)
        assert os.getsid(process.pid) == process.pid
        assert here in psutil.Process().children()
        assert [is_fork_server(each) for each in here.children()] == [True] * is_forked
        process.send_signal(signal.SIGKILL)
        assert process.wait(HANG_S) == -signal.SIGKILL


def test_a_signal_ends_a_server_in_order_and_its_children_with_it(
    is_forked: bool, tmp_path: Path
) -> None:
    with serving(tmp_path) as server:
        everybody = psutil.Process(server.popen.pid).children(recursive=True)
        assert any(map(is_fork_server, everybody)) == is_forked
        server.send(signal.SIGINT)

        assert server.popen.wait(HANG_S) == 0
        _, alive = psutil.wait_procs(everybody, HANG_S)
        assert not alive


async def test_a_coroutine_may_start_and_hear_one(is_forked: bool, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "gateway", *PARROT[:-2]),
        cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(HANG_S):
        while b"gateway ready" not in await process.stdout.readline():
            pass
        process.terminate()
        await process.stdout.read()

        assert await process.wait() == 0


@pytest.mark.parametrize(
    "changed", [{"PYTHONWARNINGS": "error"}, {"LANG": "C"}], ids=["warnings", "language"]
)
def test_what_only_python_can_start_it_starts(
    changed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = starts.ForkServer()
    monkeypatch.setattr(subprocess, "_fork_exec", server.fork_exec)

    subprocess.run(
        [sys.executable, "-m", "parley", "--version"],
        env={**os.environ, **changed},
        capture_output=True,
        check=True,
    )
    assert not server.is_running
