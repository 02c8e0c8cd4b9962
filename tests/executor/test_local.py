import asyncio
import functools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.contracts.executor import LOADS_FOR_LONG, WAITER, Kept, check_executor, started
from tests.support.gateways import until
from tests.support.patience import HANG_S
from tests.support.programs import python

from parley.executor import base, child, node_worker
from parley.executor.local import (
    LocalExecutor,
    as_environment,
    end_unused,
    local_environments,
    visible_gpus,
)
from parley.settings import ModelSettings, SecuritySettings, Settings, load

pytestmark = pytest.mark.starts_python


def made(kept: Kept, program: str, workers: int, **options: Any) -> LocalExecutor:
    """An executor over small Python children."""
    return LocalExecutor(
        [{"N": str(index)} for index in range(workers)],
        command=("-c", textwrap.dedent(program)),
        news=kept.news.append,
        write=lambda index, line: kept.lines.append((index, line)),
        first_retry_s=0.01,
        **options,
    )


def running(program: str, **options: Any) -> Any:
    return started(functools.partial(made, **options), program, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV])
async def test_a_worker_killed_by_any_signal_is_replaced(number: signal.Signals):
    async with running(WAITER) as (kept, _, _):
        await until(lambda: kept.lines)
        os.kill(kept.pid, number)
        await until(lambda: len(kept.lines) == 2)

    assert kept.of("ended")[0].why == f"killed by {number.name}"
    assert len({news.pid for news in kept.of("started")}) == 2


async def test_a_worker_that_worked_is_started_until_what_it_lacks_is_back(tmp_path: Path):
    disk = tmp_path / "model"
    disk.touch()
    program = f"import os, sys; os.path.exists({str(disk)!r}) or sys.exit(2)\n{WAITER}"
    async with running(program) as (kept, executor, _):
        await until(lambda: kept.lines)
        executor.alive(0, kept.pid)
        disk.unlink()
        os.kill(kept.pid, signal.SIGKILL)
        await until(lambda: len(kept.of("ended")) == 3)
        disk.touch()
        await until(lambda: len(kept.lines) == 2)

    assert [one.why for one in kept.of("ended")][1] == "exit code 2"
    assert kept.of("given_up") == []


async def test_a_stopped_worker_is_killed_and_replaced_after_its_last_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(base, "POLL_S", 0.05)
    async with running(WAITER, heartbeat_limit_s=1.0) as (kept, executor, _):
        await until(lambda: kept.lines)
        first = kept.pid
        for _ in range(12):
            executor.alive(0, first)
            await asyncio.sleep(0.1)
        still = kept.pid
        os.kill(first, signal.SIGSTOP)
        await until(lambda: len(kept.lines) == 2)

    assert still == first
    assert kept.of("ended")[0].why == "hung: no heartbeat for 1 s"


async def test_a_worker_that_loads_for_long_lives_as_long_as_it_comes_further(
    monkeypatch: pytest.MonkeyPatch,
):
    """Only silence kills: three times the limit with signs, then none."""
    monkeypatch.setattr(base, "POLL_S", 0.05)
    program = LOADS_FOR_LONG.replace("LIMIT_S", "3.0")
    async with running(program, loading_limit_s=3.0) as (kept, _, _):
        await until(lambda: kept.of("ended"))

    # Nobody is shown the signs.
    shown = [line for _, line in kept.lines]
    assert shown[-1] == "silent"
    assert not any(base.SIGN_OF_LIFE in line for line in shown)
    assert kept.of("ended")[0].why == "hung: no progress for 3 s while loading"


async def test_a_worker_that_keeps_dying_is_started_later_and_later():
    async with running("raise SystemExit(1)") as (kept, _, _):
        await until(lambda: len(kept.of("ended")) >= 4)

    waits = [news.retry_in_s for news in kept.of("ended")[:4]]
    assert waits == pytest.approx([0.01, 0.02, 0.04, 0.08])


async def test_stopping_leaves_no_process_not_even_a_stubborn_helper():
    program = """
    import signal, subprocess, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(helper.pid, flush=True)
    while True: signal.pause()
    """
    async with running(program) as (kept, executor, watching):
        await until(lambda: kept.lines)
        await executor.stop(0.1)
        await watching

        assert not psutil.pid_exists(kept.pid)
        assert await asyncio.to_thread(_is_gone, int(kept.lines[0][1]))


ANOTHER = "import os; print('another', os.environ['N'], flush=True); os._exit(2)"


async def test_a_prepared_process_becomes_the_first_child_and_does_not_die_of_sighup():
    answer = (
        "import os, signal; os.kill(os.getpid(), signal.SIGHUP);"
        "print('mine', os.environ['N'], 'json' in __import__('sys').modules)"
    )
    async with running(ANOTHER, prepared=_prepared(answer)) as (kept, _, watching):
        await asyncio.wait_for(watching, HANG_S)

    # It ended, and is replaced as any child is.
    assert kept.lines == [(0, "mine 0 True"), (0, "another 0")]


async def test_a_prepared_process_that_has_died_is_not_missed():
    prepared = _prepared("")
    prepared.kill()
    prepared.wait()
    async with running(ANOTHER, prepared=prepared) as (kept, _, watching):
        await asyncio.wait_for(watching, HANG_S)
    end_unused(prepared)

    assert kept.lines == [(0, "another 0")]


def test_a_prepared_process_that_is_not_taken_is_ended():
    prepared = _prepared("")

    end_unused(prepared)

    assert prepared.returncode == -signal.SIGKILL


def _prepared(program: str) -> subprocess.Popen[str]:
    """A prepared process whose command line is a program of the test's."""
    start = (
        "import runpy, sys\n"
        "from parley.executor import child\n"
        f"runpy.run_module = lambda *names, **more: exec({program!r})\n"
        "parent = str(__import__('os').getppid())\n"
        "sys.argv = ['child', parent, '--prepare', 'nowhere,json', 'worker']\n"
        "child.main()\n"
    )
    return node_worker.start(("-c", start), {}, stdin=subprocess.PIPE)


async def test_a_very_long_line_does_not_stop_the_copying():
    program = "import os; print('x' * 200_000); print('after', flush=True); os._exit(2)"
    async with running(program) as (kept, _, watching):
        await asyncio.wait_for(watching, HANG_S)

    assert kept.lines[-1] == (0, "after")


def test_what_a_supervised_process_starts_is_not_supervised(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess, sys\n"
        "from parley.executor import child\n"
        "if sys.argv[1] == 'outer': os.environ[child.SUPERVISED_VARIABLE] = str(os.getpid())\n"
        "print(child.is_supervised(), flush=True)\n"
        "if sys.argv[1] == 'outer': subprocess.run([sys.executable, sys.argv[0], 'inner'])\n"
    )

    said = python(str(program), "outer")

    assert said.stdout.split() == ["True", "False"]


def test_settings_survive_the_way_through_the_environment(monkeypatch: pytest.MonkeyPatch):
    settings = Settings(
        model=ModelSettings(name="/models/o 4.5", slots="auto", default_voice=Path("v.wav")),
        security=SecuritySettings(allowed_origins=("https://a", "https://b"), worker_secret="s"),
    )

    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)

    assert load() == settings


def test_one_worker_per_gpu_unless_told_otherwise():
    one_each = local_environments(Settings(), ["0", "3"])
    three = local_environments(Settings(workers=3), ["0", "3"])
    none = local_environments(Settings(), [])

    assert [e["CUDA_VISIBLE_DEVICES"] for e in one_each] == ["0", "3"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in three] == ["0", "3", "0"]
    assert [e["PARLEY_WORKER__INDEX"] for e in three] == ["0", "1", "2"]
    assert len(none) == 1
    assert "CUDA_VISIBLE_DEVICES" not in none[0]


def test_visible_gpus_follow_the_environment_then_the_driver(tmp_path: Path):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:02:00.0").mkdir()

    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,GPU-abc"}, tmp_path) == ["2", "GPU-abc"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({}, tmp_path / "absent") == []


def _is_gone(pid: int) -> bool:
    """True once a process that is not ours has ended."""
    try:
        process = psutil.Process(pid)
        process.wait(HANG_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE
    return True


async def test_the_contract():
    await check_executor(made)


ORPHAN = """
import pathlib, signal, sys, time
from parley.executor import child

seen = pathlib.Path(sys.argv[2])
for number in (signal.SIGTERM, child.ORPHANED):
    signal.signal(number, lambda number, _: seen.open("a").write(f"{int(number)} "))
child.follow(int(sys.argv[1]))
seen.write_text("ready ")
while seen.read_text() == "ready ":
    time.sleep(0.05)
time.sleep(1)  # for a second signal
"""
PARENT = """
import os, subprocess, sys, threading, time

for _ in range(8):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]])
time.sleep(60)
"""


@pytest.mark.starts_python
async def test_a_lost_parent_has_a_signal_of_its_own_and_never_sigterm(tmp_path: Path) -> None:
    # Linux sends it for each thread of the parent: a second SIGTERM would end all sessions.
    seen = tmp_path / "seen"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, ORPHAN, str(seen)])  # noqa: ASYNC220
    await until(lambda: seen.exists() and "ready" in seen.read_text())
    parent.kill()
    parent.wait(HANG_S)

    await until(lambda: str(int(child.ORPHANED)) in seen.read_text().split())
    assert str(int(signal.SIGTERM)) not in seen.read_text().split()
