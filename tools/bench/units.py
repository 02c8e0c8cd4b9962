"""`python -m tools.bench units`: the cost of a unit over the course of a conversation.

Runs one duplex conversation, unit after unit as fast as the model answers, with a sliding window,
and records what should stay constant: the time of a unit, and the memory of the process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from parley import models
from parley.cli.bench.figures import Figures, drawn, histogram
from parley.cli.bench.model import BenchSession, Load, make_talkative
from parley.clock import Clock, SystemClock
from parley.engine.engine import Engine
from parley.engine.model import Model
from parley.engine.work import Window
from parley.protocol.values import DuplexConfig
from parley.settings import load
from parley.views.duplex import DuplexView

LOOKS = 13
"""Number of memory measurements: at the start, and after each twelfth of the units."""

SLOW = 3.0
"""A unit is slow if it takes more than this multiple of the median of its kind: speaking takes
several times as long as listening."""


@dataclass(frozen=True, slots=True)
class UnitKind:
    """Units that listened, or units that spoke.

    Args:
        unit: time from a unit's arrival until it is finalized.
        slow: number of units that took more than `SLOW` medians.
    """

    unit: Figures
    histogram: dict[str, int]
    slow: int

    @classmethod
    def of(cls, durations_ms: Sequence[float]) -> UnitKind:
        unit = Figures.of(durations_ms)
        slow = sum(duration > SLOW * unit.p50_ms for duration in durations_ms)
        return cls(unit, histogram(durations_ms), slow)


@dataclass(frozen=True, slots=True)
class UnitsReport:
    """Result of a run.

    Args:
        slide: duration of finalizing, when the window dropped tokens.
        memory_mb: resident memory of this process, from the start to the end; zeros if the system
            does not report it.
    """

    listened: UnitKind
    spoke: UnitKind
    slide: Figures
    context_tokens: int
    memory_mb: tuple[float, ...]
    device_bytes: int


def units(
    model: Annotated[
        str | None, typer.Option(help="Model name, checkpoint folder or hub id.")
    ] = None,
    count: Annotated[int, typer.Option("--units", min=24, help="Seconds of conversation.")] = 3600,
    worst: Annotated[
        bool, typer.Option("--worst/--typical", help="A picture and speech in every unit.")
    ] = False,
    high: Annotated[
        int, typer.Option(min=1, help="Context at which the window drops units.")
    ] = 4000,
    low: Annotated[int, typer.Option(min=1, help="Context to which it drops.")] = 3500,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Full size without a checkpoint.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that an hour of units stays as fast and as small as its first minute."""
    settings = load(
        config,
        {
            "model.name": model,
            "model.device": device,
            "model.slots": 1,
            "model.random_weights": random_weights or None,
        },
    ).model
    loaded = models.load(settings)
    kind: Load = "worst" if worst else "typical"
    window = Window("basic", high, low)
    report = asyncio.run(measure(loaded, count=count, window=window, load_kind=kind))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
        return
    typer.echo(describe(report))
    typer.echo(f"{settings.name}, {kind} load, {platform.platform()}")


async def measure(
    loaded: Model,
    *,
    count: int,
    window: Window,
    load_kind: Load = "typical",
    clock: Clock | None = None,
) -> UnitsReport:
    """Run one conversation of `count` units in row 0; the model is unloaded afterwards."""
    clock = clock or SystemClock()
    if load_kind == "worst":
        make_talkative(loaded)
    listened_ms: list[float] = []
    spoke_ms: list[float] = []
    slides_ms: list[float] = []
    async with Engine(loaded, clock) as engine:
        await engine.warm_up()
        view = DuplexView(await engine.take_slot())
        user = BenchSession(view, clock, load_kind, None, pace_s=0.0)
        options = DuplexConfig(force_listen_count=0)
        await view.prepare("You are helpful.", options=options, window=window, seed=1)
        looks_mb = [resident_mb()]
        due = {round(count * part / (LOOKS - 1)) for part in range(1, LOOKS)}
        for number in range(count):
            begin_s = clock.monotonic()
            await view.prefill(user.unit(number), user.frames)
            result = await view.generate()
            answered_s = clock.monotonic()
            settled = await view.finalize()
            end_s = clock.monotonic()
            kind_ms = listened_ms if result.is_listen else spoke_ms
            kind_ms.append(1000 * (end_s - begin_s))
            if settled is not None and settled.dropped_tokens:
                slides_ms.append(1000 * (end_s - answered_s))
            if number + 1 in due:
                looks_mb.append(resident_mb())
        memory = await engine.memory()
        context_tokens = view.kv_cache_length
    return UnitsReport(
        listened=UnitKind.of(listened_ms),
        spoke=UnitKind.of(spoke_ms),
        slide=Figures.of(slides_ms),
        context_tokens=context_tokens,
        memory_mb=tuple(looks_mb),
        device_bytes=memory.used_bytes,
    )


def describe(report: UnitsReport) -> str:
    """The report as a few lines."""
    memory = " ".join(f"{look:.0f}" for look in report.memory_mb)
    lines = []
    for name, kind in (("listened", report.listened), ("spoke", report.spoke)):
        if kind.unit.count:
            lines += [
                f"{kind.unit.count} units {name}: {kind.unit}",
                f"  {drawn(kind.histogram)}",
                f"  {kind.slow} slower than {SLOW:.0f} medians",
            ]
    return "\n".join(
        [
            *lines,
            f"{report.slide.count} slides of the window: {report.slide}",
            f"resident memory in MB, from the beginning to the end: {memory}",
            f"context {report.context_tokens} tokens, "
            f"{report.device_bytes / 2**20:.0f} MiB in use by the model",
        ]
    )


def resident_mb() -> float:
    """Resident memory of this process; 0 if the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
