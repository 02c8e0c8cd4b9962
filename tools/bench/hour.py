"""`python -m tools.bench hour`: an hour of conversation over the wire, with a cut every minute.

One duplex session on a separate gateway and worker speaks every few seconds and is silent in
between, in real time. Once a minute its connection is dropped or left half-open, and the network is
down for a moment. Each minute the bench records what should stay constant: the memory of gateway
and worker, and the lead of the server's clock over the client's. It counts units that were not
answered, and units that took the worker more than a second.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from tools.bench.chaos_servers import Servers
from tools.bench.paced_call import PacedCall, Told
from tools.bench.processes import rss_mb

from parley.cli.bench.figures import Figures
from parley.cli.bench.model import made_up_speech
from parley.client.events import Event, Problem, Reconnected, Speaking
from parley.media import wav
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample

DOWN_S: Final = 1.0
"""Maximum time for which the network is down: short enough that not too many units wait."""
QUIET_UNITS: Final = 6
LATE_MS: Final = 1000.0
UNSURE_UNITS: Final = 4
"""Maximum number of units that can wait for an answer (one is computed, two wait at the worker, one
is in flight): an older one was dropped."""
LAST_S: Final = 30.0
"""Maximum time for the last answers."""
MEMORY_MB: Final = 16.0
"""Growth from the first tenth to the end that counts as a leak. An hour of retained audio would be
115 MB at the worker."""
DRIFT_MS: Final = 50.0

Look = Callable[[], tuple[float | None, float | None]]
"""Returns the memory of gateway and worker now."""


@dataclass(frozen=True, slots=True)
class Minute:
    """Figures of one minute.

    Args:
        ahead_ms: lead that the server's session clock has gained on the client's since the session
            was ready, according to the least delayed answer.
    """

    number: int
    sent: int
    answered: int
    late: int
    gateway_mb: float | None
    worker_mb: float | None
    ahead_ms: float | None


@dataclass(slots=True)
class HourReport:
    """Result of a run."""

    minutes: list[Minute] = field(default_factory=list)
    sent: int = 0
    answered: int = 0
    spoken: int = 0
    late: int = 0
    dropped: int = 0
    cuts: int = 0
    silent_cuts: int = 0
    away_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    ended: str = ""

    @property
    def drift_ms(self) -> float:
        """Drift of the clocks from the first third of the minutes to the last, by the least delayed
        answer of each third: on a busy machine, all answers of some minutes are delayed."""
        third = max(1, len(self.minutes) // 3)
        begin, end = (
            [each.ahead_ms for each in part if each.ahead_ms is not None]
            for part in (self.minutes[:third], self.minutes[-third:])
        )
        return max(end) - max(begin) if begin and end else 0.0

    def growth_mb(self, part: str) -> float:
        """Growth of `gateway_mb` or `worker_mb` from the end of the first tenth to the end; models
        and allocators fill up first."""
        told = [each for each in (getattr(one, part) for one in self.minutes) if each is not None]
        return told[-1] - told[len(told) // 10] if len(told) > 1 else 0.0

    def faults(self) -> list[str]:
        """Descriptions of all deviations from the expected result."""
        found = []
        if self.ended:
            found.append(f"the conversation ended early: {self.ended}")
        if self.answered + self.dropped < self.sent:
            missing = self.sent - self.answered - self.dropped
            found.append(f"{missing} units were not answered")
        found += [
            f"{part} grew by {self.growth_mb(part):.1f} MB"
            for part in ("gateway_mb", "worker_mb")
            if self.growth_mb(part) > MEMORY_MB
        ]
        if abs(self.drift_ms) > DRIFT_MS:
            found.append(f"the clocks drifted by {self.drift_ms:.1f} ms")
        return found


def hour(
    minutes: Annotated[int, typer.Option(min=1, max=600, help="Length of the call.")] = 60,
    model: Annotated[str, typer.Option(help="Model of the worker.")] = "pocket",
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Speech (WAV); default: a hum."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold a call for an hour with a cut every minute; watch memory and clocks."""
    speech = resample(made_up_speech(3) if file is None else wav.load(file), INPUT_RATE_HZ)
    report = asyncio.run(_run(model, minutes, speech, random.Random(seed)))
    if as_json:
        typer.echo(json.dumps(asdict(report) | {"faults": report.faults()}))
    else:
        _show(report)
    raise typer.Exit(1 if report.faults() else 0)


async def _run(model: str, minutes: int, speech: Pcm, dice: random.Random) -> HourReport:
    environment = {"PARLEY_LIMITS__DUPLEX_SESSION_S": str(60 * minutes + 600)}
    async with Servers(model=model, environment=environment) as servers:

        def look() -> tuple[float | None, float | None]:
            return rss_mb(servers.gateway_pid), rss_mb(servers.worker_pid)

        return await _Call(servers.url, minutes, speech, dice, look).run()


class _Call(PacedCall):
    """The call, with a cut per minute."""

    def __init__(
        self, url: str, minutes: int, speech: Pcm, dice: random.Random, look: Look
    ) -> None:
        super().__init__(url, _spoken(speech), dice)
        self._minutes = minutes
        self._dice = dice
        self._look = look
        self._cut_at = dice.uniform(5, 55)
        self._sent_s: deque[float] = deque()
        self._ready_s = 0.0
        self._least_ahead: float | None = None
        self.report = HourReport()

    async def run(self) -> HourReport:
        report = self.report
        await self.talk(60 * self._minutes, last_s=LAST_S)
        report.sent, report.dropped, report.ended = self.sent, self.dropped, self.ended
        report.cuts, report.silent_cuts = self.network.breaks, self.network.silent_breaks
        return report

    def on_sent(self, number: int) -> None:
        """Cut the connection once a minute, at a random moment."""
        self._sent_s.append(time.monotonic())
        second = number % 60
        if second == int(self._cut_at):
            asyncio.get_running_loop().call_later(
                self._cut_at % 1, self.network.break_off, self._dice.uniform(0, DOWN_S)
            )
        if second == 59:
            self._end_minute()
            self._cut_at = self._dice.uniform(5, 55)

    def _end_minute(self) -> None:
        report = self.report
        before = report.minutes
        gateway_mb, worker_mb = self._look()
        minute = Minute(
            number=len(before) + 1,
            sent=self.sent - sum(each.sent for each in before),
            answered=report.answered - sum(each.answered for each in before),
            late=report.late - sum(each.late for each in before),
            gateway_mb=gateway_mb,
            worker_mb=worker_mb,
            ahead_ms=self._least_ahead,
        )
        self._least_ahead = None
        report.minutes.append(minute)
        typer.echo(_line(minute), err=True)

    def on_event(self, event: Event) -> None:
        match event:
            case Reconnected(away_s=away_s):
                self.report.away_ms.append(1000 * away_s)
            case Speaking():
                self.report.spoken += 1
            case Problem(error=error):
                self._end(f"{error.code}: {error}")
            case _:
                pass

    def on_message(self, told: Told) -> None:
        if told.type == "prepared":
            self._ready_s = time.monotonic()

    def on_answer(self, told: Told, units: int) -> None:
        """Update the delays and the lead of the server's clock, which is in the answer."""
        self.report.answered += units
        self.report.late += told.wall_clock_ms > LATE_MS
        while len(self._sent_s) > UNSURE_UNITS:
            self._sent_s.popleft()
        if self._sent_s:
            self.report.answer_ms.append(1000 * (self.answered_s - self._sent_s.popleft()))
        # Delays make the server seem behind, never ahead: the largest value is the most accurate.
        ahead_ms = told.current_time - 1000 * (self.answered_s - self._ready_s)
        if self._least_ahead is None or ahead_ms > self._least_ahead:
            self._least_ahead = ahead_ms


def _spoken(speech: Pcm) -> list[Pcm]:
    """The speech in whole units, followed by silence for the answer."""
    quiet = Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
    whole = len(speech) // INPUT_RATE_HZ
    said = [speech.slice(at * INPUT_RATE_HZ, (at + 1) * INPUT_RATE_HZ) for at in range(whole)]
    return [*said, *[quiet] * QUIET_UNITS]


def _line(minute: Minute) -> str:
    ahead = "" if minute.ahead_ms is None else f", server ahead {minute.ahead_ms:+.1f} ms"
    memory = f"gateway {minute.gateway_mb or 0:.1f} MB, worker {minute.worker_mb or 0:.1f} MB"
    return (
        f"minute {minute.number:3}: {minute.answered} of {minute.sent} units, "
        f"{minute.late} late, {memory}{ahead}"
    )


def _show(report: HourReport) -> None:
    typer.echo(
        f"{report.sent} units sent, {report.answered} answered ({report.spoken} messages spoke), "
        f"{report.late} late, {report.dropped} dropped by the client"
    )
    typer.echo(f"{report.cuts} cuts, {report.silent_cuts} of them half-open")
    typer.echo(f"away    {Figures.of(report.away_ms)}")
    typer.echo(f"answer  {Figures.of(report.answer_ms)}")
    typer.echo(
        f"memory from the first tenth to the end: gateway {report.growth_mb('gateway_mb'):+.1f} MB,"
        f" worker {report.growth_mb('worker_mb'):+.1f} MB; clocks drifted by "
        f"{report.drift_ms:+.1f} ms"
    )
    for fault in report.faults():
        typer.echo(f"not as it should be: {fault}")
