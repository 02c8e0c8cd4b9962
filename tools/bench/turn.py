"""`python -m tools.bench turn`: the time from the end of speech to the first sound, by part.

Measured twice in half-duplex. Inside this process, step by step: the model's time after the end of
an utterance, and the CPU time of each of its stages until the first sound. And over the wire, in
real time, with a separate server: when the detector finds the end, when the first text arrives, and
when a player without a buffer plays a sound.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from parley.cli.bench.duplex_material import bundled_words
from parley.cli.bench.duplex_talk import READY_S, SimulatedLoudspeaker, SimulatedMicrophone
from parley.cli.bench.figures import Figures
from parley.cli.bench.people import installed
from parley.cli.bench.server import server
from parley.client.events import Piece, Thinking
from parley.client.half_duplex import HalfDuplexClient
from parley.engine import Engine
from parley.engine.model import Job, Model
from parley.engine.work import Stage
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, Pcm, Samples, level_dbfs
from parley.models import load
from parley.protocol.values import VAD_DEFAULTS
from parley.settings import ModelSettings
from parley.tasks import end_tasks
from parley.views.content import AudioPart, Message
from parley.views.half_duplex import HalfDuplexView, TurnRequest

SENTENCES: Final = (
    "What is the capital of Italy?",
    "How many days are there in a week?",
    "What is three plus four?",
    "What is the opposite of happy?",
)
PEOPLE: Final = 12
"""Number of sentences, taken from the start of those of `parley bench duplex --people`."""
WAIT_S: Final = 30.0
HEARD_DBFS: Final = -60.0
SILENCE_MS: Final = VAD_DEFAULTS.min_silence_duration_ms


def turn(
    model: Annotated[str, typer.Option(help="A name, a folder or a hub id.")] = "parrot",
    turns: Annotated[int, typer.Option(min=1, max=1000, help="Turns measured in each way.")] = 40,
    chunk_ms: Annotated[int, typer.Option(min=20, max=1000, help="Length of a message.")] = 20,
    people: Annotated[
        bool, typer.Option("--people", help="Recorded people instead of a synthetic voice.")
    ] = False,
    wire: Annotated[
        bool, typer.Option("--wire/--no-wire", help="Also through a server of its own.")
    ] = True,
    limit_ms: Annotated[
        float | None,
        typer.Option(help="Fail if the first sound comes later than this after the detector's "
                     "silence (95th percentile)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Measure the time from the end of speech to the first audible sound, by part."""
    words = installed().turns[:PEOPLE] if people else bundled_words(SENTENCES, (0, 1))
    figures = asyncio.run(measure(model, words, turns, chunk_ms / 1000, wire=wire))
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(one) for name, one in figures.items()}))
    else:
        for name, one in figures.items():
            typer.echo(f"{name:<42} {one}")
    late = figures.get(AFTER)
    if limit_ms is not None and (late is None or not late.count or late.p95_ms > limit_ms):
        typer.echo(f"{AFTER}: not within {limit_ms:g} ms (p95)", err=True)
        raise typer.Exit(1)


AFTER: Final = "wire: first sound, after the detector"


async def measure(
    model: str, words: Sequence[Samples], turns: int, chunk_s: float, *, wire: bool
) -> dict[str, Figures]:
    """All figures, by name."""
    settings = ModelSettings(name=model, slots=1)
    parts = await inside(load(settings), words, turns)
    if wire:
        async with server(1, model=model) as url:
            parts |= await through(url, words, turns, chunk_s)
    return {name: Figures.of(values) for name, values in parts.items()}


class Watched:
    """Wraps a model, and records the start and end of each step, and its CPU time in its thread."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.steps: list[tuple[Stage, float, float]] = []
        self.processor_ms: dict[Stage, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        begin_s, used_s = time.perf_counter(), time.thread_time()
        self._model.step(stage, jobs)
        used_ms = 1000 * (time.thread_time() - used_s)
        self.steps.append((stage, begin_s, time.perf_counter()))
        self.processor_ms[stage] = self.processor_ms.get(stage, 0.0) + used_ms


async def inside(model: Model, words: Sequence[Samples], turns: int) -> dict[str, list[float]]:
    """Milliseconds of each part, from the utterance to the first sound, in this process."""
    watched: Any = Watched(model)
    names = (
        *("queue", "prefill", "first text", "first speech token", "first window", "all"),
        *(f"processor, {stage.value}" for stage in Stage),
    )
    parts: dict[str, list[float]] = {f"inside: {name}": [] for name in names}
    parts["inside: all, taken in early"] = []
    async with Engine(watched) as engine, await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.reset_session("bench")
        system = Message.of("system", "You are a helpful assistant.")
        await view.prefill(TurnRequest("bench", (system,)))
        # The first turn also loads and compiles, and is not counted.
        for index in range(-1, 2 * turns):
            said = Pcm(words[index // 2 % len(words)], INPUT_RATE_HZ)
            request = TurnRequest("bench", (Message("user", (AudioPart(said),)),))
            is_early = index % 2 == 1
            if is_early:
                await view.prefill_early(request)
            found = await _one_turn(view, watched, request)
            if index < 0:
                continue
            if is_early:
                parts["inside: all, taken in early"].append(found["all"])
                continue
            for name in names:
                if name in found:
                    parts[f"inside: {name}"].append(found[name])
    return {name: values for name, values in parts.items() if values}


async def _one_turn(
    view: HalfDuplexView, watched: Watched, request: TurnRequest
) -> dict[str, float]:
    """Run one turn; returns the milliseconds of its parts."""
    watched.steps.clear()
    watched.processor_ms.clear()
    begin_s = time.perf_counter()
    await view.prefill(request)
    prefilled_s = time.perf_counter()
    text_s = sound_s = None
    async for chunk in view.generate("bench"):
        now_s = time.perf_counter()
        if chunk.text_delta and text_s is None:
            text_s = now_s
        if chunk.audio is not None and len(chunk.audio) and sound_s is None:
            sound_s = now_s
            steps = list(watched.steps)
            used = dict(watched.processor_ms)
    found = {"prefill": 1000 * (prefilled_s - begin_s)}
    if sound_s is None:
        return found | {"all": 1000 * (time.perf_counter() - begin_s)}
    found |= {f"processor, {stage.value}": ms for stage, ms in used.items()}
    if steps and steps[0][1] < prefilled_s:
        found["queue"] = 1000 * (steps[0][1] - begin_s)
    if text_s is not None:
        found["first text"] = 1000 * (min(text_s, sound_s) - prefilled_s)
    speech = [end for stage, _, end in steps if stage is Stage.SPEECH]
    vocoded = [(begin, end) for stage, begin, end in steps if stage is Stage.VOCODE]
    since_s = prefilled_s if text_s is None else min(text_s, sound_s)
    if speech:
        found["first speech token"] = 1000 * (speech[0] - since_s)
        since_s = speech[0]
    if vocoded:
        found["first window"] = 1000 * max(0.0, vocoded[0][1] - since_s)
    return found | {"all": 1000 * (sound_s - begin_s)}


class TurnLoudspeaker(SimulatedLoudspeaker):
    """Loudspeaker that records when an utterance was found, and the first text and audio of its
    answer."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = asyncio.get_running_loop()
        self.found_s: float | None = None
        self.text_s: float | None = None
        self.sound_s: float | None = None

    def take(self, event: Any) -> None:
        now_s = self._clock.time()
        match event:
            case Thinking() if self.found_s is None:
                self.found_s = now_s
            case Piece(text=text, sound=sound):
                if text and self.text_s is None:
                    self.text_s = now_s
                is_heard = sound is not None and level_dbfs(sound) > HEARD_DBFS
                if is_heard and self.sound_s is None:
                    self.sound_s = now_s
            case _:
                pass
        super().take(event)

    def listen_again(self) -> None:
        """Clear the times before the next turn."""
        self.found_s = self.text_s = self.sound_s = None


async def through(
    url: str, words: Sequence[Samples], turns: int, chunk_s: float
) -> dict[str, list[float]]:
    """Milliseconds of each part at the client, in real time.

    Raises:
        SetupError: a turn was not answered.
    """
    parts: dict[str, list[float]] = {
        "wire: detector": [],
        "wire: detector, more than its silence": [],
        "wire: first text, after the detector": [],
        AFTER: [],
        "wire: first sound, after the end of speech": [],
    }
    async with HalfDuplexClient(url, record=False) as client:
        await client.ready(timeout_s=READY_S)
        loudspeaker, microphone = TurnLoudspeaker(), SimulatedMicrophone(client, chunk_s)

        async def listen() -> None:
            async for event in client:
                loudspeaker.take(event)
            loudspeaker.report()

        tasks = [asyncio.create_task(listen()), asyncio.create_task(microphone.run())]
        try:
            await asyncio.sleep(1.0)
            for index in range(turns):
                await loudspeaker.silence(asyncio.get_running_loop().time() + WAIT_S)
                loudspeaker.listen_again()
                _, end_s = microphone.say(words[index % len(words)])
                answer = await loudspeaker.answer(end_s, end_s + WAIT_S)
                found_s, text_s, sound_s = (
                    loudspeaker.found_s,
                    loudspeaker.text_s,
                    loudspeaker.sound_s,
                )
                if answer is None or found_s is None or sound_s is None:
                    raise SetupError("A turn was not answered.", hint=str(loudspeaker.error or ""))
                detector_ms = 1000 * (found_s - end_s)
                parts["wire: detector"].append(detector_ms)
                parts["wire: detector, more than its silence"].append(detector_ms - SILENCE_MS)
                if text_s is not None:
                    parts["wire: first text, after the detector"].append(1000 * (text_s - found_s))
                parts[AFTER].append(1000 * (sound_s - found_s))
                parts["wire: first sound, after the end of speech"].append(1000 * (sound_s - end_s))
        finally:
            await end_tasks(*tasks)
    return parts
