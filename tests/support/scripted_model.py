"""A fake model: every piece of work passes through the stages of its script.

It checks the engine's obligations to a model (one job per row, distinct rows in a step, calls from
one thread) and records every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parley.clock import ManualClock
from parley.engine.model import Job, Memory, ModelSpec
from parley.engine.work import (
    Checkpoint,
    Ending,
    Finalize,
    FinalizeResult,
    Generate,
    GenerateResult,
    OutputPiece,
    Prefill,
    PrefillResult,
    Result,
    Stage,
    StartResult,
    StartSession,
    StepUnit,
    Work,
)

STEPS: dict[type, tuple[Stage, ...]] = {
    StartSession: (Stage.VOCODE,),
    Prefill: (Stage.ENCODE, Stage.PREFILL),
    Generate: (Stage.DECODE,) * 5,
    StepUnit: (Stage.DECODE, Stage.DECODE, Stage.SPEECH, Stage.VOCODE),
    Finalize: (Stage.FINALIZE,),
}


@dataclass(eq=False)
class ScriptedJob:
    row: int
    work: Work
    left: list[Stage]
    model: ScriptedModel
    result: Result | None = None
    pieces: list[OutputPiece] = field(default_factory=list)
    is_cancelled: bool = False
    steps: int = 0
    waits_s: float = 0.0

    @property
    def stage(self):
        return self.left[0] if self.left else None

    def take_pieces(self):
        pieces, self.pieces = self.pieces, []
        return pieces

    def cancel(self):
        self.is_cancelled = True
        if self.left:
            self.left = []
            self.finish()

    def finish(self):
        length = self.model.lengths[self.row]
        match self.work:
            case StartSession():
                self.result = StartResult(seed=self.work.seed or 0)
            case Prefill(segments):
                self.model.lengths[self.row] = length + len(segments)
                self.result = PrefillResult(len(segments), length + len(segments))
            case Finalize():
                self.result = FinalizeResult(length)
            case _:
                ending = Ending.SPOKE if isinstance(self.work, StepUnit) else Ending.DONE
                ending = Ending.CANCELLED if self.is_cancelled else ending
                self.result = GenerateResult(ending, "x" * self.steps, True, self.steps, 0, length)


class ScriptedModel:
    """See the module's docstring.

    Args:
        clock: advanced by `costs_s` of the stage at every step.
        scripts: stages per kind of work, if they differ from `STEPS`.
        on_step: called at the start of every step; may raise or block.
    """

    def __init__(
        self,
        rows: int = 2,
        *,
        clock: ManualClock | None = None,
        costs_s: dict[Stage, float] | None = None,
        scripts: dict[type, tuple[Stage, ...]] | None = None,
        on_step: Callable[[Stage, list[int]], None] | None = None,
    ) -> None:
        self._rows = rows
        self._spec = ModelSpec(name="scripted")
        self.lengths = [0] * rows
        self.steps: list[tuple[Stage, tuple[int, ...]]] = []
        self.closed: list[int] = []
        self.started: list[tuple[int, Work]] = []
        self.is_unloaded = False
        self.is_warm = False
        self.on_step = on_step
        self._scripts = STEPS | (scripts or {})
        self._clock = clock
        self._costs_s = costs_s or {}
        self._threads: set[int] = set()
        self._jobs: dict[int, ScriptedJob] = {}

    def report_news(self, report: Callable[[], None]) -> None:
        self.report = report

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def start(self, row: int, work: Work) -> Job:
        self._check_thread()
        previous = self._jobs.get(row)
        assert previous is None or previous.stage is None, "one piece of work per row at a time"
        self.started.append((row, work))
        if isinstance(work, StartSession):
            self.lengths[row] = 0
        job = ScriptedJob(row, work, list(self._scripts[type(work)]), self)
        if not job.left:
            job.finish()
        self._jobs[row] = job
        return job

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        self._check_thread()
        rows = [job.row for job in jobs]
        assert len(set(rows)) == len(rows), "rows of a step are distinct"
        assert all(job.stage is stage for job in jobs), "all jobs are at the stage"
        try:
            if self.on_step is not None:
                self.on_step(stage, rows)
        except Exception:
            if len(jobs) == 1:
                # The engine drops it now.
                self._jobs.pop(rows[0], None)
            raise
        self.steps.append((stage, tuple(rows)))
        if self._clock is not None:
            self._clock.advance(self._costs_s.get(stage, 0.001))
        for job in jobs:
            assert isinstance(job, ScriptedJob)
            job.left.pop(0)
            job.steps += 1
            if isinstance(job.work, Generate | StepUnit):
                job.pieces.append(OutputPiece(text="x"))
            if not job.left:
                job.finish()

    def checkpoint(self, row: int) -> Checkpoint:
        self._check_thread()
        return _Checkpoint(row, self.lengths[row])

    def can_roll_back(self, checkpoint: Checkpoint) -> bool:
        return self.lengths[checkpoint.row] >= checkpoint.context_tokens

    def roll_back(self, checkpoint: Checkpoint) -> None:
        self._jobs.pop(checkpoint.row, None)
        self.lengths[checkpoint.row] = checkpoint.context_tokens

    def context_tokens(self, row: int) -> int:
        return self.lengths[row]

    def close(self, row: int) -> None:
        self._check_thread()
        self._jobs.pop(row, None)
        self.lengths[row] = 0
        self.closed.append(row)

    def warm_up(self) -> None:
        self._check_thread()
        self.is_warm = True

    def memory(self) -> Memory:
        return Memory(0, 0, sum(self.lengths))

    def unload(self) -> None:
        self._check_thread()
        self.is_unloaded = True

    def _check_thread(self) -> None:
        self._threads.add(threading.get_ident())
        assert len(self._threads) == 1, "the model belongs to one thread"


@dataclass(frozen=True)
class _Checkpoint:
    row: int
    context_tokens: int
