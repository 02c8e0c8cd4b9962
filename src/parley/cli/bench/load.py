"""`parley bench load URL`: many concurrent conversations with a running server.

Duplex sessions send one second of audio per second, regardless of the answers; an answer after the
end of its second is a miss. Half-duplex sessions speak a recording and wait for the answer; chats
ask. The measurements are those of a client and include network, queue, gateway, worker and model.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from parley.cli import reach
from parley.cli.bench.figures import Figures, drawn, histogram
from parley.cli.bench.model import made_up_speech
from parley.client import events
from parley.client.access import AccessOptions
from parley.client.chat import ChatClient
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.half_duplex import HalfDuplexClient
from parley.client.realtime import RealtimeClient
from parley.errors import ParleyError
from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.tasks import end_tasks

UNIT_S: Final = 1.0
MISS_MS: Final = 1000.0
PATIENCE_S: Final = 30.0
"""Seconds to wait for the last answers."""
QUESTION: Final = "What is the capital of Italy?"


@dataclass(slots=True)
class LoadCounts:
    answers_ms: list[float] = field(default_factory=list)
    """From a unit to its answer, or from the end of an utterance or question to the first piece."""
    waits_ms: list[float] = field(default_factory=list)
    """From the start of a session to its slot."""
    misses: int = 0
    unanswered: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def failed(self, error: ParleyError) -> None:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1

    def answered(self, ms: float, *, is_unit: bool) -> None:
        self.answers_ms.append(ms)
        self.misses += is_unit and ms > MISS_MS


@dataclass(frozen=True, slots=True)
class LoadReport:
    dialect: str
    sessions: int
    answers: Figures
    waits: Figures
    misses: int
    unanswered: int
    errors: dict[str, int]
    histogram: dict[str, int]

    @property
    def miss_percent(self) -> float:
        asked = self.answers.count + self.unanswered
        return 100 * (self.misses + self.unanswered) / asked if asked else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """Activity of each session."""

    url: str
    access: AccessOptions
    seconds: float
    speech: Pcm


@reach.at_server
def load(
    server: reach.ServerAddress,
    sessions: Annotated[
        int, typer.Option(min=1, max=10_000, help="Concurrent conversations.")
    ] = 10,
    seconds: Annotated[
        float, typer.Option(min=1, help="Length of each conversation in seconds.")
    ] = 30.0,
    dialect: Annotated[
        Literal["duplex", "realtime", "half_duplex", "chat", "all"],
        typer.Option(help="One, or all in turn."),
    ] = "duplex",
    file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Speech (WAV); default: a hum, which half-duplex does not answer.",
        ),
    ] = None,
    ramp: Annotated[
        float, typer.Option(min=0, help="Seconds over which the starts are spread.")
    ] = 2.0,
    max_p95_ms: Annotated[
        float | None, typer.Option(help="Exit with status 1 if the 95th percentile is higher.")
    ] = None,
    max_miss_percent: Annotated[
        float | None,
        typer.Option(help="Exit with status 1 if a larger share of answers is late or missing."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put load on a running server and measure the latency of its conversations."""
    address, access = server
    speech = made_up_speech(4) if file is None else wav.load(file)
    plan = Load(address, access, seconds, resample(speech, INPUT_RATE_HZ))
    names = tuple(RUNS) if dialect == "all" else (dialect,)
    reports = [asyncio.run(run(name, plan, sessions, ramp)) for name in names]
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(one) for one in reports], indent=2))
    else:
        for one in reports:
            show(one)
    faults = [fault for one in reports for fault in judge(one, max_p95_ms, max_miss_percent)]
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        raise typer.Exit(1)


def judge(
    report: LoadReport, max_p95_ms: float | None, max_miss_percent: float | None
) -> list[str]:
    """List exceeded limits; if any limit is set, failed sessions count too. A dialect without any
    answer was not measured."""
    faults = []
    if max_p95_ms is not None and report.answers.p95_ms > max_p95_ms:
        faults.append(f"{report.dialect}: p95 {report.answers.p95_ms:.0f} ms > {max_p95_ms:g} ms")
    if max_miss_percent is not None and report.miss_percent > max_miss_percent:
        faults.append(f"{report.dialect}: {report.miss_percent:.1f} % > {max_miss_percent:g} %")
    is_limited = max_p95_ms is not None or max_miss_percent is not None
    if is_limited and report.errors:
        faults.append(f"{report.dialect}: errors {report.errors}")
    if not report.answers.count:
        faults.append(f"{report.dialect}: no answer was received (recorded speech: --file)")
    return faults


def show(report: LoadReport) -> None:
    typer.echo(f"{report.dialect}, {report.sessions} at a time: {report.answers.count} answers")
    typer.echo(f"  answer  {report.answers}")
    typer.echo(f"  queue   {report.waits}")
    bad = report.misses + report.unanswered
    typer.echo(f"  late or missing  {bad} ({report.miss_percent:.1f} %)")
    typer.echo(f"  {drawn(report.histogram)}")
    for code, count in report.errors.items():
        typer.echo(f"  error {code}: {count}")


async def run(dialect: str, plan: Load, sessions: int, ramp_s: float) -> LoadReport:
    counts = LoadCounts()

    async def one(index: int) -> None:
        await asyncio.sleep(ramp_s * index / sessions)
        try:
            await RUNS[dialect](plan, counts)
        except ParleyError as error:
            counts.failed(error)

    await asyncio.gather(*(one(index) for index in range(sessions)))
    return LoadReport(
        dialect,
        sessions,
        Figures.of(counts.answers_ms),
        Figures.of(counts.waits_ms),
        counts.misses,
        counts.unanswered,
        counts.errors,
        histogram(counts.answers_ms),
    )


async def _units(talk: UnitClient, plan: Load, counts: LoadCounts) -> None:
    """Send one unit per second; each is answered by one `Listening` or by pieces of `Speaking`."""
    began = time.perf_counter()
    async with talk:
        await talk.ready()
        counts.waits_ms.append(1000 * (time.perf_counter() - began))
        sent_at: list[float] = []
        answered = 0
        done = asyncio.Event()

        async def hear() -> None:
            nonlocal answered
            context_tokens = -1
            async for event in talk:
                if isinstance(event, events.Listening | events.Speaking):
                    if event.context_tokens == context_tokens or answered >= len(sent_at):
                        continue  # another piece of the same unit
                    context_tokens = event.context_tokens
                    ms = 1000 * (time.perf_counter() - sent_at[answered])
                    answered += 1
                    counts.answered(ms, is_unit=True)
                    if done.is_set() and answered == len(sent_at):
                        return
                elif isinstance(event, events.Problem):
                    counts.failed(event.error)
                elif isinstance(event, events.Ended):
                    return

        hearing = asyncio.create_task(hear())
        size = round(UNIT_S * INPUT_RATE_HZ)
        due = time.perf_counter()
        for index in range(round(plan.seconds)):
            begin = index * size % max(size, len(plan.speech) - size + 1)
            unit = plan.speech.slice(begin, begin + size)
            sent_at.append(time.perf_counter())
            talk.send_unit(unit)
            due += UNIT_S
            await asyncio.wait({hearing}, timeout=max(0.0, due - time.perf_counter()))
            if hearing.done():
                break
        done.set()
        if answered < len(sent_at):
            await asyncio.wait({hearing}, timeout=PATIENCE_S)
        await end_tasks(hearing)
        counts.unanswered += len(sent_at) - answered


async def _duplex(plan: Load, counts: LoadCounts) -> None:
    await _units(DuplexClient(plan.url, record=False, **plan.access), plan, counts)


async def _realtime(plan: Load, counts: LoadCounts) -> None:
    await _units(RealtimeClient(plan.url, **plan.access), plan, counts)


async def _half_duplex(plan: Load, counts: LoadCounts) -> None:
    began = time.perf_counter()
    async with HalfDuplexClient(plan.url, **plan.access) as talk:
        await talk.ready()
        counts.waits_ms.append(1000 * (time.perf_counter() - began))

        async def speak() -> None:
            while time.perf_counter() - began < plan.seconds:
                await talk.say(plan.speech)
            await talk.stop()

        speaking = asyncio.create_task(speak())
        try:
            async for event in talk:
                if isinstance(event, events.TurnDone) and event.first_sound_ms is not None:
                    counts.answered(event.first_sound_ms, is_unit=False)
                elif isinstance(event, events.Problem):
                    counts.failed(event.error)
                elif speaking.done():
                    break
        finally:
            await end_tasks(speaking)


async def _chat(plan: Load, counts: LoadCounts) -> None:
    client = ChatClient(plan.url, **plan.access)
    end = time.perf_counter() + plan.seconds
    while time.perf_counter() < end:
        asked = time.perf_counter()
        waited_ms = 0.0
        async for event in client.stream(QUESTION):
            if isinstance(event, events.Waiting):
                waited_ms = 1000 * (time.perf_counter() - asked)
            elif isinstance(event, events.Answer):
                counts.waits_ms.append(waited_ms)
                if event.first_piece_ms is not None:
                    counts.answered(event.first_piece_ms, is_unit=False)


RUNS: Final[dict[str, Callable[[Load, LoadCounts], Coroutine[Any, Any, None]]]] = {
    "duplex": _duplex,
    "realtime": _realtime,
    "half_duplex": _half_duplex,
    "chat": _chat,
}
