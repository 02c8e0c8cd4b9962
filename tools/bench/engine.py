"""`python -m tools.bench engine`: waits of the engine thread while sessions talk.

Engine and sessions share a process, and so the interpreter's lock. Here a worker runs in this
process as in production, with the gateway and clients in other processes; its model launches as
much as the published one on an H200 (`paced_model.py`). The bench splits the engine thread's time
into a command's wait for the thread, and the time in a step in which the thread neither runs nor
waits for a core or the device. It measures first without sessions, driven in this process, then
with them. Needs /proc (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from tools.bench.host_waits import queued_s
from tools.bench.paced_model import (
    UNIT_STEPS,
    Costs,
    Launches,
    PacedModel,
    Timings,
    paper_costs,
)

from parley import logs
from parley.cli.bench import model as bench_model
from parley.cli.bench.figures import Figures
from parley.cli.bench.server import child, running
from parley.engine.work import Stage
from parley.errors import SetupError
from parley.settings import load
from parley.worker.main import SWITCH_INTERVAL_S, WorkerProcess

START_S: Final = 90.0
"""Time within which worker and clients must be ready."""

ENGINE_THREAD: Final = "engine"
"""Name of the thread that runs steps. Source: `Engine.start`."""

TICK_S: Final = 0.01
"""Interval at which the event loop's lateness is measured."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time used by this process.

    Args:
        clock_s: elapsed time.
        cpu_s: its CPU time.
        queued_s: time for which its threads, except the engine's, waited for a processor.
        stolen_s: processor time that the host of a virtual machine took.
    """

    clock_s: float
    cpu_s: float
    queued_s: float
    stolen_s: float

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.process_time(), _others_queued(), _stolen())

    def since(self) -> Spent:
        """The difference from this to now, without threads that ended in between."""
        now = Spent.now()
        return Spent(
            now.clock_s - self.clock_s,
            now.cpu_s - self.cpu_s,
            max(0.0, now.queued_s - self.queued_s),
            now.stolen_s - self.stolen_s,
        )


def _stolen() -> float:
    # The first line: cpu, user, nice, system, idle, iowait, irq, softirq, steal.
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return int(first[8]) / os.sysconf("SC_CLK_TCK")


def _others_queued() -> float:
    engine = {str(one.native_id) for one in threading.enumerate() if one.name == ENGINE_THREAD}
    total_s = 0.0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        if task.parent.name not in engine:
            # A thread may end while its file is read.
            with contextlib.suppress(OSError):
                total_s += queued_s(task.read_bytes())
    return total_s


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of one run. All but `cpu`, `others_queued`, `stolen` and `steps` are durations.

    Args:
        wait: from when a command is ready until the engine thread starts it.
        step_lock: time that a step lost to the interpreter's lock, an upper bound.
        second_lock: time per second that the engine lost to it, in waits and steps.
        second_idle: time per second for which the device had nothing to do during steps.
        second_own, second_processor, second_other: the same, because the engine thread was
            computing, waiting for a processor, or waiting for the interpreter's lock.
        second_between: CPU time per second of the engine thread between steps.
        second_busy: duration of the steps per second.
        loop_late: lateness of the event loop.
        cpu: CPU time of the process, in seconds per second.
        others_queued: time for which its other threads waited for a processor, in seconds per
            second; a waiting thread may hold the lock.
        stolen: time that a virtual machine's host took of all processors, in seconds per second.
        steps: number of measured steps.
    """

    wait: Figures
    step_lock: Figures
    second_lock: Figures
    second_idle: Figures
    second_own: Figures
    second_processor: Figures
    second_other: Figures
    second_between: Figures
    second_busy: Figures
    loop_late: Figures
    cpu: float
    others_queued: float
    stolen: float
    steps: int

    @classmethod
    def of(cls, timings: Timings, late_s: Iterable[float], spent: Spent) -> EngineFigures:
        steps, waits = timings.steps, timings.waits_s
        return cls(
            wait=_figures(waited_s for _, waited_s in waits),
            step_lock=_figures(step.lock_s for step in steps),
            second_lock=_by_second([*waits, *((step.ended_s, step.lock_s) for step in steps)]),
            second_idle=_by_second([(step.ended_s, step.idle.total_s) for step in steps]),
            second_own=_by_second([(step.ended_s, step.idle.own_s) for step in steps]),
            second_processor=_by_second([(step.ended_s, step.idle.processor_s) for step in steps]),
            second_other=_by_second([(step.ended_s, step.idle.lock_s) for step in steps]),
            second_between=_by_second([(step.ended_s, step.before_s) for step in steps]),
            second_busy=_by_second([(step.ended_s, step.took_s) for step in steps]),
            loop_late=_figures(late_s),
            cpu=spent.cpu_s / spent.clock_s,
            others_queued=spent.queued_s / spent.clock_s,
            stolen=spent.stolen_s / spent.clock_s,
            steps=len(steps),
        )


@dataclass(frozen=True, slots=True)
class PaperSecond:
    """Calculation for a second in which all conversations take each step of a unit together: the
    time that the device needs, plus the steps' share of the measured host times. It assumes that
    processors are available when needed.

    Args:
        host_ms: the engine's own work that does not overlap with the device's.
        lock_ms: its waits for the interpreter's lock, including those of commands.
    """

    steps: int
    device_ms: float
    host_ms: float
    lock_ms: float

    @classmethod
    def of(cls, launches: Mapping[Stage, Launches], found: EngineFigures) -> PaperSecond:
        steps = sum(UNIT_STEPS.values())
        measured = max(1, found.steps) / max(1, found.second_busy.count)
        device_s = sum(count * sum(launches[stage]) for stage, count in UNIT_STEPS.items())
        own_ms = found.second_own.p50_ms + found.second_between.p50_ms
        return cls(
            steps=steps,
            device_ms=1000 * device_s,
            host_ms=own_ms * steps / measured,
            lock_ms=found.second_lock.p50_ms * steps / measured,
        )

    def __str__(self) -> str:
        together_ms = self.device_ms + self.host_ms + self.lock_ms
        return (
            f"{self.steps} steps (calculated): device {self.device_ms:.0f} + engine computes "
            f"{self.host_ms:.0f} + waits for the lock {self.lock_ms:.0f} = {together_ms:.0f} ms"
        )


def engine(
    sessions: Annotated[int, typer.Option(min=1, max=64, help="Concurrent conversations.")] = 32,
    seconds: Annotated[int, typer.Option(min=2, max=600, help="Length of the conversations.")] = 30,
    switch_interval_ms: Annotated[
        float | None,
        typer.Option(min=0.001, max=100, help="Python's switch interval; default: a worker's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the waits of the engine thread while sessions talk."""
    logs.configure(level="warning", style="text")
    with _switching_every(switch_interval_ms):
        costs = paper_costs(sessions)
        found = measure(costs, sessions, seconds)
    paper = {name: PaperSecond.of(costs[sessions], one) for name, one in found.items()}
    if as_json:
        figures = {name: dataclasses.asdict(one) for name, one in found.items()}
        on_paper = {name: dataclasses.asdict(one) for name, one in paper.items()}
        typer.echo(json.dumps(figures | {"all in the same steps": on_paper}))
        return
    for name, one in found.items():
        typer.echo(f"{name}: {one.steps} steps, {one.cpu:.2f} cores")
        typer.echo(f"  command ready to running          {one.wait}")
        typer.echo(f"  step waits for the lock           {one.step_lock}")
        typer.echo(f"  waits of a second, commands too   {one.second_lock}")
        typer.echo(f"  device without work, of a second  {one.second_idle}")
        typer.echo(f"    the engine computes             {one.second_own}")
        typer.echo(f"    it waits for a processor        {one.second_processor}")
        typer.echo(f"    it waits for the lock           {one.second_other}")
        typer.echo(f"  computes between steps            {one.second_between}")
        typer.echo(f"  other threads wait for a core     {one.others_queued:.3f} s of a second")
        typer.echo(f"  the machine's host took           {one.stolen:.3f} s of a second")
        typer.echo(f"  stepping, of a second             {one.second_busy}")
        typer.echo(f"  event loop late                   {one.loop_late}")
        typer.echo(f"  all units in the same steps       {paper[name]}")


def measure(costs: Costs, sessions: int, seconds: int) -> dict[str, EngineFigures]:
    """Figures without and with traffic, by name."""
    return {
        "no sessions": uvloop.run(_alone(PacedModel(sessions, costs), seconds)),
        f"{sessions} sessions": uvloop.run(_next_to(PacedModel(sessions, costs), seconds)),
    }


@contextlib.contextmanager
def _switching_every(interval_ms: float | None) -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S if interval_ms is None else interval_ms / 1000)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


async def _alone(model: PacedModel, seconds: int) -> EngineFigures:
    """Drive the conversations in this process, without sockets, messages and recordings."""
    before = Spent.now()
    async with _late() as late_s:
        await bench_model.measure(model, units=seconds)
    return EngineFigures.of(model.take_timings(), late_s, before.since())


async def _next_to(model: PacedModel, seconds: int) -> EngineFigures:
    """Run a worker in this process, and clients that talk to it through a gateway."""
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        data_dir = Path(folder) / "data"
        limit = {"PARLEY_LIMITS__SESSIONS_PER_CLIENT": str(2 * model.rows)}
        async with (
            running("gateway", data_dir=data_dir, variables=limit) as url,
            _worker(url, data_dir, model),
            _clients(url, model.rows, seconds) as clients,
            _late() as late_s,
        ):
            assert clients.stdout is not None
            model.take_timings()
            before = Spent.now()
            answers = int(await clients.stdout.readline() or 0)
            timings, spent = model.take_timings(), before.since()
        if not answers:
            raise SetupError("Nobody was answered.", hint="The lines above say why.")
    return EngineFigures.of(timings, late_s, spent)


@contextlib.asynccontextmanager
async def _worker(url: str, data_dir: Path, model: PacedModel) -> AsyncIterator[None]:
    flags = {"worker.gateway_url": url, "storage.data_dir": data_dir, "worker.http": True}
    worker = WorkerProcess(load(None, flags), load_model=lambda: model)
    working = asyncio.create_task(worker.run(), name="worker")
    try:
        async with asyncio.timeout(START_S):
            while not working.done() and (worker.host is None or not worker.host.free_slots):
                await asyncio.wait({working}, timeout=TICK_S)
        if working.done():
            raise SetupError("The worker ended before it was ready.")
        yield
    finally:
        worker.stop_now()
        await working


@contextlib.asynccontextmanager
async def _clients(
    url: str, sessions: int, seconds: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The clients in a separate process, once all conversations have started."""
    words = (url, str(sessions), str(seconds))
    async with child("tools.bench.engine_clients", *words, stdout=PIPE) as process:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            if await process.stdout.readline() != b"ready\n":
                raise SetupError("The clients did not start.", hint="The lines above say why.")
        yield process


@contextlib.asynccontextmanager
async def _late() -> AsyncIterator[list[float]]:
    """The event loop's lateness in seconds, measured repeatedly."""
    late_s: list[float] = []

    async def ask() -> None:
        while True:
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s.append(max(0.0, time.perf_counter() - due_s))

    asking = asyncio.create_task(ask(), name="lateness")
    try:
        yield late_s
    finally:
        asking.cancel()


def _figures(durations_s: Iterable[float]) -> Figures:
    return Figures.of([1000 * duration_s for duration_s in durations_s])


def _by_second(found: Iterable[tuple[float, float]]) -> Figures:
    """Figures of the sums per whole second, for seconds with any value."""
    sums_s: dict[int, float] = {}
    for when_s, duration_s in found:
        second = int(when_s)
        sums_s[second] = sums_s.get(second, 0.0) + duration_s
    return _figures(sums_s.values())


__all__ = ["EngineFigures", "engine", "measure"]
