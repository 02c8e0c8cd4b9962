"""`parley bench model`: the number of conversations that a device can run.

For each number of slots the model is loaded, and as many duplex conversations run at one unit per
second with their phases spread over the second. Each answer must be ready before the end of its
second. The report shows the time per stage.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from parley import models
from parley.cli import flags
from parley.cli.bench.figures import Figures, drawn, histogram
from parley.clock import Clock, SystemClock
from parley.engine.engine import Engine
from parley.engine.loop import Stats
from parley.engine.model import Model
from parley.engine.work import Stage
from parley.errors import SetupError
from parley.media.image import Pixels
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.reference import read_voice
from parley.protocol.values import DuplexConfig
from parley.settings import ModelSettings
from parley.views.duplex import DuplexView

Load = Literal["typical", "worst"]

SPEECH_UNITS = 4
"""Number of units of speech, and then of silence."""

ROOM_TOKENS = 256
"""A conversation restarts when its context has less room than this."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Measurements with one number of slots.

    Args:
        answer: from a unit's arrival to its answer.
        prepare: time from requesting a conversation until it is ready.
        late: number of answers after the end of their second.
        spoke: number of units in which the model spoke.
        histograms: per stage, number of pieces of work by duration.
        rows_per_step: mean number of conversations per step, by stage.
        busy: share of the time in which the device was busy.
    """

    slots: int
    units: int
    answer: Figures
    prepare: Figures
    late: int
    spoke: int
    stages: dict[str, Figures]
    histograms: dict[str, dict[str, int]]
    rows_per_step: dict[str, float]
    busy: float
    used_bytes: int
    weights_bytes: int


@flags.sets("model.name", "model.device", "model.random_weights", "model.compile")
def model(
    read: flags.Reader,
    slots: Annotated[
        str, typer.Option(help="Numbers of slots to try, separated by commas.")
    ] = "1,2,4,8",
    units: Annotated[int, typer.Option(min=1, help="Seconds per conversation.")] = 20,
    worst: Annotated[
        bool,
        typer.Option(
            "--worst/--typical",
            help="Worst case: a picture in each unit, a reference voice, and speech all the time.",
        ),
    ] = False,
    speech: Annotated[
        Path | None, typer.Option(help="Speech of the user (WAV); default: a synthetic sound.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how many conversations a device can run, and where the time is spent."""
    settings = read().model
    sound = None if speech is None else read_voice(speech, limit_s=3600.0)
    kind: Load = "worst" if worst else "typical"
    for count in _counts(slots):
        report = asyncio.run(_one(settings, count, units, kind, sound))
        typer.echo(json.dumps(dataclasses.asdict(report)) if as_json else describe(report))
    if not as_json:
        typer.echo(f"{settings.name}, {kind} load, {platform.platform()}")


def describe(report: ModelReport) -> str:
    lines = [
        f"{report.slots} slots: {report.units} units, answers {report.answer}; "
        f"{report.late} late, {report.spoke} spoken, device busy {100 * report.busy:.0f} %, "
        f"memory {report.used_bytes / 2**20:.0f} MiB on top of "
        f"{report.weights_bytes / 2**20:.0f} MiB of weights",
        f"  prepare  {report.prepare}",
    ]
    for name, figures in report.stages.items():
        rows = report.rows_per_step.get(name, 0.0)
        lines.append(f"  {name:<8} {figures}, {rows:.1f} rows per step")
        lines.append("           " + drawn(report.histograms.get(name, {})))
    return "\n".join(lines)


async def _one(
    settings: ModelSettings, count: int, units: int, load_kind: Load, sound: Pcm | None
) -> ModelReport:
    loaded = await asyncio.to_thread(models.load, settings.model_copy(update={"slots": count}))
    return await measure(loaded, units=units, load_kind=load_kind, speech=sound)


async def measure(
    loaded: Model,
    *,
    units: int,
    load_kind: Load = "typical",
    speech: Pcm | None = None,
    pace_s: float = 1.0,
    clock: Clock | None = None,
) -> ModelReport:
    """Run one conversation per row; the model is unloaded afterwards.

    Args:
        pace_s: time between two units of a conversation; the deadline of each.
    """
    clock = clock or SystemClock()
    rows = loaded.rows
    if load_kind == "worst":
        make_talkative(loaded)
    async with Engine(loaded, clock) as engine:
        await engine.warm_up()
        conversations = [
            BenchSession(DuplexView(await engine.take_slot()), clock, load_kind, speech, pace_s)
            for _ in range(rows)
        ]
        for conversation in conversations:
            await conversation.prepare()
        engine.take_stats()
        begin_s = clock.monotonic()
        async with asyncio.TaskGroup() as group:
            for index, conversation in enumerate(conversations):
                phase_s = pace_s * index / rows
                group.create_task(conversation.run(begin_s + phase_s, units))
        took_s = clock.monotonic() - begin_s
        memory = await engine.memory()
        stats = engine.take_stats()
    return ModelReport(
        slots=rows,
        units=units * rows,
        answer=Figures.of([ms for one in conversations for ms in one.answers_ms]),
        prepare=Figures.of([ms for one in conversations for ms in one.prepares_ms]),
        late=sum(one.late for one in conversations),
        spoke=sum(one.spoke for one in conversations),
        stages=_stages(stats),
        histograms={stage.value: histogram(ms) for stage, ms in stats.stage_ms.items()},
        rows_per_step={
            stage.value: stats.rows_stepped[stage] / steps for stage, steps in stats.steps.items()
        },
        busy=stats.busy_s / took_s if took_s else 0.0,
        used_bytes=memory.used_bytes,
        weights_bytes=memory.weights_bytes,
    )


class BenchSession:
    """A user who alternates between speech and silence; with `worst`, each unit also has a
    picture."""

    def __init__(
        self, view: DuplexView, clock: Clock, load_kind: Load, speech: Pcm | None, pace_s: float
    ) -> None:
        self.answers_ms: list[float] = []
        self.prepares_ms: list[float] = []
        self.late = 0
        self.spoke = 0
        self._view = view
        self._clock = clock
        self._pace_s = pace_s
        self._speech = speech or made_up_speech(SPEECH_UNITS)
        self._voice = made_up_speech(5) if load_kind == "worst" else None
        self.frames: list[Pixels] = [made_up_picture()] if load_kind == "worst" else []

    async def prepare(self) -> None:
        begin_s = self._clock.monotonic()
        await self._view.prepare(
            "You are a helpful assistant.",
            ref_audio=self._voice,
            options=DuplexConfig(force_listen_count=0),
            seed=1,
        )
        self.prepares_ms.append(1000 * (self._clock.monotonic() - begin_s))

    async def run(self, begin_s: float, units: int) -> None:
        """Send one unit per `pace_s`, even if the answers cannot keep up."""
        limit = self._view.spec.context_limit_tokens - ROOM_TOKENS
        for index in range(units):
            arrival_s = begin_s + index * self._pace_s
            await asyncio.sleep(max(0.0, arrival_s - self._clock.monotonic()))
            due_s = arrival_s + self._pace_s
            await self._view.prefill(self.unit(index), self.frames, due_s=due_s)
            result = await self._view.generate(due_s=due_s)
            answered_s = self._clock.monotonic()
            self.answers_ms.append(1000 * (answered_s - arrival_s))
            self.late += answered_s > due_s
            self.spoke += not result.is_listen
            settled = await self._view.finalize(due_s=due_s)
            if settled is not None and settled.context_tokens > limit:
                await self.prepare()

    def unit(self, index: int) -> Pcm:
        """Sound of second `index`."""
        if index // SPEECH_UNITS % 2:
            return Pcm.silence(INPUT_RATE_HZ, INPUT_RATE_HZ)
        start = index * INPUT_RATE_HZ % max(INPUT_RATE_HZ, len(self._speech) - INPUT_RATE_HZ + 1)
        piece = self._speech.samples[start : start + INPUT_RATE_HZ]
        return Pcm(np.pad(piece, (0, INPUT_RATE_HZ - len(piece))), INPUT_RATE_HZ)


def make_talkative(loaded: Model) -> None:
    """Make a model with a `chooser` speak as much as possible in every unit. Other models are
    unaffected.
    """
    chooser, tokenizer = getattr(loaded, "chooser", None), getattr(loaded, "tokenizer", None)
    if chooser is not None and tokenizer is not None:
        from parley.models.minicpmo45.warmup import Talkative

        loaded.chooser = Talkative(chooser, tokenizer)  # type: ignore[attr-defined]


def made_up_speech(seconds: int) -> Pcm:
    """A voice-like hum; the same in every call."""
    t = np.arange(seconds * INPUT_RATE_HZ) / INPUT_RATE_HZ
    pitch = 140 + 30 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / INPUT_RATE_HZ
    hum = sum(np.sin(harmonic * phase) / harmonic for harmonic in (1, 2, 3, 5))
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 3.1 * t)
    return Pcm((0.15 * hum * swell).astype(np.float32), INPUT_RATE_HZ)


def made_up_picture() -> Pixels:
    """A gradient in the size of a camera picture."""
    rows = np.linspace(0, 255, 720)[:, None]
    columns = np.linspace(0, 255, 1280)[None, :]
    mixed = (rows + columns) / 2
    return np.stack([mixed, mixed[::-1], mixed[:, ::-1]], axis=-1).astype(np.uint8)


def _stages(stats: Stats) -> dict[str, Figures]:
    return {
        stage.value: Figures.of(stats.stage_ms[stage]) for stage in Stage if stage in stats.stage_ms
    }


def _counts(slots: str) -> list[int]:
    try:
        counts = [int(word) for word in slots.split(",")]
    except ValueError as error:
        raise SetupError(
            f"'{slots}' is not a list of numbers.", hint="Write it like --slots 1,2,4."
        ) from error
    if not counts or min(counts) < 1:
        raise SetupError("Every number in --slots must be at least 1.")
    return counts
