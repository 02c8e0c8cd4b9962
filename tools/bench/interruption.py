"""`python -m tools.bench interruption`: time until an answer ends when the user interrupts.

Conversations run concurrently, in real time, with chunks as from a microphone: a user speaks, hears
the beginning of the answer, and speaks again; the next answer replies to that. The bench measures
what a person would hear from a player that plays immediately and without gaps.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import numpy as np
import typer

from parley.cli import reach
from parley.cli.bench.duplex_material import bundled_words
from parley.cli.bench.duplex_talk import (
    HEARD_DBFS,
    READY_S,
    STOP_LIMIT_S,
    SimulatedLoudspeaker,
    SimulatedMicrophone,
)
from parley.cli.bench.server import server
from parley.cli.bench.talkers import DIALECTS, HistoryCut, Told, client_of
from parley.client.access import AccessOptions
from parley.client.events import Interruption, Listening, Piece, Speaking, Thinking
from parley.errors import BadInput, ParleyError, SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples, level_dbfs
from parley.media.resample import resample
from parley.protocol.values import InterruptionOptions
from parley.tasks import end_tasks

WAIT_S: Final = 10.0
INTO_S: Final = 0.5
"""Time after the start of an answer at which the user speaks again."""

APART_MS: Final = 100.0
"""Maximum difference between the audio counted as heard and the audio played: less than a word."""

SENTENCES: Final = (
    "Wait, stop please, I wanted to ask something else.",
    "No, that is not what I meant at all.",
    "Hold on a moment, tell me about the price instead.",
    "Excuse me, what was the second thing you said?",
)
VOICES: Final = (0, 1)
PITCHES: Final = (1.0, 1.0, 0.87, 1.15)
"""Used in turn, as four speakers. The echo test answers in the voice of the question, and a
synthetic voice that speaks again within seconds is very similar to its own echo."""

Backchannel = Literal["ignore", "heed"]


@dataclass(slots=True)
class InterruptionOutcome:
    """Results in one dialect.

    Args:
        softer_ms: time from the first sample of an interruption until the client was asked to
            reduce the volume.
        stopped_ms: time until the answer was silent; None: it was not stopped.
        late_samples: number of samples of audio received after the fence.
        apart_ms: length of an interrupted answer that the server counts as heard, less what was
            played.
        first_sound_ms: time from the end of the user's speech to the first audio of the answer.
        missed: number of utterances that were never answered.
        false_stops: number of answers that ended before the user spoke.
    """

    softer_ms: list[float] = field(default_factory=list)
    stopped_ms: list[float | None] = field(default_factory=list)
    late_samples: int = 0
    apart_ms: list[float] = field(default_factory=list)
    first_sound_ms: list[float] = field(default_factory=list)
    missed: int = 0
    false_stops: int = 0
    failures: list[str] = field(default_factory=list)

    def misses(self, count: int, limit_ms: float) -> list[str]:
        """Readable descriptions of all deviations from the expected result; empty if there are
        none.

        Args:
            count: expected number of interruptions.
            limit_ms: for the time until the answer is silent, 95th percentile.
        """
        found = list(self.failures)
        if len(self.stopped_ms) < count:
            found.append(f"{len(self.stopped_ms)} of {count} interruptions were measured")
        all_ms = [math.inf if ms is None else ms for ms in self.stopped_ms]
        p95_ms = sorted(all_ms)[math.ceil(0.95 * len(all_ms)) - 1] if all_ms else math.inf
        if p95_ms > limit_ms:
            found.append(f"silent after {p95_ms:.0f} ms (p95), not {limit_ms:.0f}")
        if self.late_samples:
            found.append(f"{self.late_samples} samples behind the fence")
        if not self.apart_ms or np.percentile(np.abs(self.apart_ms), 95) > APART_MS:
            found.append("the history is not what was heard")
        return found


class FenceLoudspeaker(SimulatedLoudspeaker):
    """A loudspeaker that detects audio received after the fence, and compares what was heard."""

    def __init__(self, outcome: InterruptionOutcome) -> None:
        super().__init__()
        self._outcome = outcome
        self._is_fenced = False
        self._played_ms: float | None = None
        """Played time of the most recently interrupted answer."""
        self._first = 0
        """Index of the first stretch of the newest answer: a late piece starts another stretch."""
        self.speaking_since_s: float | None = None
        """Time at which the pending interruption started."""

    def take(self, event: Told) -> None:
        now_s = self._loop.time()
        match event:
            case Interruption(state="suspected") if self.speaking_since_s is not None:
                self._outcome.softer_ms.append(1000 * (now_s - self.speaking_since_s))
            case Interruption(state="stopped", heard_ms=heard_ms):
                self._be_fenced(now_s, heard_ms)
            case HistoryCut(heard_ms=heard_ms):
                self._compare(heard_ms)
            case Thinking() | Listening():
                self.lift()
            case Piece(sound=sound) | Speaking(sound=sound) if sound is not None:
                if self._is_fenced and level_dbfs(sound) > HEARD_DBFS:
                    self._outcome.late_samples += len(sound)
            case _:
                pass
        super().take(event)

    def lift(self) -> None:
        """From now on, received audio belongs to the next answer: not every dialect marks its
        start."""
        self._is_fenced = False
        if not self.played or self.played[-1].end_s <= self._loop.time():
            self._first = len(self.played)

    def _be_fenced(self, now_s: float, heard_ms: int) -> None:
        self._is_fenced = True
        self._played_ms = None
        if self.played and self.played[-1].end_s > now_s:
            answer = self.played[self._first :] or self.played[-1:]
            self._played_ms = 1000 * sum(min(one.end_s, now_s) - one.start_s for one in answer)
        if heard_ms >= 0:
            self._compare(heard_ms)

    def _compare(self, heard_ms: int) -> None:
        if self._played_ms is not None:
            self._outcome.apart_ms.append(heard_ms - self._played_ms)
        self._played_ms = None


@reach.at_server
def interruption(
    named: reach.ServerAddress,
    dialect: Annotated[
        str, typer.Option(help=f"{', '.join(DIALECTS)}, or all: side by side.")
    ] = "all",
    count: Annotated[int, typer.Option(min=1, help="Interruptions per dialect.")] = 200,
    at_once: Annotated[int, typer.Option(min=1, help="Conversations per dialect.")] = 5,
    chunk_ms: Annotated[
        int, typer.Option(min=20, max=1000, help="Length of one audio message.")
    ] = 100,
    backchannel: Annotated[str, typer.Option(help="ignore or heed acknowledgements.")] = "heed",
    min_speech_ms: Annotated[int, typer.Option(min=64, max=2000)] = 64,
    own_server: Annotated[
        bool, typer.Option("--own-server", help="Start a server with the echo test.")
    ] = False,
    limit_ms: Annotated[
        float | None,
        typer.Option(help="Fail if an answer is silent later than this (95th percentile)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Interrupt answers of a running server, and report how soon they end.

    With --limit-ms it also fails if sound arrived after the fence, if an interruption could not be
    measured, or if the history differs from what was heard.
    """
    if dialect not in (*DIALECTS, "all"):
        raise BadInput(f"'{dialect}' is none of {', '.join(DIALECTS)}, all.")
    options = InterruptionOptions(
        mode="stop", backchannel=_backchannel(backchannel), min_speech_ms=min_speech_ms
    )
    names = DIALECTS if dialect == "all" else (dialect,)
    words = speakers()

    async def measure() -> dict[str, InterruptionOutcome]:
        async with _place(named, own_server, at_once * len(names)) as place:
            all_talks = [
                ConcurrentTalks(*place, name, options, words, chunk_ms / 1000) for name in names
            ]
            outcomes = await asyncio.gather(*(one.hold(count, at_once) for one in all_talks))
        return dict(zip(names, outcomes, strict=True))

    found = asyncio.run(measure())
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(one) for name, one in found.items()}))
    else:
        typer.echo("\n".join(f"{name}: {as_line(one)}" for name, one in found.items()))
    if not any(one.stopped_ms for one in found.values()):
        raise SetupError("Nothing could be interrupted.", hint="The lines above say why.")
    if limit_ms is not None:
        misses = [
            f"{name}: {miss}" for name, one in found.items() for miss in one.misses(count, limit_ms)
        ]
        for miss in misses:
            typer.echo(miss, err=True)
        if misses:
            raise typer.Exit(1)


def speakers() -> tuple[Samples, ...]:
    """The user's sentences at 16 kHz, each in a different voice.

    Raises:
        SetupError: the bundled voices are not installed here.
    """
    return tuple(
        resample(Pcm(words, round(pitch * INPUT_RATE_HZ)), INPUT_RATE_HZ).samples
        for words, pitch in zip(bundled_words(SENTENCES, VOICES), PITCHES, strict=True)
    )


@contextlib.asynccontextmanager
async def _place(
    named: reach.ServerAddress, own: bool, slots: int
) -> AsyncIterator[reach.ServerAddress]:
    """Address of the server, which is started if needed."""
    if own:
        async with server(slots) as address:
            yield reach.ServerAddress(address, {})
    else:
        yield named


def _backchannel(text: str) -> Backchannel:
    match text:
        case "ignore" | "heed":
            return text
    raise BadInput(f"'{text}' is neither ignore nor heed.")


@dataclass(frozen=True, slots=True, eq=False)
class ConcurrentTalks:
    """Concurrent conversations in one dialect.

    Args:
        words: the user's sentences, used in turn.
    """

    url: str
    access: AccessOptions
    dialect: str
    options: InterruptionOptions
    words: tuple[Samples, ...]
    chunk_s: float

    async def hold(self, count: int, at_once: int) -> InterruptionOutcome:
        """Hold conversations with `count` interruptions, divided evenly among them."""
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
                loudspeaker = FenceLoudspeaker(outcome)
                client.loudspeaker = loudspeaker.left_s
                microphone = SimulatedMicrophone(client, self.chunk_s)

                async def listen() -> None:
                    async for event in client:
                        loudspeaker.take(event)
                    loudspeaker.report()

                tasks = [
                    asyncio.create_task(listen()),
                    asyncio.create_task(microphone.run()),
                    asyncio.create_task(
                        self._talk(outcome, loudspeaker, microphone, number, count)
                    ),
                ]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    results = await end_tasks(*tasks)
                outcome.failures += [str(r) for r in results if isinstance(r, Exception)]
                if loudspeaker.error is not None:
                    outcome.failures.append(str(loudspeaker.error))
        except ParleyError as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")

    async def _talk(
        self,
        outcome: InterruptionOutcome,
        loudspeaker: FenceLoudspeaker,
        microphone: SimulatedMicrophone,
        number: int,
        count: int,
    ) -> None:
        clock = asyncio.get_running_loop()
        # The conversations must not start simultaneously.
        await asyncio.sleep(1.0 + number * 0.37)
        said, measured = number, 0
        _, end_s = microphone.say(self._next(said))
        # Some answers end before they are interrupted; the number of attempts is limited.
        for _ in range(2 * count):
            if measured >= count:
                return
            answer = await loudspeaker.answer(end_s, end_s + WAIT_S)
            if answer is None:
                outcome.missed += 1
                said += 1
                _, end_s = microphone.say(self._next(said))
                continue
            outcome.first_sound_ms.append(1000 * (answer.start_s - end_s))
            await asyncio.sleep(max(0.0, answer.start_s + INTO_S - clock.time()))
            said += 1
            outcome.false_stops += answer.was_cut
            start_s, end_s = microphone.say(self._next(said))
            loudspeaker.speaking_since_s = start_s
            clock.call_at(end_s, loudspeaker.lift)
            limit_s = start_s + STOP_LIMIT_S
            await loudspeaker.until_over(answer, limit_s)
            loudspeaker.speaking_since_s = None
            if answer.end_s > limit_s:
                outcome.stopped_ms.append(None)
            elif answer.was_cut and answer.end_s >= start_s:
                outcome.stopped_ms.append(1000 * (answer.end_s - start_s))
            else:
                continue
            measured += 1

    def _next(self, said: int) -> Samples:
        return self.words[said % len(self.words)]


def as_line(one: InterruptionOutcome) -> str:
    """The outcome as a readable line."""
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
        f"{one.missed} missed turns, {one.false_stops} false stops",
        *one.failures,
    ]
    return "; ".join(lines)
