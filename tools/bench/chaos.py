"""`python -m tools.bench chaos`: what conversations lose when connections break and servers die.

Gateway and workers are processes of this machine. Conversations are spoken in lock-step, so that
each has one right outcome, which an uncut one shows first. Then connections are cut, after every
message of a conversation in turn and after others that are drawn (dropped, or left half-open);
gateways and workers are killed, or frozen for a moment. Each conversation must come out as the
uncut one: whatever is missing was lost, whatever is too much came twice. Beside them calls speak in
real time and never wait (`chaos_live`): every unit of theirs must be answered.
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
"""A conversation that has not come to its end by then is lost."""
MORE_CUTS: Final = 2
"""Cuts of one conversation in addition to the one whose turn it is."""
FROZEN_S: Final = (0.1, 2.0)
WINDOW_S: Final = 240
"""How long sessions wait for their clients."""
PAUSE_S: Final = (0.1, 1.0)
"""Between two kills."""
NOTICED_S: Final = {False: 0.0, True: 5.0}
"""How long after the end of an outage a client may learn that there was one: of a worker's, from
the gateway, when it is certain."""
MET_S: Final = 6.0
"""How long after a kill it is known who met it."""
LIMITS_MS: Final = {
    "cut": 1000.0,
    "gateway": 2000.0,
    "worker": 3000.0,
    "both": 3000.0,
    "stopped": 2000.0,
}
"""The 95th percentile of recovery may take so long: after the cut, after the next gateway listens,
after a slot is free, after both, after a worker was asked to stop."""
SILENCE_MS: Final = 2000.0
"""The same of the silence that calls hear while workers are asked to stop."""
LONGEST: Final = 8
"""Number of slow recoveries that are explained."""
LIVE_AT_ONCE: Final = 2
KILLS: Final = ("gateway", "worker", "both")

Outcome = tuple[str, ...]
"""What a conversation came to: one word per event."""


@dataclass(slots=True)
class ChaosReport:
    """What happened.

    Args:
        lost, twice: messages. `different`: conversations with other messages.
        recovery_ms: how long it took until the session continued, by what had happened: `cut` from
            the cut, `gateway` from when the next one listened, `worker` from when a slot was free,
            `frozen …` from the end of that.
        turns_cut: conversations with an answer that ended where its worker died, and was told to.
        disasters: how many of each kind. Of kills (`gateway`, `worker`, `both`: in one moment)
            those that a conversation met: it lost its connection by it, or ended.
        vain_kills: of servers without a conversation.
        live: of calls in real time.
        not_done: cuts, kills and freezes for which there was no time.
        spread: cuts by dialect.
        recoveries: each of those in `recovery_ms`.
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
        """How long recoveries took, by what had happened."""
        found: dict[str, list[float]] = {}
        for each in self.recoveries:
            found.setdefault(each.kind, []).append(each.took_ms)
        return found

    def longest(self) -> list[Recovery]:
        """The longest recoveries of each kind that was too slow."""
        slow = [each for each in self.recoveries if each.took_ms > LIMITS_MS.get(each.kind, 1e9)]
        return sorted(slow, key=lambda each: -each.took_ms)[:LONGEST]

    @property
    def kills(self) -> int:
        """Of servers, in all."""
        return self.vain_kills + sum(self.disasters[kind] for kind in KILLS)

    def faults(self) -> list[str]:
        """What is not as it should be."""
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
    """What is to be done; conversations continue until all of it has been.

    Args:
        disasters: how many of each kind: of `KILLS`, `freeze`, `stop` or `redis`.
    """

    dialects: tuple[str, ...]
    model: str
    cuts: int
    disasters: Counter[str]
    at_once: int
    seed: int
    limit_s: float = 36_000.0
    workers: int = 0
    """0: as many as are needed."""
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
        int, typer.Option(min=0, help="A gateway and a worker killed in one moment.")
    ] = 0,
    at_once: Annotated[int, typer.Option(min=0, max=64, help="Conversations at a time.")] = 4,
    dialect: Annotated[str, typer.Option(help=f"{', '.join(TALKS)} or all.")] = "all",
    model: Annotated[str, typer.Option(help="Model of the workers.")] = "parrot",
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="What is not done by then is not done.")
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
        Path | None, typer.Option(file_okay=False, help="Folder for what the servers say.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
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
    """All of it, on servers of its own.

    Raises:
        SetupError: they do not start, or an uncut conversation comes to nothing.
    """
    # Whoever loses its worker finds a slot at another.
    has_others = any(plan.disasters[kind] for kind in ("worker", "both", "stop"))
    workers = max(plan.workers, 2 if has_others else 1)
    environment = {
        # A gateway that takes long to start, because the machine is busy, loses nothing.
        "PARLEY_LIMITS__RESUME_WINDOW_S": str(WINDOW_S),
        # The hum of this bench is speech to this one.
        "PARLEY_WORKER__VAD": "energy",
        # What one conversation draws, every other draws, too: else no two would be alike.
        "PARLEY_MODEL__SEED": "1",
    }
    async with Servers(
        model=plan.model,
        slots=max(1, plan.at_once + plan.calls + (LIVE_AT_ONCE if plan.live_calls else 0)),
        workers=workers,
        # With calls that last, workers are replaced one after the other.
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
        """Outages that conversations met, by number."""
        self._due_s = time.monotonic() + plan.limit_s
        self.report = ChaosReport()

    async def run(self) -> ChaosReport:
        plan, report = self._plan, self.report
        for name in plan.dialects:
            right = await self._talk(name, BreakableNetwork(), frozenset())
            if len(right) < 2:
                raise SetupError(f"An uncut conversation in {name} came to nothing.")
            self._right[name] = right
            # Every message in turn; after the last there is nothing to be lost.
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
        """One call after the other that is not cut."""
        dice = random.Random(f"{self._plan.seed} {number}")
        while not is_over.is_set():
            call = LiveCall(self._servers.url, dice, self.report.live, stop=is_over)
            running = asyncio.create_task(call.run())
            await call.is_speaking.wait()
            is_speaking.set()
            await running

    @property
    def _has_time(self) -> bool:
        return time.monotonic() < self._due_s

    async def _converse(self, numbers: Iterator[int]) -> None:
        """One conversation after the other."""
        while self._has_time and (self.report.cuts < self._plan.cuts or self._is_disaster_left):
            names = self._plan.dialects
            await self._cut_talk(names[next(numbers) % len(names)])

    async def _call(self, numbers: Iterator[int]) -> None:
        """One live call after the other."""
        for number in numbers:
            dice = random.Random(f"{self._plan.seed} {number}")
            await LiveCall(self._servers.url, dice, self.report.live).run()

    async def _disasters(self) -> None:
        """Kill and freeze, in an order that is drawn, one after the other; and again where
        nobody met it."""
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
                return  # It counts when a conversation has met it.
        self.report.disasters[kind] += 1

    def _count_met(self) -> None:
        """Which kills were met."""
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
            self._example(f"{name} {sorted(breaks)}: {error!r}")
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
        """One conversation, broken after those events. One whose server dies before anything was
        heard is started over: nothing was lost."""
        while True:
            heard: list[str] = []
            try:
                await self._talk_once(name, network, breaks, heard)
            except ParleyError:
                if heard:
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
        """Kills by which a connection that is lost now was lost; none: it was broken."""
        if network.is_explained:
            return []
        now_s = time.monotonic()
        return [
            number
            for number, outage in enumerate(self._servers.outages)
            if outage.kind in KILLS and _met(outage, now_s, now_s)
        ][-1:]

    def _recovered(self, away_s: float, network: BreakableNetwork, session_id: str) -> None:
        """A session continues now; from what?"""
        now_s = time.monotonic()
        lost_s = now_s - away_s
        met = [outage for outage in self._servers.outages if _met(outage, lost_s, now_s)]
        kind, since_s = "cut" if network.is_explained else "unexplained", lost_s
        if met:
            # What was there when the connection was lost, else what came next.
            why = next((each for each in reversed(met) if each.began_s <= lost_s), met[0])
            kind = why.kind
            # Another worker may be there before the client learns that its own one is gone.
            if kind == "worker" and not network.is_explained and why.ended_s is not None:
                since_s = why.ended_s
            # A gateway that is killed meanwhile takes its time again.
            since_s = max(since_s, *(_ended_s(each, now_s) for each in met))
        took_ms, back_at = 1000 * max(0.0, now_s - since_s), time.time()
        recovery = Recovery(kind, took_ms, session_id, back_at - away_s, back_at)
        self.report.recoveries.append(recovery)


def _met(outage: Outage, lost_s: float, back_s: float) -> bool:
    """True if it may be why there was no connection from `lost_s` to `back_s`."""
    if outage.began_s > back_s:
        return False
    noticed_s = NOTICED_S[outage.kind in ("worker", "both")]
    return outage.ended_s is None or outage.ended_s >= lost_s - noticed_s


def _ended_s(outage: Outage, now_s: float) -> float:
    """When an outage stopped being in the way of a session that is back now. A worker that is
    asked to stop hands its sessions over before it ends."""
    if outage.ended_s is not None and outage.kind != "stopped":
        return outage.ended_s
    # A client that is back before this bench knows of the next gateway found it immediately.
    return now_s if outage.kind in ("gateway", "both") else outage.began_s


def _print(report: ChaosReport, *, as_json: bool) -> None:
    recovery = {kind: Figures.of(each) for kind, each in sorted(report.recovery_ms.items())}
    if as_json:
        told: dict[str, Any] = dataclasses.asdict(report)
        del told["recoveries"]
        told["disasters"] = dict(report.disasters)  # `asdict` counts its pairs.
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
