"""`python -m tools.bench relay`: the gateway's latency, and the number of sessions it can carry.

Duplex sessions exchange messages of realistic size once a second: a client sends a second of audio
(with a camera frame if requested) and a worker answers immediately with a second of audio. Gateway,
worker and clients are separate processes on this machine. Some concurrent sessions connect to the
worker directly, so that the gateway's cost can be distinguished from that of a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import ssl
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer
import uvloop
from tools.bench import relay_resume
from tools.bench.processes import rss_mb, threads_cpu_s
from tools.bench.relay_parts import raise_file_limit

from parley.cli.bench.figures import Figures
from parley.cli.bench.server import START_LIMIT_S, child
from parley.errors import SetupError
from parley.transport import (
    Connection,
    ConnectionClosed,
    ConnectionLimits,
    Keepalive,
    Message,
    dial,
)
from parley.transport.framing import TEXT, frame

SOUND_UP_BYTES: Final = 85_334
"""Size of one second of audio: 16 kHz float32, base64."""
FRAME_BYTES: Final = 40_000
"""Size of a camera frame as base64 JPEG."""
DOWN_BYTES: Final = 128_000
"""Size of one second of audio: 24 kHz float32, base64."""
LATE_S: Final = 1.0
"""An answer that takes longer is late."""


@dataclass(slots=True)
class Tally:
    """Measurements of the sessions of one kind."""

    answers_ms: list[float] = field(default_factory=list)
    sessions: int = 0
    broken: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class RelayReport:
    """Result of a run. CPU time and memory are the gateway's; None if the system does not report
    them."""

    through: Tally
    direct: Tally
    seconds: float
    cpu_s: float | None
    rss_mb: float | None
    rss_before_mb: float | None


def relay(
    sessions: Annotated[int, typer.Option(min=1, help="Sessions through the gateway.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long to measure.")] = 10.0,
    frame: Annotated[bool, typer.Option("--frame", help="With a 40 KB camera frame.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Clients connect by HTTPS.")] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Measure the cost of resuming instead."),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="With --resume.")] = 5,
) -> None:
    """Measure the gateway's latency, and the number of sessions it can carry."""
    raise_file_limit()
    if resume:
        cost = uvloop.run(relay_resume.measure(sessions, seconds, rounds))
        typer.echo(cost.describe())
        return
    report = uvloop.run(measure(sessions, seconds, has_frame=frame, has_tls=tls))
    typer.echo(describe(report, has_frame=frame))


def describe(report: RelayReport, *, has_frame: bool) -> str:
    """The report as readable text."""
    through, direct = Figures.of(report.through.answers_ms), Figures.of(report.direct.answers_ms)
    up_kb = (SOUND_UP_BYTES + (FRAME_BYTES if has_frame else 0)) / 1000
    lines = [
        f"machine             {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        f"messages            {up_kb:.0f} KB up, {DOWN_BYTES / 1000:.0f} KB down, "
        "once a second each",
        f"sessions held       {report.through.sessions - report.through.broken} of "
        f"{report.through.sessions}; {report.through.late} of {through.count} units late",
        f"through the gateway {through}",
        f"direct              {direct}   ({report.direct.sessions} sessions)",
        f"added               p50 {through.p50_ms - direct.p50_ms:.2f} ms, "
        f"p99 {through.p99_ms - direct.p99_ms:.2f} ms",
    ]
    if report.cpu_s is not None and through.count:
        per_unit_ms = 1000 * report.cpu_s / through.count
        share = report.cpu_s / report.seconds
        lines.append(
            f"gateway CPU         {per_unit_ms:.3f} ms per unit, {100 * share:.0f} % of a core; "
            f"one core carries about {1000 / per_unit_ms:.0f} sessions"
        )
    if report.rss_mb is not None and report.rss_before_mb is not None:
        lines.append(
            f"gateway memory      {report.rss_mb:.0f} MB, {report.rss_before_mb:.0f} MB before"
        )
    return "\n".join(lines)


async def measure(
    sessions: int, seconds: float, *, has_frame: bool, has_tls: bool = False
) -> RelayReport:
    """Start the processes, run the sessions, and measure.

    Raises:
        SetupError: a process did not start.
    """
    direct_sessions = max(2, min(20, sessions // 10))
    async with contextlib.AsyncExitStack() as stack:
        folder = [stack.enter_context(tempfile.TemporaryDirectory())] if has_tls else []
        gateway, urls = await stack.enter_async_context(_part("gateway", *folder))
        gateway_url, control_url = urls.split()
        _, worker_url = await stack.enter_async_context(
            _part("worker", control_url, str(sessions), str(DOWN_BYTES))
        )
        await asyncio.sleep(0.5)  # until the worker has introduced itself
        rss_before_mb = rss_mb(gateway.pid)
        clients = _Clients(has_frame=has_frame)
        ways = [
            (f"{_ws(gateway_url)}/ws/duplex/adx_{{index}}", sessions, clients.through),
            (f"{_ws(worker_url)}/session/duplex", direct_sessions, clients.direct),
        ]
        await clients.connect(ways)
        loop = asyncio.get_running_loop()
        talking = asyncio.create_task(clients.talk())
        await asyncio.sleep(2.0)  # the first units warm up sockets and buffers
        clients.is_counting = True
        began, cpu_before = loop.time(), _cpu_s(gateway.pid)
        await asyncio.sleep(seconds)
        clients.is_counting = False
        took, cpu_after = loop.time() - began, _cpu_s(gateway.pid)
        rss_after_mb = rss_mb(gateway.pid)
        talking.cancel()
        await asyncio.wait({talking})
        clients.hang_up()
        known = cpu_before is not None and cpu_after is not None
        return RelayReport(
            through=clients.through,
            direct=clients.direct,
            seconds=took,
            cpu_s=cpu_after - cpu_before if known else None,  # type: ignore[operator]
            rss_mb=rss_after_mb,
            rss_before_mb=rss_before_mb,
        )


class _Clients:
    """All clients, in this process."""

    def __init__(self, *, has_frame: bool) -> None:
        size = SOUND_UP_BYTES + (FRAME_BYTES if has_frame else 0)
        payload = b'{"type":"audio_chunk","audio_base64":"' + b"A" * size + b'"}'
        # Masked once, because a browser's work is not measured here.
        self._unit = Message(TEXT, [frame(TEXT, payload, mask=True)], len(payload))
        self._keepalive = Keepalive()
        # The certificate was just created by our own process.
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE
        self._members: list[tuple[Connection, Tally]] = []
        self.through = Tally()
        self.direct = Tally()
        self.is_counting = False

    async def connect(self, ways: list[tuple[str, int, Tally]]) -> None:
        """Open all connections, a limited number at a time, and wait until every session is
        ready."""
        gate = asyncio.Semaphore(50)

        async def one(url: str, tally: Tally) -> None:
            async with gate:
                connection = await dial(
                    url,
                    headers={},
                    limits=ConnectionLimits(),
                    keepalive=self._keepalive,
                    open_limit_s=30.0,
                    tls=self._tls if url.startswith("wss:") else None,
                )
                self._members.append((connection, tally))
                tally.sessions += 1
                if tally is self.through:
                    async with asyncio.timeout(60.0):
                        while b"queue_done" not in (await connection.receive()).payload():
                            pass

        async with asyncio.TaskGroup() as tasks:
            for url, count, tally in ways:
                for index in range(count):
                    tasks.create_task(one(url.format(index=index), tally))

    async def talk(self) -> None:
        """Send a unit per second on every connection, each at its own phase, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for connection, tally in self._members:
                tasks.create_task(self._speak(connection, tally, random.random()))

    async def _speak(self, connection: Connection, tally: Tally, phase_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + phase_s
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            is_counted = self.is_counting
            sent_at = time.perf_counter()
            connection.pass_on(self._unit)
            try:
                await connection.receive()
            except ConnectionClosed:
                tally.broken += 1
                return
            took_s = time.perf_counter() - sent_at
            if is_counted:
                tally.answers_ms.append(1000 * took_s)
                tally.late += took_s > LATE_S
            due = max(due + 1.0, loop.time())

    def hang_up(self) -> None:
        for connection, _ in self._members:
            connection.abort()


@contextlib.asynccontextmanager
async def _part(*words: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    async with child("tools.bench.relay_parts", *words, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        async with asyncio.timeout(START_LIMIT_S):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise SetupError(f"The {words[0]} did not start.", hint="The lines above say why.")
        yield process, url


def _ws(url: str) -> str:
    return "ws" + url.removeprefix("http")


def _cpu_s(pid: int) -> float | None:
    """CPU time of a process, if the system reports it."""
    with contextlib.suppress(SetupError):
        return threads_cpu_s(pid)
    return None
