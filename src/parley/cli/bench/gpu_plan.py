"""Plans what one run of `parley bench gpu` tries, and how long it may take.

A plan is a TOML file, so that an operator who has a card for only minutes decides beforehand:

    limit_s = 570

    [[run]]
    name = "int4 on a card of 24 GB"
    slots = [1, 4]
    units = 20
    card_gb = 24
    model = { quantize = "int4", kv_cache_dtype = "int8" }

Runs are done in order. A number of slots is skipped if it would end after the limit.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from parley.errors import SetupError
from parley.settings import ModelSettings
from parley.settings.reader import unknown_names

LIMIT_S: Final = 570.0
"""Default limit, which leaves half a minute of ten minutes for writing the report."""

LOADING_S: Final = 30.0
"""Estimate for loading and warming up until the first load has been measured."""


class GpuRun(BaseModel):
    """One configuration.

    Args:
        slots: numbers of conversations to try, in order; units: seconds of each.
        card_gb: limit memory to this (10^9 bytes), as if the card had no more; None: no limit.
        model: settings of `[model]` that differ from those of the call.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    slots: tuple[int, ...] = Field(min_length=1)
    units: int = Field(20, ge=1)
    card_gb: float | None = Field(None, gt=0)
    model: dict[str, Any] = Field(default_factory=dict)

    @field_validator("model")
    @classmethod
    def _known(cls, model: dict[str, Any]) -> dict[str, Any]:
        unknown = next(unknown_names({"model": model}), None)
        if unknown is not None:
            raise ValueError(f"there is no setting {unknown}")
        return model

    def settings(self, base: ModelSettings) -> ModelSettings:
        """The call's settings, updated with those of the run."""
        return ModelSettings.model_validate({**base.model_dump(), **self.model})


class GpuPlan(BaseModel):
    """The runs of one call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit_s: float = Field(LIMIT_S, gt=0)
    run: tuple[GpuRun, ...] = Field(min_length=1)


def read_plan(path: Path) -> GpuPlan:
    """A plan from a file.

    Raises:
        SetupError: it cannot be read, or names something that does not exist.
    """
    try:
        plan = GpuPlan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        for run in plan.run:
            run.settings(ModelSettings())
    except (OSError, ValueError) as error:
        problems = (
            "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise SetupError(
            f"The plan {path} cannot be used: {problems}",
            hint="tools/gpu-plan.toml is one that works.",
        ) from error
    return plan


def plan_of_flags(slots: Sequence[int], units: int) -> GpuPlan:
    return GpuPlan(run=(GpuRun(name="as set", slots=tuple(slots), units=units),))


@dataclass(slots=True)
class TimeBudget:
    """Time of one call.

    Args:
        limit_s: from its start.
        clock: seconds, monotonic; replaced by tests.
    """

    limit_s: float
    clock: Any = time.monotonic
    begin_s: float = field(init=False)
    loading_s: float = LOADING_S

    def __post_init__(self) -> None:
        self.begin_s = self.clock()

    @property
    def left_s(self) -> float:
        return float(self.limit_s - (self.clock() - self.begin_s))

    def has_room_for(self, units: int) -> bool:
        """True if a run of this length would end in time."""
        return self.loading_s + units <= self.left_s
