"""How long a newcomer will wait.

Pure arithmetic. `EtaTracker` remembers how long each kind of task takes; `estimate_waits` plays the
queue forward over the slots that will serve it. Source: service.md 2.2 and 2.3.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Final

from parley.errors import InvalidConfig
from parley.protocol.control import TaskType
from parley.settings import EtaSettings

TASKS: Final[tuple[TaskType, ...]] = ("chat", "half_duplex_audio", "audio_duplex", "omni_duplex")

SHORT_NAMES: Final[dict[TaskType, str]] = {
    "chat": "chat",
    "half_duplex_audio": "half_duplex",
    "audio_duplex": "audio_duplex",
    "omni_duplex": "omni_duplex",
}
"""Task type → its name inside settings and REST fields (`eta_{name}_s`)."""

OVERRUN_S: Final = 15.0
"""What is still expected of a task that took longer than its estimate."""
LOADING_S: Final = 30.0
"""When a worker that is loading is expected to serve."""
CLEANUP_S: Final = 1.0
"""When a slot that is being cleaned up is expected to serve."""


class EtaTracker:
    """Durations by task type: a baseline until enough was seen, then a moving average."""

    def __init__(self, settings: EtaSettings) -> None:
        self.alpha = settings.ema_alpha
        self.min_samples = settings.ema_min_samples
        self.baselines: dict[TaskType, float] = {
            task: getattr(settings, f"{name}_s") for task, name in SHORT_NAMES.items()
        }
        self.averages: dict[TaskType, float] = {}
        self.samples: dict[TaskType, int] = dict.fromkeys(TASKS, 0)

    def record(self, task: TaskType, duration_s: float) -> None:
        """A task that reached its ready state took `duration_s`."""
        if duration_s <= 0:
            return
        average = self.averages.get(task)
        self.averages[task] = (
            duration_s if average is None else self.alpha * duration_s + (1 - self.alpha) * average
        )
        self.samples[task] += 1

    def eta(self, task: TaskType) -> float:
        """Expected duration of a whole task, in seconds."""
        if self.samples[task] >= self.min_samples:
            return self.averages[task]
        return self.baselines[task]

    def remaining(self, task: TaskType, elapsed_s: float) -> float:
        """Expected seconds until a running task ends; never below what an overrun gets."""
        eta = self.eta(task)
        return eta - elapsed_s if elapsed_s < eta else OVERRUN_S

    def adjust(
        self,
        *,
        baselines: dict[TaskType, float] | None = None,
        alpha: float | None = None,
        min_samples: int | None = None,
    ) -> None:
        """Change some settings; all or none, what is omitted stays.

        Raises:
            InvalidConfig: a value out of range.
        """
        for task, seconds in (baselines or {}).items():
            if not (math.isfinite(seconds) and seconds > 0):
                name = f"eta_{SHORT_NAMES[task]}_s"
                raise InvalidConfig(f"{name} must be above 0.", field=name)
        if alpha is not None and not 0 < alpha <= 1:
            raise InvalidConfig("eta_ema_alpha must be above 0 and at most 1.", field="alpha")
        if min_samples is not None and min_samples < 1:
            raise InvalidConfig("eta_ema_min_samples must be at least 1.", field="min_samples")
        self.baselines.update(baselines or {})
        self.alpha = self.alpha if alpha is None else alpha
        self.min_samples = self.min_samples if min_samples is None else min_samples


def estimate_waits(
    free_in_s: Iterable[float], waiting: Sequence[TaskType], eta: EtaTracker
) -> list[float | None]:
    """Seconds until each waiting task starts, in order.

    Args:
        free_in_s: for every slot that will ever serve, when it is free.
        waiting: task types from the head.

    Returns:
        One value per waiting task, rounded to 0.1 s; None for all when there is no slot.
    """
    heap = list(free_in_s)
    if not heap:
        return [None] * len(waiting)
    heapq.heapify(heap)
    waits: list[float | None] = []
    for task in waiting:
        free = heap[0]
        waits.append(round(max(0.0, free), 1))
        heapq.heapreplace(heap, free + eta.eta(task))
    return waits
