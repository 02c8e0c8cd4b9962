"""Models that fail or wait when a test requests it."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from tests.support.patience import HANG_S

from parley.engine.model import Job, Model
from parley.engine.work import Stage


class Failure(Exception):
    """The error of an injected fault."""


class Faulty:
    """Forwards everything to a real model, except the steps that are set to fail."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._plans: list[dict] = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def fail_at(
        self,
        stage: Stage | None,
        *,
        after: int = 0,
        row: int | None = None,
        times: int = 1,
        error: Exception | None = None,
    ) -> None:
        """Fail `times` steps at `stage` (None: any) that contain `row` (None: any), after `after`
        such steps have succeeded."""
        self._plans.append(
            {"stage": stage, "after": after, "row": row, "times": times, "error": error}
        )

    def heal(self) -> None:
        """Clear all planned failures."""
        self._plans.clear()

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        for plan in self._plans:
            if plan["stage"] not in (None, stage):
                continue
            if plan["row"] is not None and all(job.row != plan["row"] for job in jobs):
                continue
            if plan["after"] > 0:
                plan["after"] -= 1
            elif plan["times"] > 0:
                plan["times"] -= 1
                raise plan["error"] or Failure(f"injected at {stage.value}")
        self._model.step(stage, jobs)


class Gated:
    """Forwards everything to a model; steps of a chosen stage wait until the test opens the gate.

    Always open it again: a waiting step blocks the engine thread.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._stage: Stage | None = None
        self._open = threading.Event()
        self._arrived = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def shut(self, stage: Stage) -> None:
        self._arrived.clear()
        self._open.clear()
        self._stage = stage

    def open(self) -> None:
        self._stage = None
        self._open.set()

    async def arrived(self) -> None:
        """Wait until a step waits at the gate."""
        assert await asyncio.to_thread(self._arrived.wait, HANG_S)

    def step(self, stage: Stage, jobs: Sequence[Job]) -> None:
        if stage is self._stage:
            self._arrived.set()
            self._open.wait(4 * HANG_S)  # longer than any test waits
        self._model.step(stage, jobs)
