"""`parley bench interruption`: how soon an answer ends for somebody who speaks up, many times over.

Conversations side by side, each in real time with chunks as a microphone brings them: a question,
somewhat of the answer, an interruption. What is measured is what a person would notice whose player
plays at once and without gaps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import numpy as np
import typer

from parley.cli import reach
from parley.cli.bench.duplex import READY_S, client_of
from parley.cli.bench.duplex_material import Material, bundled
from parley.cli.bench.duplex_score import TalkOutcome
from parley.cli.bench.duplex_talk import HEARD_DBFS, Ear, Mouth, Scenes
from parley.client.connection import AccessOptions
from parley.client.events import Event, Interruption, Listening, Piece, Speaking, Thinking
from parley.errors import BadInput, ParleyError, SetupError
from parley.media.pcm import level_dbfs
from parley.protocol.values import InterruptionOptions

DIALECTS: Final = ("half_duplex", "duplex", "realtime")
WAIT_S: Final = 10.0

Backchannel = Literal["ignore", "heed"]


@dataclass(slots=True)
class InterruptionOutcome:
    """What happened in one dialect.

    Args:
        softer_ms: from the first sample of an interruption until the client was told to play more
            softly.
        stopped_ms: until the answer was silent; None: it was not stopped.
        late_samples: of sound that came behind the fence.
        apart_ms: what the server takes for heard of an interrupted answer, less what was played.
        first_sound_ms: from the end of a question to the first sound of its answer.
    """

    softer_ms: list[float] = field(default_factory=list)
    stopped_ms: list[float | None] = field(default_factory=list)
    late_samples: int = 0
    apart_ms: list[float] = field(default_factory=list)
    first_sound_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class FenceEar(Ear):
    """An ear that looks for sound behind the fence, and compares what was heard."""

    def __init__(self, outcome: InterruptionOutcome) -> None:
        super().__init__()
        self._outcome = outcome
        self._is_fenced = False
        self._clock = asyncio.get_running_loop()
        self.speaking_since_s: float | None = None
        """When the interruption began that is waited for."""

    def take(self, event: Event) -> None:
        now_s = self._clock.time()
        match event:
            case Interruption(state="suspected") if self.speaking_since_s is not None:
                self._outcome.softer_ms.append(1000 * (now_s - self.speaking_since_s))
            case Interruption(state="stopped", heard_ms=heard_ms):
                self._is_fenced = True
                if self.played and self.played[-1].end_s > now_s:
                    played_ms = 1000 * (now_s - self.played[-1].start_s)
                    self._outcome.apart_ms.append(heard_ms - played_ms)
            case Thinking() | Listening():
                self._is_fenced = False
            case Piece(sound=sound) | Speaking(sound=sound) if sound is not None:
                if self._is_fenced and level_dbfs(sound) > HEARD_DBFS:
                    self._outcome.late_samples += len(sound)
            case _:
                pass
        super().take(event)


def interruption(
    url: Annotated[str | None, typer.Argument(help="The server.")] = None,
    dialect: Annotated[str, typer.Option(help="half_duplex, duplex, realtime, or all.")] = "all",
    count: Annotated[int, typer.Option(min=1, help="Interruptions per dialect.")] = 200,
    at_once: Annotated[int, typer.Option(min=1, help="Conversations side by side.")] = 8,
    chunk_ms: Annotated[int, typer.Option(min=20, max=1000, help="Sent at a time.")] = 100,
    backchannel: Annotated[str, typer.Option(help="ignore or heed acknowledgements.")] = "ignore",
    min_speech_ms: Annotated[int, typer.Option(min=64, max=2000)] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    insecure: reach.Insecure = False,
    ca: reach.Ca = None,
    token: reach.Token = None,
) -> None:
    """Interrupt answers of a running server, and tell how soon they end."""
    if dialect not in (*DIALECTS, "all"):
        raise BadInput(f"'{dialect}' is none of {', '.join(DIALECTS)}, all.")
    options = InterruptionOptions(
        mode="stop", backchannel=_backchannel(backchannel), min_speech_ms=min_speech_ms
    )
    address, access = reach.server(url, insecure=insecure, ca=ca, token=token)
    material = bundled(interrupting=1)
    found: dict[str, InterruptionOutcome] = {}
    for name in DIALECTS if dialect == "all" else (dialect,):
        crowd = Crowd(address, access, name, options, material, chunk_ms / 1000)
        found[name] = asyncio.run(crowd.hold(count, at_once))
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(one) for name, one in found.items()}))
    else:
        typer.echo("\n".join(f"{name}: {as_line(one)}" for name, one in found.items()))
    if not any(one.stopped_ms for one in found.values()):
        raise SetupError("Nothing could be interrupted.", hint="The lines above say why.")


def _backchannel(text: str) -> Backchannel:
    match text:
        case "ignore" | "heed":
            return text
    raise BadInput(f"'{text}' is neither ignore nor heed.")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Conversations side by side in one dialect."""

    url: str
    access: AccessOptions
    dialect: str
    options: InterruptionOptions
    material: Material
    chunk_s: float

    async def hold(self, count: int, at_once: int) -> InterruptionOutcome:
        """So many interruptions, shared evenly."""
        outcome = InterruptionOutcome()
        each = math.ceil(count / at_once)
        async with asyncio.TaskGroup() as group:
            for number in range(at_once):
                group.create_task(self._one(outcome, number, each))
        return outcome

    async def _one(self, outcome: InterruptionOutcome, number: int, count: int) -> None:
        client = client_of(self.url, self.access, self.dialect, self.options)
        try:
            async with client:
                await client.ready(timeout_s=READY_S)
                ear = FenceEar(outcome)
                mouth = Mouth(client, self.chunk_s)

                async def listen() -> None:
                    async for event in client:
                        ear.take(event)
                    ear.tell()

                tasks = [
                    asyncio.create_task(listen()),
                    asyncio.create_task(mouth.run()),
                    asyncio.create_task(self._play(outcome, ear, mouth, number, count)),
                ]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    results = await asyncio.gather(*tasks, return_exceptions=True)
                outcome.failures += [str(r) for r in results if isinstance(r, Exception)]
        except ParleyError as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")

    async def _play(
        self, outcome: InterruptionOutcome, ear: FenceEar, mouth: Mouth, number: int, count: int
    ) -> None:
        seen = TalkOutcome()
        scenes = Scenes(mouth, ear, self.material, seen, WAIT_S)
        # Not all at the same moment.
        await asyncio.sleep(number * 0.37)
        words = self.material.interruptions
        for index in range(count):
            await scenes.interruption(words[(number + index) % len(words)], mark=ear)
        outcome.stopped_ms += seen.interruptions
        outcome.first_sound_ms += [one for one in seen.turns if one is not None]


def as_line(one: InterruptionOutcome) -> str:
    """For people."""
    stopped = [ms for ms in one.stopped_ms if ms is not None]

    def at(values: list[float], *percents: int) -> str:
        if not values:
            return "-"
        return " / ".join(f"{np.percentile(values, percent):.0f}" for percent in percents) + " ms"

    lines = [
        f"{len(stopped)} of {len(one.stopped_ms)} answers stopped",
        f"silent after {at(stopped, 50, 95)} (median / p95)",
        f"softer after {at(one.softer_ms, 50, 95)}",
        f"{one.late_samples} samples behind the fence",
        f"heard by the server less played {at(one.apart_ms, 5, 50, 95)} (p5 / median / p95)",
        f"first sound {at(one.first_sound_ms, 50, 95)} after the end of speech",
        *one.failures,
    ]
    return "; ".join(lines)
