"""`python -m tools.bench chaos`: what conversations lose when connections break and servers die.

Gateway and workers are processes on this machine. Conversations run in lock-step, so that each has
exactly one correct outcome, which is taken from an uncut one first. Then connections are cut
(dropped, or left half-open), after every message of a conversation in turn and after randomly
chosen others; gateways and workers are killed, or frozen for a moment. Each conversation must have
the outcome of the uncut one: missing messages were lost, surplus messages were received twice.
Alongside, calls speak in real time and never wait (`chaos_live`): each of their units must be
answered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from tools.bench.breakable import BreakableNetwork
from tools.bench.chaos_live import CAUGHT_UP_S, LiveCall, LiveReport
from tools.bench.chaos_servers import TO_SPARE, Outage, Servers
from tools.bench.chaos_talks import TALKS, is_right_but_cut, word_of
from tools.bench.chaos_trace import Recovery, explained

from parley.cli.bench.figures import Figures
from parley.client.events import Event, Reconnected, Reconnecting
from parley.errors import BadInput, ParleyError, SetupError

HANG_S: Final = 300.0
"""A conversation that has not ended after this time is lost."""
MORE_CUTS: Final = 2
"""Maximum number of random cuts in one conversation, in addition to the scheduled one."""
FROZEN_S: Final = (0.1, 2.0)
WINDOW_S: Final = 240
"""Time for which sessions wait for their clients."""
PAUSE_S: Final = (0.1, 1.0)
"""Range of the pause before a disaster."""
NOTICED_S: Final = {False: 0.0, True: 5.0}
"""Time after the end of an outage within which a client may notice it; the key is True if a worker
failed, because the gateway reports that only when it is certain."""
MET_S: Final = 6.0
"""Time after a kill after which it is known which conversations it affected."""
LIMITS_MS: Final = {
    "cut": 1000.0,
    "gateway": 2000.0,
    "worker": 3000.0,
    "both": 3000.0,
    "stopped": 2000.0,
}
"""Limits of the 95th percentile of recovery, measured from the cut, from when the next gateway
listens, from when a slot is free, from both, and from when a worker was asked to stop."""
SILENCE_MS: Final = 2000.0
"""Limit of the 95th percentile of the silence in calls while workers are asked to stop."""
LONGEST: Final = 8
"""Number of slow recoveries that are explained."""
LIVE_AT_ONCE: Final = 2
KILLS: Final = ("gateway", "worker", "both")

Outcome = tuple[str, ...]
"""The outcome of a conversation: one string per event."""


@dataclass(slots=True)
class ChaosReport:
    """Result of a run.

    Args:
        lost, twice: number of messages. `different`: number of conversations with other messages.
        recovery_ms: time until the session continued, by cause: `cut` from the cut, `gateway` from
            when the next one listened, `worker` from when a slot was free, `frozen …` from the end
            of the freeze.
        turns_cut: number of conversations with an answer that ended early because its worker died,
            and was reported as ended.
        disasters: number of each kind. Of kills (`gateway`, `worker`, or `both` simultaneously)
            only those that affected a conversation, which lost its connection or ended.
        vain_kills: number of kills that affected no conversation.
        live: results of calls in real time.
        not_done: number of cuts, kills and freezes for which there was no time.
        spread: number of cuts by dialect.
        recoveries: the recoveries that `recovery_ms` summarises.
    """

    conversations: int = 0
    cuts: int = 0
    half_open: int = 0
    disasters: Counter[str] = field(default_factory=Counter)
    vain_kills: int = 0
    lost: int = 0
    twice: int = 0
    different: int = 0
    turns_cut: int = 0
    slots_leaked: int = 0
    not_done: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    spread: dict[str, int] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)
    live: LiveReport = field(default_factory=LiveReport)
    examples: list[str] = field(default_factory=list)

    @property
    def recovery_ms(self) -> dict[str, list[float]]:
        """Durations of recoveries, by cause."""
        found: dict[str, list[float]] = {}
        for each in self.recoveries:
            found.setdefault(each.kind, []).append(each.took_ms)
        return found

    def longest(self) -> list[Recovery]:
        """The longest recoveries among those that exceeded their limit."""
        slow = [each for each in self.recoveries if each.took_ms > LIMITS_MS.get(each.kind, 1e9)]
        return sorted(slow, key=lambda each: -each.took_ms)[:LONGEST]

    @property
    def kills(self) -> int:
        """Total number of kills."""
        return self.vain_kills + sum(self.disasters[kind] for kind in KILLS)

    def faults(self) -> list[str]:
        """Descriptions of all deviations from the expected result."""
        found = [
            f"{name} {count}"
            for name in ("lost", "twice", "different", "slots_leaked", "not_done")
            if (count := getattr(self, name))
        ]
        found += [f"error {code}: {count}" for code, count in self.errors.items()]
        found += self.live.faults()
        lag_s = max(self.live.lag_s, default=0.0)
        if lag_s > CAUGHT_UP_S and not self.kills:
            found.append(f"a live call was {lag_s:.1f} s late at its end")
        for kind, limit_ms in LIMITS_MS.items():
            p95_ms = Figures.of(self.recovery_ms.get(kind, [])).p95_ms
            if p95_ms > limit_ms:
                found.append(f"recovery of {kind}: p95 {p95_ms:.0f} ms > {limit_ms:.0f} ms")
        silence_ms = Figures.of(self.live.silence_ms).p95_ms
        if silence_ms > SILENCE_MS and not (self.live.cuts or self.kills):
            found.append(f"silence of calls: p95 {silence_ms:.0f} ms > {SILENCE_MS:.0f} ms")
        return found


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """Plan of a run; conversations continue until all of it is done.

    Args:
        disasters: number of each kind: of `KILLS`, `freeze`, `stop` or `redis`.
    """

    dialects: tuple[str, ...]
    model: str
    cuts: int
    disasters: Counter[str]
    at_once: int
    seed: int
    limit_s: float = 36_000.0
    workers: int = 0
    """0: as many as needed."""
    live_calls: int = 0
    calls: int = 0
    redis: bool = False
    logs: Path | None = None


def chaos(
    cuts: Annotated[int, typer.Option(min=0, max=1_000_000, help="Connections cut.")] = 200,
    gateway_kills: Annotated[int, typer.Option(min=0, help="Gateways killed.")] = 5,
    worker_kills: Annotated[int, typer.Option(min=0, help="Workers killed.")] = 0,
    freezes: Annotated[
        int, typer.Option(min=0, help="Gateways and workers stopped for up to 2 s.")
    ] = 0,
    worker_stops: Annotated[
        int, typer.Option(min=0, help="Workers asked to stop (SIGTERM) while others have room.")
    ] = 0,
    double_kills: Annotated[
        int, typer.Option(min=0, help="A gateway and a worker killed at the same moment.")
    ] = 0,
    at_once: Annotated[int, typer.Option(min=0, max=64, help="Concurrent conversations.")] = 4,
    dialect: Annotated[str, typer.Option(help=f"{', '.join(TALKS)} or all.")] = "all",
    model: Annotated[str, typer.Option(help="Model of the workers.")] = "parrot",
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Time limit; remaining faults are skipped.")
    ] = 600,
    workers: Annotated[
        int, typer.Option(min=0, help="Workers; 0: one, and one more if workers are killed.")
    ] = 0,
    live_calls: Annotated[
        int,
        typer.Option(min=0, help="Calls in real time, each cut for 2, 6 and 12 s; two at a time."),
    ] = 0,
    calls: Annotated[
        int,
        typer.Option(min=0, help="Calls in real time at a time that are not cut, 30 to 90 s each."),
    ] = 0,
    redis: Annotated[
        bool, typer.Option(help="Session logs in a redis-server of the bench.")
    ] = False,
    redis_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts of that redis-server, which forgets everything.")
    ] = 0,
    logs: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the servers' logs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cut connections, kill and freeze servers at random; count what conversations lose."""
    if dialect not in (*TALKS, "all"):
        raise BadInput(f"'{dialect}' is none of {', '.join(TALKS)}, all.")
    names = tuple(TALKS) if dialect == "all" else (dialect,)
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    disasters = Counter(
        gateway=gateway_kills,
        worker=worker_kills,
        freeze=freezes,
        stop=worker_stops,
        both=double_kills,
        redis=redis_restarts,
    )
    plan = ChaosPlan(
        *(names, model, cuts, disasters, at_once, seed),
        limit_s=60 * minutes,
        workers=workers,
        logs=logs,
        live_calls=live_calls,
        calls=calls,
        redis=redis or redis_restarts > 0,
    )
    report = asyncio.run(run(plan))
    _print(report, as_json=as_json)
    if logs is not None and not as_json:
        for slow in report.longest():
            typer.echo("\n".join(explained(slow, logs)))
    raise typer.Exit(1 if report.faults() else 0)


async def run(plan: ChaosPlan) -> ChaosReport:
    """Start the servers and execute the plan.

    Raises:
        SetupError: they do not start, or an uncut conversation has no result.
    """
    # A session that loses its worker must find a slot at another.
    has_others = any(plan.disasters[kind] for kind in ("worker", "both", "stop"))
    workers = max(plan.workers, 2 if has_others else 1)
    environment = {
        # Sessions must survive a gateway that starts slowly because the machine is busy.
        "PARLEY_LIMITS__RESUME_WINDOW_S": str(WINDOW_S),
        # This detector classifies the bench's hum as speech.
        "PARLEY_WORKER__VAD": "energy",
        # All conversations use the same random numbers; otherwise no two would be alike.
        "PARLEY_MODEL__SEED": "1",
    }
    slots = max(1, plan.at_once + plan.calls + (LIVE_AT_ONCE if plan.live_calls else 0))
    # A client that leaves while there is no gateway keeps its place for the window.
    environment["PARLEY_LIMITS__SESSIONS_PER_CLIENT"] = str(2 * slots)
    async with Servers(
        model=plan.model,
        slots=slots,
        workers=workers,
        # If there are calls, workers are replaced one after the other.
        spare=workers if plan.calls else TO_SPARE,
        environment=environment,
        logs=plan.logs,
        redis=plan.redis,
    ) as servers:
        return await _Chaos(plan, servers).run()


class _Chaos:
    """One run."""

    def __init__(self, plan: ChaosPlan, servers: Servers) -> None:
        self._plan = plan
        self._servers = servers
        self._dice = random.Random(plan.seed)
        self._right: dict[str, Outcome] = {}
        self._turn: dict[str, Iterator[int]] = {}
        self._is_disaster_left = False
        self._met: set[int] = set()
        """Indices of the outages that affected conversations."""
        self._due_s = time.monotonic() + plan.limit_s
        self.report = ChaosReport()

    async def run(self) -> ChaosReport:
        plan, report = self._plan, self.report
        for name in plan.dialects:
            right = await self._talk(name, BreakableNetwork(), frozenset())
            if len(right) < 2:
                raise SetupError(f"An uncut conversation in {name} came to nothing.")
            self._right[name] = right
            # Every message in turn; after the last one nothing can be lost.
            self._turn[name] = itertools.cycle(range(1, len(right)))
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as calls:
            for number in range(plan.calls):
                is_speaking = asyncio.Event()
                calls.create_task(self._calls(number, is_speaking, is_over))
                await is_speaking.wait()
            await self._faults()
            is_over.set()
        self._count_met()
        report.slots_leaked = await self._servers.leaked(WINDOW_S)
        not_cut = max(0, plan.cuts - report.cuts)
        report.not_done = not_cut + (plan.disasters - report.disasters).total()
        return report

    async def _faults(self) -> None:
        numbers = itertools.count()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._disasters())
            live = iter(range(self._plan.live_calls))
            for _ in range(LIVE_AT_ONCE):
                tasks.create_task(self._call(live))
            for _ in range(self._plan.at_once):
                tasks.create_task(self._converse(numbers))

    async def _calls(self, number: int, is_speaking: asyncio.Event, is_over: asyncio.Event) -> None:
        """Run uncut calls, one after the other."""
        dice = random.Random(f"{self._plan.seed} {number}")
        while not is_over.is_set():
            call = LiveCall(self._servers.url, dice, self.report.live, stop=is_over)
            running = asyncio.create_task(call.run())
            await call.is_speaking.wait()
            is_speaking.set()
            if await running:
                return

    @property
    def _has_time(self) -> bool:
        return time.monotonic() < self._due_s

    async def _converse(self, numbers: Iterator[int]) -> None:
        """Run conversations, one after the other."""
        while self._has_time and (self.report.cuts < self._plan.cuts or self._is_disaster_left):
            names = self._plan.dialects
            await self._cut_talk(names[next(numbers) % len(names)])

    async def _call(self, numbers: Iterator[int]) -> None:
        """Run live calls, one after the other."""
        for number in numbers:
            dice = random.Random(f"{self._plan.seed} {number}")
            await LiveCall(self._servers.url, dice, self.report.live).run()

    async def _disasters(self) -> None:
        """Execute the disasters one after the other, in random order; repeat kills that affected no
        conversation."""
        plan, report = self._plan, self.report
        kinds = list(plan.disasters.elements())
        self._dice.shuffle(kinds)
        self._is_disaster_left = bool(kinds)
        while kinds and self._has_time:
            await self._disaster(kinds.pop())
            if not kinds:
                await asyncio.sleep(MET_S)
                self._count_met()
                kinds = list((plan.disasters - report.disasters).elements())
        self._is_disaster_left = False

    async def _disaster(self, kind: str) -> None:
        servers, dice = self._servers, self._dice
        delay_s = dice.uniform(*PAUSE_S)
        match kind:
            case "redis":
                await servers.restart_redis(delay_s)
            case "stop":
                await servers.stop_worker(delay_s)
            case "freeze":
                await asyncio.sleep(delay_s)
                victim = dice.choice(("gateway", "worker"))
                await servers.freeze(victim, dice.uniform(*FROZEN_S))
            case _:
                await servers.kill(kind, delay_s)
                return  # Counted once it affects a conversation.
        self.report.disasters[kind] += 1

    def _count_met(self) -> None:
        """Count the kills that affected conversations."""
        report, outages = self.report, self._servers.outages
        met = [outages[number].kind for number in self._met]
        report.disasters |= {kind: met.count(kind) for kind in KILLS}
        report.vain_kills = sum(each.kind in KILLS for each in outages) - len(met)

    async def _cut_talk(self, name: str) -> None:
        report, right, dice = self.report, self._right[name], self._dice
        network = BreakableNetwork(random.Random(dice.random()))
        breaks: set[int] = set()
        if report.cuts < self._plan.cuts:
            others = range(1, len(right))
            breaks = {next(self._turn[name])}
            breaks |= set(dice.sample(others, dice.randint(0, min(MORE_CUTS, len(others)))))
        report.conversations += 1
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(HANG_S):
                outcome = await self._talk(name, network, frozenset(breaks))
        except (ParleyError, TimeoutError) as error:
            code = error.code if isinstance(error, ParleyError) else "timeout"
            self._met |= set(self._explaining(network))
            report.errors[code] = report.errors.get(code, 0) + 1
            after = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            self._example(f"{name} {sorted(breaks)}: {error!r}{after}")
            return
        finally:
            report.cuts += network.breaks
            report.half_open += network.silent_breaks
            report.spread[name] = report.spread.get(name, 0) + network.breaks
        deaths = sum(
            outage.kind in ("worker", "both") and outage.began_s >= began_s
            for outage in self._servers.outages
        )
        self._judge(name, right, outcome, breaks, deaths)

    def _judge(
        self, name: str, right: Outcome, outcome: Outcome, breaks: set[int], deaths: int = 0
    ) -> None:
        report = self.report
        if outcome == right:
            return
        if is_right_but_cut(right, outcome, deaths):
            report.turns_cut += 1
            return
        missing, extra = len(right) - len(outcome), len(outcome) - len(right)
        report.lost += max(0, missing)
        report.twice += max(0, extra)
        report.different += len(right) == len(outcome)
        pairs = itertools.zip_longest(right, outcome, fillvalue="nothing")
        at, (wanted, had) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        self._example(f"{name} {sorted(breaks)}: message {at + 1}: {had[:200]} for {wanted[:200]}")

    def _example(self, text: str) -> None:
        if len(self.report.examples) < 10:
            self.report.examples.append(text)

    async def _talk(self, name: str, network: BreakableNetwork, breaks: frozenset[int]) -> Outcome:
        """Run one conversation, broken after the given events. It is restarted if its server dies
        before the first event: nothing was lost."""
        while True:
            heard: list[str] = []
            try:
                await self._talk_once(name, network, breaks, heard)
            except ParleyError as error:
                if heard:
                    error.add_note(f"the last messages: {heard[-3:]}")
                    raise
                await asyncio.sleep(0.5)
                continue
            return tuple(heard)

    async def _talk_once(
        self, name: str, network: BreakableNetwork, breaks: frozenset[int], heard: list[str]
    ) -> None:
        talk, session_id = TALKS[name], ""

        def seen(event: Event) -> bool:
            if isinstance(event, Reconnecting):
                network.explain()
                self._met |= set(self._explaining(network))
            if isinstance(event, Reconnected):
                self._recovered(event.away_s, network, session_id)
            word = word_of(event)
            if word is None:
                return False
            heard.append(word)
            if len(heard) in breaks:
                network.break_off()
            return True

        client = talk.make(self._servers.url, network)
        try:
            async with client:
                session_id = (await client.ready()).session_id
                await talk.speak(client, seen)
        finally:
            network.finish()

    def _explaining(self, network: BreakableNetwork) -> list[int]:
        """The index of the kill that caused the current loss of the connection; empty if the
        network was broken."""
        if network.is_explained:
            return []
        now_s = time.monotonic()
        return [
            number
            for number, outage in enumerate(self._servers.outages)
            if outage.kind in KILLS and _met(outage, now_s, now_s)
        ][-1:]

    def _recovered(self, away_s: float, network: BreakableNetwork, session_id: str) -> None:
        """Record the recovery of a session that has just resumed, with its cause."""
        now_s = time.monotonic()
        lost_s = now_s - away_s
        met = [outage for outage in self._servers.outages if _met(outage, lost_s, now_s)]
        kind, since_s = "cut" if network.is_explained else "unexplained", lost_s
        if met:
            # The outage during which the connection was lost, otherwise the next one.
            why = next((each for each in reversed(met) if each.began_s <= lost_s), met[0])
            kind = why.kind
            # Another worker may be available before the client notices the loss of its own.
            if kind == "worker" and not network.is_explained and why.ended_s is not None:
                since_s = why.ended_s
            # If a gateway is killed meanwhile, its restart takes time again.
            since_s = max(since_s, *(_ended_s(each, now_s) for each in met))
        took_ms, back_at = 1000 * max(0.0, now_s - since_s), time.time()
        recovery = Recovery(kind, took_ms, session_id, back_at - away_s, back_at)
        self.report.recoveries.append(recovery)


def _met(outage: Outage, lost_s: float, back_s: float) -> bool:
    """True if the outage may be the reason why there was no connection from `lost_s` to
    `back_s`."""
    if outage.began_s > back_s:
        return False
    noticed_s = NOTICED_S[outage.kind in ("worker", "both")]
    return outage.ended_s is None or outage.ended_s >= lost_s - noticed_s


def _ended_s(outage: Outage, now_s: float) -> float:
    """Time at which an outage stopped blocking a session that has just resumed. A worker that is
    asked to stop hands over its sessions before it ends."""
    if outage.ended_s is not None and outage.kind != "stopped":
        return outage.ended_s
    # A client that returns before this bench knows of the next gateway found it immediately.
    return now_s if outage.kind in ("gateway", "both") else outage.began_s


def _print(report: ChaosReport, *, as_json: bool) -> None:
    recovery = {kind: Figures.of(each) for kind, each in sorted(report.recovery_ms.items())}
    if as_json:
        told: dict[str, Any] = dataclasses.asdict(report)
        del told["recoveries"]
        told["disasters"] = dict(report.disasters)  # `asdict` would count its pairs.
        told["recovery"] = {kind: dataclasses.asdict(one) for kind, one in recovery.items()}
        typer.echo(json.dumps(told | {"faults": report.faults()}))
        return
    done = report.disasters
    typer.echo(
        f"{report.conversations} conversations, {report.cuts} cuts ({report.half_open} half-open), "
        f"{done['gateway']} gateways and {done['worker']} workers killed in conversations, "
        f"{done['both']} times both in one moment ({report.vain_kills} more), "
        f"{done['freeze']} frozen, {done['stop']} workers asked to stop, "
        f"{done['redis']} restarts of Redis"
    )
    live = report.live
    if live.calls:
        typer.echo(
            f"{live.calls} calls in real time, {live.cuts} cuts: {live.answered} of {live.sent} "
            f"units answered, {live.twice} twice; the last answer "
            f"{max(live.lag_s, default=0.0):.1f} s late at most"
        )
    if live.silence_ms:
        silence = Figures.of(live.silence_ms)
        typer.echo(f"silence of calls that lost their connection ({silence.count}): {silence}")
    typer.echo("cuts by dialect: " + ", ".join(f"{n} {c}" for n, c in report.spread.items()))
    typer.echo(
        f"lost {report.lost}, twice {report.twice}, different {report.different}, "
        f"slots leaked {report.slots_leaked}, answers cut by their worker's end {report.turns_cut}"
    )
    for kind, one in recovery.items():
        typer.echo(f"recovery, {kind} ({one.count}): {one}")
    for example in report.examples:
        typer.echo(f"  {example}")
    for fault in report.faults():
        typer.echo(f"not as it should be: {fault}")
