"""`parley bench chaos`: what conversations lose when connections break and gateways die.

Gateway and worker are processes of this machine, with the parrot. Conversations are spoken in
lock-step, so that each has one right outcome, which an uncut one shows first. Then their
connections are cut after messages drawn at random (dropped, or left half-open), and gateways are
killed. Each conversation must come out as the uncut one: whatever is missing was lost, whatever is
too much came twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

import httpx
import numpy as np
import typer

from parley.cli.bench.breakable import BreakableNetwork
from parley.cli.bench.figures import Figures
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.events import (
    Event,
    Listening,
    Piece,
    Reconnected,
    Speaking,
    Thinking,
    TurnDone,
    Voice,
)
from parley.client.half_duplex import HalfDuplexClient
from parley.client.live import LiveClient
from parley.client.realtime import RealtimeClient
from parley.errors import BadInput, ParleyError, SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm

UNITS: Final = 8
HANG_S: Final = 60.0
"""A conversation that has not gone on by then is lost."""

Outcome = tuple[str, ...]
"""What a conversation came to: one word per event."""


@dataclass(slots=True)
class ChaosReport:
    """What happened. Times from the break to the answer that the session goes on."""

    conversations: int = 0
    cuts: int = 0
    gateway_kills: int = 0
    lost: int = 0
    twice: int = 0
    different: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    away_ms: list[float] = field(default_factory=list)
    slots_leaked: int = 0

    @property
    def is_clean(self) -> bool:
        bad = self.lost + self.twice + self.different + self.slots_leaked + len(self.errors)
        return bad == 0


def chaos(
    conversations: Annotated[
        int, typer.Option(min=1, max=100_000, help="Each is cut at least once.")
    ] = 200,
    at_once: Annotated[int, typer.Option(min=1, max=64, help="Conversations at once.")] = 4,
    gateway_kills: Annotated[int, typer.Option(min=0, help="Gateways killed meanwhile.")] = 5,
    dialect: Annotated[str, typer.Option(help="duplex, realtime, half_duplex or all.")] = "all",
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Cut connections and kill gateways at random, and count what conversations lose."""
    if dialect not in (*TALKS, "all"):
        raise BadInput(f"'{dialect}' is none of {', '.join(TALKS)}, all.")
    names = tuple(TALKS) if dialect == "all" else (dialect,)
    plan = ChaosPlan(names, conversations, at_once, gateway_kills, random.Random(seed))
    report = asyncio.run(run(plan))
    _print(report, as_json=as_json)
    raise typer.Exit(0 if report.is_clean else 1)


@dataclass(slots=True)
class ChaosPlan:
    """What is to be done."""

    dialects: tuple[str, ...]
    conversations: int
    at_once: int
    gateway_kills: int
    dice: random.Random


async def run(plan: ChaosPlan) -> ChaosReport:
    """All of it, on servers of its own."""
    report = ChaosReport()
    async with Servers.started(plan.at_once) as servers:
        right = {
            name: await _talk(name, servers.url, BreakableNetwork(), []) for name in plan.dialects
        }
        for name, outcome in right.items():
            if not outcome:
                raise SetupError(f"An uncut conversation in {name} came to nothing.")
        room = asyncio.Semaphore(plan.at_once)
        every = plan.conversations // (plan.gateway_kills + 1) if plan.gateway_kills else 0

        async def one(number: int) -> None:
            name = plan.dialects[number % len(plan.dialects)]
            async with room:
                if (
                    every
                    and number % every == every - 1
                    and report.gateway_kills < plan.gateway_kills
                ):
                    report.gateway_kills += 1
                    await servers.replace_gateway(plan.dice.random())
                await _cut_talk(name, servers.url, right[name], plan.dice, report)

        async with asyncio.TaskGroup() as tasks:
            for number in range(plan.conversations):
                tasks.create_task(one(number))
        report.slots_leaked = await servers.leaked()
    return report


async def _cut_talk(
    name: str, url: str, right: Outcome, dice: random.Random, report: ChaosReport
) -> None:
    network = BreakableNetwork(dice)
    breaks = sorted(dice.sample(range(1, len(right)), dice.randint(1, 3)))
    report.conversations += 1
    try:
        async with asyncio.timeout(HANG_S):
            outcome = await _talk_again(name, url, network, breaks)
    except (ParleyError, TimeoutError) as error:
        code = error.code if isinstance(error, ParleyError) else "timeout"
        report.errors[code] = report.errors.get(code, 0) + 1
        return
    report.cuts += network.breaks
    report.away_ms += [1000 * away_s for away_s in network.away_s]
    report.lost += max(0, len(right) - len(outcome))
    report.twice += max(0, len(outcome) - len(right))
    report.different += len(right) == len(outcome) and outcome != right


async def _talk_again(name: str, url: str, network: BreakableNetwork, breaks: list[int]) -> Outcome:
    """A conversation whose gateway dies before anything was heard is begun anew: nothing was
    lost."""
    while True:
        try:
            return await _talk(name, url, network, breaks)
        except ParleyError:
            if network.heard:
                raise
            await asyncio.sleep(0.5)


async def _talk(name: str, url: str, network: BreakableNetwork, breaks: list[int]) -> Outcome:
    """One conversation, broken after those events."""
    make, speak = TALKS[name]
    heard = network.heard

    def seen(event: Event) -> bool:
        """Whether it counts; breaks the connection where that is due."""
        if isinstance(event, Reconnected):
            network.away_s.append(event.away_s)
        word = _word(event)
        if word is None:
            return False
        heard.append(word)
        if len(heard) in breaks:
            network.break_off()
        return True

    client = make(url, network)
    try:
        async with client:
            await client.ready()
            await speak(client, seen)
    finally:
        network.finish()
    return tuple(heard)


def _word(event: Event) -> str | None:
    match event:
        case Speaking(text=text, sound=sound, context_tokens=tokens):
            return f"spoke {tokens} {text} {_hash(sound)}"
        case Listening(context_tokens=tokens):
            return f"listened {tokens}"
        case Voice(is_speaking=is_speaking):
            return f"voice {is_speaking}"
        case Thinking(speech_ms=speech_ms):
            return f"thinking {speech_ms}"
        case Piece(text=text, sound=sound):
            return f"piece {text} {_hash(sound)}"
        case TurnDone(turn=turn, text=text):
            return f"turn {turn} {text}"
        case _:
            return None


def _hash(sound: Pcm | None) -> str:
    return "" if sound is None else hashlib.sha256(sound.samples.tobytes()).hexdigest()[:16]


# ---- conversations -------------------------------------------------------------------------

Seen = Callable[[Event], bool]


def _hum(level: float, seconds: float = 1.0) -> Pcm:
    count = round(seconds * INPUT_RATE_HZ)
    wave = level * np.sin(2 * np.pi * 220 * np.arange(count) / INPUT_RATE_HZ)
    return Pcm(wave.astype(np.float32), INPUT_RATE_HZ)


async def _units(client: LiveClient, seen: Seen) -> None:
    assert isinstance(client, UnitClient)
    answered = 0
    client.send_unit(_hum(0.3))
    async for event in client:
        if not seen(event):
            continue
        answered += 1
        if answered == UNITS:
            return
        client.send_unit(_hum(0.05 * (answered % 5)))


async def _turns(client: LiveClient, seen: Seen) -> None:
    assert isinstance(client, HalfDuplexClient)
    turn = [_hum(0.0, 0.5), _hum(0.0, 0.5), *[_hum(0.3, 0.5)] * 2, *[_hum(0.0, 0.5)] * 3]
    for _ in range(2):
        for chunk in turn:
            client.send_audio(chunk)
            # A network that can keep up: live sound is dropped by design where it cannot.
            await asyncio.sleep(0.01)
        async for event in client:
            if seen(event) and isinstance(event, TurnDone):
                break


TALKS: Final[
    dict[
        str,
        tuple[
            Callable[[str, BreakableNetwork], LiveClient],
            Callable[[LiveClient, Seen], Awaitable[None]],
        ],
    ]
] = {
    "duplex": (lambda url, network: DuplexClient(url, transport=network, record=False), _units),
    "realtime": (
        lambda url, network: RealtimeClient(url, mode="audio", transport=network, record=False),
        _units,
    ),
    "half_duplex": (
        lambda url, network: HalfDuplexClient(url, transport=network, record=False),
        _turns,
    ),
}


# ---- servers -------------------------------------------------------------------------------


class Servers:
    """A gateway on one port, whatever happens to it, and a worker."""

    def __init__(self, folder: str, slots: int) -> None:
        self._folder = folder
        self._slots = slots
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._secret = secrets.token_hex(16)
        self._processes: list[asyncio.subprocess.Process] = []
        self._gateway: asyncio.subprocess.Process | None = None
        self._replacing = asyncio.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, slots: int) -> AsyncIterator[Servers]:
        """Up and free while the block runs."""
        with tempfile.TemporaryDirectory(prefix="parley-chaos-") as folder:
            servers = cls(folder, slots)
            try:
                await servers._start_gateway()
                await servers._start(
                    *("worker", "--gateway", servers.url, "--model", "parrot"),
                    *("--slots", str(slots)),
                )
                await servers._until_free(slots)
                yield servers
            finally:
                await servers._end()

    async def replace_gateway(self, delay_s: float) -> None:
        """Kill it after a moment, and start another at its place."""
        async with self._replacing:
            await asyncio.sleep(delay_s)
            assert self._gateway is not None
            self._gateway.kill()
            await self._gateway.wait()
            await self._start_gateway()

    async def leaked(self) -> int:
        """Slots that are not free although nobody talks."""
        try:
            await self._until_free(self._slots)
        except SetupError:
            return self._slots - await self._free()
        return 0

    async def _start_gateway(self) -> None:
        port = str(self._port)
        self._gateway = await self._start(
            *("gateway", "--http", "--host", "127.0.0.1", "--port", port)
        )
        await self._until(self._answers)

    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", *words, "--log-level", "error"),
            cwd=self._folder,
            env={
                **os.environ,
                "PARLEY_SECURITY__WORKER_SECRET": self._secret,
                # The hum of this bench is speech to this one.
                "PARLEY_WORKER__VAD": "energy",
            },
            stdout=asyncio.subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    async def _end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))

    async def _answers(self) -> bool:
        return await self._free() >= 0

    async def _free(self) -> int:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
                answer = await http.get(f"{self.url}/workers")
        except httpx.HTTPError:
            return -1
        workers = answer.json()["workers"]
        return sum(int(worker["free_slots"]) for worker in workers)

    async def _until_free(self, slots: int) -> None:
        async def is_free() -> bool:
            return await self._free() == slots

        await self._until(is_free)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        due = time.monotonic() + 2 * HANG_S
        while not await condition():
            if time.monotonic() > due:
                raise SetupError("The servers of this bench do not get ready.")
            await asyncio.sleep(0.1)


def _print(report: ChaosReport, *, as_json: bool) -> None:
    figures = Figures.of(report.away_ms)
    if as_json:
        told = {
            name: getattr(report, name)
            for name in ("conversations", "cuts", "gateway_kills", "lost", "twice", "different")
        }
        told |= {"slots_leaked": report.slots_leaked, "errors": report.errors}
        typer.echo(
            json.dumps(told | {"away_p50_ms": figures.p50_ms, "away_p95_ms": figures.p95_ms})
        )
        return
    typer.echo(
        f"{report.conversations} conversations, {report.cuts} cuts, "
        f"{report.gateway_kills} gateways killed"
    )
    typer.echo(
        f"lost {report.lost}, twice {report.twice}, different {report.different}, "
        f"slots leaked {report.slots_leaked}"
    )
    typer.echo(f"away: {figures}")
    for code, count in report.errors.items():
        typer.echo(f"error {code}: {count}")
