import asyncio
import contextlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from tests.contracts.executor import LOADS_FOR_LONG, Kept, check_executor
from tests.support.gateways import until
from tests.support.patience import HANG_S

from parley.executor import child, local
from parley.executor.base import SIGN_OF_LIFE, WorkerNews
from parley.executor.local import (
    LocalExecutor,
    as_environment,
    end_unused,
    local_environments,
    visible_gpus,
)
from parley.settings import ModelSettings, SecuritySettings, Settings, load

pytestmark = pytest.mark.starts_python


class Executing:
    """An executor over small Python children, and what became of them."""

    def __init__(
        self,
        program: str,
        *,
        workers: int = 1,
        limits: dict[str, float] | None = None,
        prepared: asyncio.subprocess.Process | None = None,
        **environment: str,
    ) -> None:
        self.news: asyncio.Queue[WorkerNews] = asyncio.Queue()
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.executor = LocalExecutor(
            [{"N": str(index), **environment} for index in range(workers)],
            command=[sys.executable, "-c", textwrap.dedent(program)],
            news=self.news.put_nowait,
            write=lambda index, line: self.lines.put_nowait(f"worker {index} │ {line}"),
            first_retry_s=0.01,
            prepared=prepared,
            **(limits or {}),
        )

    async def next_news(self, kind: str) -> WorkerNews:
        async with asyncio.timeout(HANG_S):
            while (news := await self.news.get()).kind != kind:
                pass
            return news

    async def next_line(self) -> str:
        async with asyncio.timeout(HANG_S):
            return await self.lines.get()

    @contextlib.asynccontextmanager
    async def running(self):
        await self.executor.start()
        watching = asyncio.create_task(self.executor.watch())
        try:
            yield watching
        finally:
            await self.executor.stop(2.0)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


WAITER = "import os, signal; print('up', os.environ['N'], flush=True); signal.pause()"


async def test_output_appears_with_the_workers_name_in_front():
    executing = Executing(WAITER, workers=2)

    async with executing.running():
        lines = {await executing.next_line(), await executing.next_line()}

    assert lines == {"worker 0 │ up 0", "worker 1 │ up 1"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_worker_killed_by_any_signal_is_replaced(number: signal.Signals):
    executing = Executing(WAITER)

    async with executing.running():
        await executing.next_line()
        first = executing.executor.pids[0]
        os.kill(first, number)
        ended = await executing.next_news("ended")
        await executing.next_line()
        second = executing.executor.pids[0]

    assert ended.why == f"killed by {number.name}"
    assert second != first


async def test_a_stopped_worker_is_killed_and_replaced_after_its_last_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("parley.executor.local.CHECK_EVERY_S", 0.05)
    executing = Executing(WAITER, limits={"heartbeat_limit_s": 0.3})

    async with executing.running():
        await executing.next_line()
        first = executing.executor.pids[0]
        for _ in range(10):
            executing.executor.alive(0, first)
            await asyncio.sleep(0.06)
        still = executing.executor.pids[0]
        os.kill(first, signal.SIGSTOP)
        ended = await executing.next_news("ended")
        await executing.next_line()
        second = executing.executor.pids[0]

    assert still == first
    assert ended.why == "hung: no heartbeat for 0.3 s"
    assert second != first


async def test_a_worker_that_is_never_ready_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("parley.executor.local.CHECK_EVERY_S", 0.05)
    executing = Executing(WAITER, limits={"loading_limit_s": 0.5, "heartbeat_limit_s": 60})

    async with executing.running():
        ended = await executing.next_news("ended")
        await executing.next_news("started")

    assert ended.why == "hung: no progress for 0.5 s while loading"


async def test_a_worker_that_loads_for_long_lives_as_long_as_it_comes_further(
    monkeypatch: pytest.MonkeyPatch,
):
    """Only silence kills: three times the limit with signs, then none."""
    monkeypatch.setattr("parley.executor.local.CHECK_EVERY_S", 0.05)
    executing = Executing(
        LOADS_FOR_LONG.replace("LIMIT_S", "3.0"),
        limits={"loading_limit_s": 3.0, "heartbeat_limit_s": 60},
    )

    async with executing.running():
        shown = []
        while "silent" not in (line := await executing.next_line()):
            shown.append(line)
        ended = await executing.next_news("ended")

    # Nobody is shown the signs.
    assert all(SIGN_OF_LIFE not in line for line in shown)
    assert ended.why == "hung: no progress for 3 s while loading"


async def test_a_worker_whose_set_up_is_wrong_is_not_started_again():
    executing = Executing("import sys; print('no such model'); sys.exit(2)")

    async with executing.running() as watching:
        await asyncio.wait_for(watching, HANG_S)

    assert (await executing.next_news("given_up")).why == "exit code 2"
    assert await executing.next_line() == "worker 0 │ no such model"


async def test_a_worker_that_keeps_dying_is_started_later_and_later():
    executing = Executing("raise SystemExit(1)")

    async with executing.running():
        waits = [(await executing.next_news("ended")).retry_in_s for _ in range(4)]

    assert waits == pytest.approx([0.01, 0.02, 0.04, 0.08])


async def test_stopping_leaves_no_process_not_even_a_stubborn_helper():
    executing = Executing(
        """
        import signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        helper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        print(helper.pid, flush=True)
        while True: signal.pause()
        """
    )

    await executing.executor.start()
    watching = asyncio.create_task(executing.executor.watch())
    helper = int((await executing.next_line()).rpartition(" ")[2])
    worker = executing.executor.pids[0]
    await executing.executor.stop(0.1)
    await asyncio.gather(watching)

    assert not psutil.pid_exists(worker)
    assert await asyncio.to_thread(_is_gone, helper)


ANOTHER = "import os; print('another', os.environ['N'], flush=True); os._exit(2)"


async def test_a_prepared_process_becomes_the_first_child(monkeypatch: pytest.MonkeyPatch):
    answer = "import os; print('mine', os.environ['N'], 'json' in __import__('sys').modules)"
    prepared = await _prepared(answer, monkeypatch)
    executing = Executing(ANOTHER, prepared=prepared)

    async with executing.running() as watching:
        assert await executing.next_line() == "worker 0 │ mine 0 True"
        # It ended, and is replaced as any child is.
        assert await executing.next_line() == "worker 0 │ another 0"
        await asyncio.wait_for(watching, HANG_S)


async def test_a_prepared_process_that_has_died_is_not_missed(monkeypatch: pytest.MonkeyPatch):
    prepared = await _prepared("", monkeypatch)
    prepared.kill()
    await prepared.wait()
    executing = Executing(ANOTHER, prepared=prepared)

    async with executing.running():
        assert await executing.next_line() == "worker 0 │ another 0"


async def test_a_prepared_process_that_is_not_taken_is_ended(monkeypatch: pytest.MonkeyPatch):
    prepared = await _prepared("", monkeypatch)

    await end_unused(prepared)

    assert prepared.returncode == -signal.SIGKILL


async def _prepared(program: str, monkeypatch: pytest.MonkeyPatch):
    """A prepared process whose command line is a program of the test's."""
    start = (
        "import runpy, sys\n"
        "from parley.executor import child\n"
        f"runpy.run_module = lambda *names, **more: exec({program!r})\n"
        "parent = str(__import__('os').getppid())\n"
        "sys.argv = ['child', parent, '--prepare', 'nowhere,json', 'worker']\n"
        "child.main()\n"
    )
    monkeypatch.setattr(local, "worker_command", lambda *words: [sys.executable, "-c", start])
    return await local.prepare_worker("nowhere", "json")


async def test_a_very_long_line_does_not_stop_the_copying():
    executing = Executing(
        "import os; print('x' * 200_000); print('after', flush=True); os._exit(2)"
    )

    async with executing.running() as watching:
        await asyncio.wait_for(watching, HANG_S)

    lines = [executing.lines.get_nowait() for _ in range(executing.lines.qsize())]
    assert lines[-1] == "worker 0 │ after"


def test_a_child_does_not_outlive_a_parent_that_is_killed_outright(tmp_path: Path):
    child = tmp_path / "child.py"
    child.write_text(
        "import os, signal\n"
        "from parley.executor.child import follow\n"
        "follow(int(os.environ['PARENT']))\n"
        "print(os.getpid(), flush=True)\n"
        "while True: signal.pause()\n"
    )
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import os, subprocess, sys\n"
        "os.environ['PARENT'] = str(os.getpid())\n"
        f"subprocess.Popen([sys.executable, {str(child)!r}], start_new_session=True).wait()\n"
    )
    process = subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())

    process.kill()
    process.wait()
    process.stdout.close()

    assert _is_gone(pid)


def test_a_child_leaves_unknown_settings_to_its_parent_who_has_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "parley.toml").write_text("[gateway]\nprot = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["child", "1", "worker"])
    monkeypatch.setenv(child.SUPERVISED_VARIABLE, "")
    monkeypatch.setattr(child, "follow", lambda parent: None)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: load())
    log = logging.getLogger("parley.settings")
    level = log.level

    load()
    said_by_the_parent = caplog.text
    caplog.clear()
    try:
        child.main()
    finally:
        log.setLevel(level)

    assert "unknown setting 'gateway.prot'" in said_by_the_parent
    assert caplog.text == ""


def test_what_a_supervised_process_starts_is_not_supervised(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess, sys\n"
        "from parley.executor import child\n"
        "if sys.argv[1] == 'outer': os.environ[child.SUPERVISED_VARIABLE] = str(os.getpid())\n"
        "print(child.is_supervised(), flush=True)\n"
        "if sys.argv[1] == 'outer': subprocess.run([sys.executable, sys.argv[0], 'inner'])\n"
    )

    said = subprocess.run(
        [sys.executable, str(program), "outer"], stdout=subprocess.PIPE, text=True, check=True
    )

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
    def make(kept: Kept, program: str, workers: int) -> LocalExecutor:
        return LocalExecutor(
            [{"N": str(index)} for index in range(workers)],
            command=[sys.executable, "-c", program],
            news=kept.news.append,
            write=lambda index, line: kept.lines.append((index, line)),
            first_retry_s=0.1,
        )

    await check_executor(make)


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
