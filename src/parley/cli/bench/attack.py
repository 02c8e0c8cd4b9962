"""`parley bench attack`: the effect of one misbehaving client on live sessions.

A separate server (gateway and worker with the parrot model, on loopback) runs duplex sessions that
send a unit every second. Then one attacker of each kind, a separate process that may use one core,
attacks for a limited time. The answers of the live sessions, `/health`, and the memory of gateway
and worker are measured without an attack and during each.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer
import uvloop

from parley.cli.bench.attackers import ATTACKS
from parley.cli.bench.figures import Figures
from parley.cli.bench.server import child, server
from parley.client.duplex import DuplexClient
from parley.client.events import Ended, Listening, Problem, Speaking
from parley.errors import ParleyError
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import DuplexConfig
from parley.tasks import end_tasks

HEALTH_EVERY_S: Final = 0.5
WARM_S: Final = 3.0
"""The first units warm up sockets and buffers and are not counted."""
REST_S: Final = 2.0
"""Pause between two attacks."""
SPARE_SLOTS: Final = 4
"""Number of slots for attackers that need a session."""

AIM_MS: Final = 100.0
"""Allowed increase of the 99th percentile by one attacker."""

HEAD: Final = (
    "| attacker      | p50 ms | quiet p99 | p99 ms  | more ms | max ms | units | /health  "
    "| lost | MB |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)

_SILENCE = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)


@dataclass(slots=True)
class Observed:
    """Measurements of one period."""

    answers_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    memory_mb: dict[str, float] = field(default_factory=dict)
    broken: int = 0
    """Live sessions lost in this period."""

    def remember(self, sizes: dict[str, float]) -> None:
        for name, size in sizes.items():
            self.memory_mb[name] = max(size, self.memory_mb.get(name, 0.0))


def attack(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="ATTACK", help=f"Default: all of {', '.join(ATTACKS)}."),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, max=100, help="Live sessions.")] = 20,
    seconds: Annotated[float, typer.Option(min=2, max=60, help="Length of each attack.")] = 8.0,
) -> None:
    """Measure the effect of one misbehaving client on live sessions.

    The exit code is 1 if a live session was lost.
    """
    unknown = sorted(set(kinds or ()) - set(ATTACKS))
    if unknown:
        raise typer.BadParameter(f"There is no attack '{unknown[0]}'; --help lists them.")
    if uvloop.run(measure(kinds or list(ATTACKS), sessions, seconds)):
        raise typer.Exit(1)


async def measure(kinds: list[str], sessions: int, seconds: float) -> int:
    """Run everything and print a line for each period as it ends.

    Returns:
        The number of live sessions that were lost.
    """
    load = os.getloadavg()[0]
    typer.echo(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} before; "
        f"{sessions} live sessions, {seconds:g} s each"
    )
    async with server(sessions + SPARE_SLOTS) as url:
        clients = _Clients(url)
        async with clients.talking(sessions):
            await asyncio.sleep(WARM_S)
            quiet = await clients.watch(seconds)
            typer.echo(HEAD)
            typer.echo(_line("quiet", quiet, quiet))
            rows = {}
            for kind in kinds:
                rows[kind] = await _under(kind, url, clients, seconds)
                typer.echo(_line(kind, rows[kind], quiet))
                await asyncio.sleep(REST_S)
            rows["quiet again"] = await clients.watch(seconds)
            typer.echo(_line("quiet again", rows["quiet again"], quiet))
    worst = max(rows, key=lambda name: Figures.of(rows[name].answers_ms).p99_ms)
    more_ms = Figures.of(rows[worst].answers_ms).p99_ms - Figures.of(quiet.answers_ms).p99_ms
    lost = quiet.broken + sum(seen.broken for seen in rows.values())
    typer.echo(
        f"worst: {worst}, p99 {more_ms:+.1f} ms to quiet (aim: {AIM_MS:g}); sessions lost: {lost}"
    )
    return lost


async def _under(kind: str, url: str, clients: _Clients, seconds: float) -> Observed:
    words = (kind, url, str(seconds))
    pipe = asyncio.subprocess.PIPE
    async with child("parley.cli.bench.attackers", *words, stdout=pipe) as attacker:
        assert attacker.stdout is not None
        await attacker.stdout.readline()
        return await clients.watch(seconds)


def _line(name: str, seen: Observed, quiet: Observed) -> str:
    figures, before = Figures.of(seen.answers_ms), Figures.of(quiet.answers_ms)
    health = max(seen.health_ms, default=0.0)
    sizes = ", ".join(
        f"{process} {size:.0f} ({size - quiet.memory_mb.get(process, 0.0):+.0f})"
        for process, size in sorted(seen.memory_mb.items())
    )
    return (
        f"| {name:<13} | {figures.p50_ms:6.1f} | {before.p99_ms:9.1f} | {figures.p99_ms:7.1f} "
        f"| {figures.p99_ms - before.p99_ms:+7.1f} | {figures.max_ms:6.0f} | {figures.count:5} "
        f"| {health:8.0f} | {seen.broken:4} | {sizes} |"
    )


class _Clients:
    def __init__(self, url: str) -> None:
        self._url = url
        self._seen = Observed()
        self._live: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def talking(self, sessions: int) -> AsyncIterator[None]:
        self._live = [self._begin(index / sessions) for index in range(sessions)]
        try:
            yield
        finally:
            await end_tasks(*self._live)

    def _begin(self, phase_s: float) -> asyncio.Task[None]:
        return asyncio.create_task(self._talk(phase_s), name="live")

    async def watch(self, seconds: float) -> Observed:
        """Start a new period of measurement."""
        self._seen = seen = Observed()
        until = time.monotonic() + seconds
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as http:
            while time.monotonic() < until:
                began = time.perf_counter()
                await http.get(f"{self._url}/health")
                seen.health_ms.append(1000 * (time.perf_counter() - began))
                seen.remember(dict(_sizes(os.getpid())))
                await asyncio.sleep(HEALTH_EVERY_S)
        for index, task in enumerate(self._live):
            if task.done():
                seen.broken += 1
                self._live[index] = self._begin(index / len(self._live))
        # Messages in flight belong to no period.
        self._seen = Observed()
        return dataclasses.replace(seen, answers_ms=list(seen.answers_ms))

    async def _talk(self, phase_s: float) -> None:
        with contextlib.suppress(ParleyError):
            config = DuplexConfig(force_listen_count=0)
            async with DuplexClient(self._url, config=config, record=False) as talk:
                await talk.ready()
                events = aiter(talk)
                due = time.monotonic() + phase_s
                while True:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    seen, began = self._seen, time.perf_counter()
                    talk.send_unit(_SILENCE)
                    async for event in events:
                        if isinstance(event, Problem | Ended):
                            return
                        if isinstance(event, Listening | Speaking):
                            break
                    else:
                        return
                    seen.answers_ms.append(1000 * (time.perf_counter() - began))
                    due = max(due + 1.0, time.monotonic())


def _sizes(parent: int) -> Iterator[tuple[str, float]]:
    """Resident memory of the server's processes in MB, if the system has /proc."""
    for pid in _children(parent):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            size = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
            if b"serve" in words:
                yield "gateway", size
            elif b"worker" in words:
                yield "worker", size
        yield from _sizes(pid)


def _children(pid: int) -> list[int]:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(word) for word in words]
    except OSError:
        return []
