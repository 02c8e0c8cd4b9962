"""A model for the bench `engine`: the parrot's answers with the full-size model's timing.

Each step launches as many small operators as the roofline counts for the published model. A single
number simulates an asynchronous device: the time at which their kernels would be finished. The step
ends by waiting until then, as a step on a GPU does. The operators are torch's, so each releases and
reacquires the interpreter's lock, as a kernel launch does.

All times are seconds of `time.perf_counter` unless noted otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from tools.bench.host_waits import HostWaits, IdleDevice, IdleSplit, ThreadTimes
from tools.roofline.meter import Count
from tools.roofline.steps import PaperModel, StepKind
from tools.roofline.table import (
    COPY_S,
    GRAPH_KERNEL_S,
    H200,
    kernel_seconds,
)

from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.work import Checkpoint, OutputPiece, Result, Stage, StepUnit, Work
from parley.models.parrot import Parrot

STAGES: Final[Mapping[Stage, tuple[str, ...]]] = {
    Stage.ENCODE: ("picture", "sound"),
    Stage.PREFILL: ("prefill",),
    Stage.DECODE: ("choose", "decode"),
    Stage.SPEECH: ("speech, next 5",),
    Stage.VOCODE: ("flow", "vocoder"),
    Stage.FINALIZE: (),
}
"""Steps of the roofline that make up one step of a stage."""

TOKENS: Final = 18
"""Number of text tokens of a unit that speaks, in addition to the one that decides it."""

LOOKS: Final = 5
"""Number of steps of the speech decoder in such a unit."""

UNIT_STEPS: Final[Mapping[Stage, int]] = {
    **dict.fromkeys(STAGES, 1),
    Stage.DECODE: 1 + TOKENS,
    Stage.SPEECH: LOOKS,
}
"""Number of steps of such a unit, by stage."""

OPERATOR_NUMBERS: Final = 16_384
"""Number of elements in an operator's tensors, so that it takes about as long as a driver's
launch."""

Launches = Sequence[float]
"""Time for which the device is busy with each launch of a step."""

Costs = Mapping[int, Mapping[Stage, Launches]]
"""Launches of each stage, by the maximum number of rows in a step."""


def paper_costs(rows: int, context_tokens: int = 8192) -> Costs:
    """Costs of the published model in bfloat16 on an H200, for steps of 1, 2, 4, … rows.
    **Calculated.**"""
    model = PaperModel(slots=rows, context_tokens=context_tokens)
    counts = [1]
    while counts[-1] < rows:
        counts.append(min(rows, 2 * counts[-1]))
    return {count: _stages(model.unit(count)) for count in counts}


def _stages(steps: Sequence[StepKind]) -> dict[Stage, Launches]:
    by_name = {step.name: step for step in steps}
    return {
        stage: [time_s for name in names for time_s in _launches(by_name[name])]
        for stage, names in STAGES.items()
    }


def _launches(step: StepKind) -> list[float]:
    copies = [COPY_S] * step.eager.copies
    graph_s = sum(_kernels(step.captured))
    return [*copies, *_kernels(step.eager), *([graph_s] if graph_s else [])]


def _kernels(count: Count) -> list[float]:
    return [
        kernel_seconds(op, H200, GRAPH_KERNEL_S) / op.kernels
        for op in count.ops
        for _ in range(op.kernels)
    ]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step on the engine thread.

    Args:
        ended_s: time of its end.
        took_s: elapsed time.
        device_s: time that the device needs if it never waits.
        idle: time for which the device had nothing to do, by cause.
        before_s: CPU time of the thread since the previous step.
        lock_s: time for which the thread waited for the interpreter's lock, an upper bound.
    """

    stage: Stage
    rows: int
    ended_s: float
    took_s: float
    device_s: float
    idle: IdleSplit
    before_s: float
    lock_s: float


@dataclass(slots=True)
class Timings:
    """Measurements of the engine thread.

    Args:
        waits_s: (time, duration) of each command's wait from when it is ready until it is started.
            It is ready when it has been submitted and the thread has finished its previous work.
    """

    steps: list[TimedStep] = field(default_factory=list)
    waits_s: list[tuple[float, float]] = field(default_factory=list)


class PacedModel:
    """A parrot whose steps cost what `costs` says.

    Args:
        costs: a step with more rows than any listed costs as much as the largest listed one.
    """

    def __init__(self, rows: int, costs: Costs) -> None:
        self._parrot = Parrot(rows)
        self._costs = dict(sorted(costs.items()))
        self._numbers = torch.ones(OPERATOR_NUMBERS)
        self._sums = torch.empty(OPERATOR_NUMBERS)
        self._submitted: dict[int, float] = {}
        self._free_s = 0.0
        self._times: ThreadTimes | None = None
        self._computed_s: float | None = None
        self._lock = threading.Lock()
        self._timings = Timings()

    def take_timings(self) -> Timings:
        """The measurements since the last call; may be called from any thread."""
        with self._lock:
            timings, self._timings = self._timings, Timings()
        return timings

    # Methods of the engine's contract.

    @property
    def spec(self) -> ModelSpec:
        return self._parrot.spec

    @property
    def rows(self) -> int:
        return self._parrot.rows

    def prepare_ahead(self, work: Work) -> None:
        """Note the time at which a command was submitted."""
        self._submitted[id(work)] = time.perf_counter()

    def start(self, row: int, work: Work) -> Job:
        submitted_s = self._submitted.pop(id(work), None)
        now_s = time.perf_counter()
        if submitted_s is not None:
            with self._lock:
                waited_s = now_s - max(submitted_s, self._free_s)
                self._timings.waits_s.append((now_s, waited_s))
        job = PacedJob(self._parrot.start(row, work), is_unit=isinstance(work, StepUnit))
        self._free_s = time.perf_counter()
        return job

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        if self._times is None:
            self._times = ThreadTimes()
        started_s, waits = time.perf_counter(), HostWaits(self._times)
        computed_s = time.thread_time()
        before_s = 0.0 if self._computed_s is None else computed_s - self._computed_s
        launches = self._launches(stage, len(jobs))
        idle = self._launch(launches, waits)
        own = [job for job in jobs if isinstance(job, PacedJob)]
        due = [job.inner for job in own if not job.take_extra()]
        if due:
            self._parrot.step(stage, due)
        waits.look()
        ended_s = time.perf_counter()
        step = TimedStep(
            stage=stage,
            rows=len(jobs),
            ended_s=ended_s,
            took_s=ended_s - started_s,
            device_s=sum(launches),
            idle=idle,
            before_s=before_s,
            lock_s=waits.lock_s,
        )
        with self._lock:
            self._timings.steps.append(step)
        self._computed_s = time.thread_time()
        self._free_s = time.perf_counter()

    def checkpoint(self, row: int) -> Checkpoint:
        return self._parrot.checkpoint(row)

    def can_roll_back(self, checkpoint: Checkpoint) -> bool:
        return self._parrot.can_roll_back(checkpoint)

    def roll_back(self, checkpoint: Checkpoint) -> None:
        self._parrot.roll_back(checkpoint)

    def context_tokens(self, row: int) -> int:
        return self._parrot.context_tokens(row)

    def close(self, row: int) -> None:
        self._parrot.close(row)

    def warm_up(self) -> None:
        self._parrot.warm_up()

    def memory(self) -> Memory:
        return self._parrot.memory()

    def unload(self) -> None:
        if self._times is not None:
            self._times.close()
            self._times = self._computed_s = None
        self._parrot.unload()

    def _launches(self, stage: Stage, rows: int) -> Launches:
        for most, stages in self._costs.items():
            if rows <= most:
                return stages[stage]
        return self._costs[max(self._costs)][stage]

    def _launch(self, launches: Launches, waits: HostWaits) -> IdleSplit:
        """Launch everything, and wait for it; returns the device's idle time by cause."""
        device = IdleDevice(waits)
        for busy_s in launches:
            torch.add(self._numbers, 1.0, out=self._sums)
            device.launch(busy_s)
        wait_s = max(0.0, device.free_s - time.perf_counter())
        if wait_s:
            waits.look()
            time.sleep(wait_s)
            waits.look(slept_s=wait_s)
        return device.split()


class PacedJob:
    """A piece of the parrot's work; every unit takes as many steps as one that speaks."""

    def __init__(self, inner: Job, *, is_unit: bool) -> None:
        self.inner = inner
        extra = [Stage.DECODE] * TOKENS + [Stage.SPEECH] * LOOKS
        self._extra = deque(extra if is_unit and inner.stage is Stage.DECODE else ())

    @property
    def row(self) -> int:
        return self.inner.row

    @property
    def stage(self) -> Stage | None:
        return self._extra[0] if self._extra else self.inner.stage

    @property
    def result(self) -> Result | None:
        return None if self._extra else self.inner.result

    @property
    def waits_s(self) -> float:
        return self.inner.waits_s

    def take_extra(self) -> bool:
        """True if this step is an extra one, which the parrot does not run."""
        if not self._extra:
            return False
        self._extra.popleft()
        return True

    def take_pieces(self) -> list[OutputPiece]:
        return self.inner.take_pieces()

    def cancel(self) -> None:
        self._extra.clear()
        self.inner.cancel()
