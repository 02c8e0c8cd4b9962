"""Summaries of durations: median, 95th and 99th percentile, largest; and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, durations_ms: Sequence[float]) -> Figures:
        if not durations_ms:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(durations_ms)
        p50, p95, p99 = (_rank(ordered, share) for share in (0.5, 0.95, 0.99))
        return cls(len(ordered), p50, p95, p99, ordered[-1])

    def __str__(self) -> str:
        if not self.count:
            return "none"
        return (
            f"p50 {self.p50_ms:.2f} ms, p95 {self.p95_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, "
            f"max {self.max_ms:.2f} ms"
        )


def _rank(ordered: Sequence[float], share: float) -> float:
    """Percentile by nearest rank, which is always a measured value."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def histogram(durations_ms: Sequence[float]) -> dict[str, int]:
    """Number of durations in each doubling: up to 1 ms, 2 ms, 4 ms and so on."""
    counts: dict[int, int] = {}
    for duration_ms in durations_ms:
        edge = 1
        while duration_ms > edge:
            edge *= 2
        counts[edge] = counts.get(edge, 0) + 1
    return {f"{edge} ms": counts[edge] for edge in sorted(counts)}


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def drawn(counts: Mapping[str, int]) -> str:
    return "  ".join(f"≤{edge}: {count}" for edge, count in counts.items())
