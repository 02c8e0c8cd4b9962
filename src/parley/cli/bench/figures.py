"""Durations summed up for people: median, 99th percentile, largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one measured quantity, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, durations_ms: Sequence[float]) -> Figures:
        """All zero when nothing was measured."""
        if not durations_ms:
            return cls(0, 0.0, 0.0, 0.0)
        ordered = sorted(durations_ms)
        return cls(len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.99), ordered[-1])

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, max {self.max_ms:.2f} ms"


def _rank(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: always one of the measured values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
