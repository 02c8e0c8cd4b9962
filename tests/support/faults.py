"""A model that fails when told to."""

from collections.abc import Sequence

from parley.engine.model import Job, Model
from parley.engine.work import Stage


class Failure(Exception):
    """What an injected fault raises."""


class Faulty:
    """Passes everything on to a real model, except the steps that were told to fail."""

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
        """Fail `times` steps at `stage` (None: at any) in which `row` (None: any) takes part, once
        `after` of them have gone well."""
        self._plans.append(
            {"stage": stage, "after": after, "row": row, "times": times, "error": error}
        )

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
