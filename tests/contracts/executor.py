"""The contract of every executor, as tests: how it starts, replaces and stops its workers."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
from tests.support.gateways import until
from tests.support.patience import PROCESS_S

from parley.executor.base import Executor, WorkerNews

WAITER = "import os, signal; print('up', os.environ['N'], flush=True); signal.pause()"
LOADS_FOR_LONG = """
import signal, time
from parley import logs
from parley.executor import child
child.SIGN_EVERY_S = 0.0
logs.on_progress(child.ProgressSigns())
began = time.monotonic()
while time.monotonic() - began < 3 * LIMIT_S:
    logs.progress(logs.get("loading"), "weights_read")
    time.sleep(0.2)
print("silent", flush=True)
signal.pause()
"""
"""Reports progress for three times `LIMIT_S`, which the test replaces, and then stops."""

MISSING = "import sys; print('no such model', flush=True); sys.exit(2)"


@dataclass(slots=True)
class Kept:
    """News and output lines that an executor reported."""

    news: list[WorkerNews] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def of(self, kind: str) -> list[WorkerNews]:
        return [news for news in self.news if news.kind == kind]

    @property
    def pid(self) -> int:
        """Process id of the process that was started last."""
        return self.of("started")[-1].pid


Make = Callable[[Kept, str, int], Executor]
"""Creates an executor that reports to a `Kept`, and runs a Python program in a number of
workers."""


@contextlib.asynccontextmanager
async def started(make: Make, program: str, workers: int):
    kept = Kept()
    executor = make(kept, program, workers)
    await executor.start()
    watching = asyncio.create_task(executor.watch())
    try:
        yield kept, executor, watching
    finally:
        await executor.stop(2.0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def check_executor(make: Make) -> None:
    """The contract of `parley.executor.base.Executor`."""
    await _replaces_what_dies_and_leaves_nothing(make)
    await _gives_up_what_cannot_start(make)


async def _replaces_what_dies_and_leaves_nothing(make: Make) -> None:
    async with started(make, WAITER, 2) as (kept, executor, _):
        assert executor.workers == 2
        await until(lambda: len(kept.of("started")) == 2, PROCESS_S)
        await until(lambda: set(kept.lines) == {(0, "up 0"), (1, "up 1")}, PROCESS_S)
        first = next(news for news in kept.of("started") if news.index == 0)
        executor.alive(0, first.pid)
        executor.alive(0, 999_999_999)
        executor.alive(7, first.pid)

        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: len(kept.of("started")) == 3, PROCESS_S)

        (ended,) = kept.of("ended")
        assert (ended.index, ended.pid, ended.why) == (0, first.pid, "killed by SIGKILL")
        assert kept.of("started")[-1].index == 0
        pids = [news.pid for news in kept.of("started")]
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids), PROCESS_S)


async def _gives_up_what_cannot_start(make: Make) -> None:
    async with started(make, MISSING, 1) as (kept, _, watching):
        await asyncio.wait_for(watching, PROCESS_S)

    assert len(kept.of("given_up")) == 1
    assert kept.of("ended") == []
    assert kept.lines == [(0, "no such model")]
