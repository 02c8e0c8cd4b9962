"""Processes forked for tests (`tests/support/starts.py`) are as those that Python starts."""

import asyncio
import contextlib
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
from tests.support.patience import HANG_S, PROCESS_S
from tests.support.processes import PARROT, is_fork_server
from tests.support.starter import Starter

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


@contextlib.contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the process, for whose end `Popen` would wait after a failure, too."""
    with process:
        try:
            yield
        finally:
            process.kill()


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
    with running(process):
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_another_program_starts_and_ends_one(number: signal.Signals, tmp_path: Path) -> None:
    starter = Starter(tmp_path)
    process = subprocess.Popen(
        [starter.program, *WORKER[1:]],
        cwd=tmp_path,
        env={**os.environ, "PARLEY_SECURITY__WORKER_SECRET": "a secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with running(process):
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        (here,) = [each for each in psutil.Process().children() if each.cmdline() == WORKER]
        assert here.cwd() == str(tmp_path)
        process.send_signal(number)
        process.stdout.read()

        assert process.wait(HANG_S) == (0 if number == signal.SIGTERM else -number)
        here.wait(HANG_S)
    starter.close()


async def test_a_coroutine_may_start_and_hear_one(is_forked: bool, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "gateway", *PARROT[:-2]),
        cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PROCESS_S):
        while b"gateway ready" not in await process.stdout.readline():
            pass
        process.terminate()
        await process.stdout.read()

        assert await process.wait() == 0


def test_a_test_process_has_what_most_of_its_imports_are(is_forked: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, *starts.TEST_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    has = "{'torch', 'hypothesis', 'parley.gateway.main'} <= {*sys.modules}"
    code = f"print(__name__, sys.argv, sys.path[0], {has}); sys.exit(3)"

    said, _ = process.communicate(f"{code!r}\n")

    assert said == f"__main__ ['-c']  {is_forked}\n"
    assert process.returncode == 3


@pytest.mark.parametrize(
    "changed", [{"PYTHONWARNINGS": "error"}, {"LANG": "sv_SE"}], ids=["warnings", "language"]
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
