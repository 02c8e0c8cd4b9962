"""Estimates how long a new ticket will wait.

Pure arithmetic. `EtaTracker` records how long each kind of session takes; `estimate_waits`
simulates the queue on the slots that will serve it. Source: service.md 2.2 and 2.3.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from parley.errors import InvalidConfig
from parley.protocol.kinds import Kind
from parley.settings import EtaSettings

OVERRUN_S: Final = 15.0
"""Expected remaining time of a session that took longer than its estimate."""
LOADING_S: Final = 30.0
"""Expected time until a loading worker is ready."""
CLEANUP_S: Final = 1.0
"""Expected time until a slot that is being cleaned up is free."""


class EtaTracker:
    """Durations by kind: a baseline until there are enough measurements, then a moving average."""

    def __init__(self, settings: EtaSettings) -> None:
        self.alpha = settings.ema_alpha
        self.min_samples = settings.ema_min_samples
        self.baselines: dict[Kind, float] = {
            kind: getattr(settings, f"{kind.short_name}_s") for kind in Kind
        }
        self.averages: dict[Kind, float] = {}
        self.samples: dict[Kind, int] = dict.fromkeys(Kind, 0)

    def record(self, kind: Kind, duration_s: float) -> None:
        """Record the duration of a session that reached its ready state."""
        if duration_s <= 0:
            return
        average = self.averages.get(kind)
        self.averages[kind] = (
            duration_s if average is None else self.alpha * duration_s + (1 - self.alpha) * average
        )
        self.samples[kind] += 1

    def eta(self, kind: Kind) -> float:
        """Expected duration of a whole session, in seconds."""
        if self.samples[kind] >= self.min_samples:
            return self.averages[kind]
        return self.baselines[kind]

    def remaining(self, kind: Kind, elapsed_s: float) -> float:
        """Expected seconds until a running session ends; at least `OVERRUN_S` if it is overdue."""
        eta = self.eta(kind)
        return eta - elapsed_s if elapsed_s < eta else OVERRUN_S

    def adjust(self, changed: Mapping[str, Any]) -> None:
        """Change some settings, by their names in `/api/config/eta`. Either all are changed or
        none; omitted ones stay as they are.

        Raises:
            InvalidConfig: a value out of range.
            TypeError: a value is not a number.
        """
        names = {f"eta_{kind.short_name}_s": kind for kind in Kind}
        baselines = {kind: changed[name] for name, kind in names.items() if name in changed}
        alpha = changed.get("eta_ema_alpha", changed.get("ema_alpha", self.alpha))
        min_samples = changed.get("eta_ema_min_samples", self.min_samples)
        for kind, seconds in baselines.items():
            if not (math.isfinite(seconds) and seconds > 0):
                name = f"eta_{kind.short_name}_s"
                raise InvalidConfig(f"{name} must be above 0.", field=name)
        if not 0 < alpha <= 1:
            raise InvalidConfig("eta_ema_alpha must be above 0 and at most 1.", field="alpha")
        if min_samples < 1:
            raise InvalidConfig("eta_ema_min_samples must be at least 1.", field="min_samples")
        self.baselines.update(baselines)
        self.alpha, self.min_samples = alpha, min_samples


def estimate_waits(
    free_in_s: Iterable[float], waiting: Sequence[Kind], eta: EtaTracker
) -> list[float | None]:
    """Seconds until each waiting session starts, in order.

    Args:
        free_in_s: for every slot that will ever serve, when it is free.
        waiting: kinds of the waiting sessions, from the head of the queue.

    Returns:
        One value per waiting session, rounded to 0.1 s; None for all when there is no slot.
    """
    heap = list(free_in_s)
    if not heap:
        return [None] * len(waiting)
    heapq.heapify(heap)
    waits: list[float | None] = []
    for kind in waiting:
        free = heap[0]
        waits.append(round(max(0.0, free), 1))
        heapq.heapreplace(heap, free + eta.eta(kind))
    return waits
