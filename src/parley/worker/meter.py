"""Counts what a worker does, for its beats and its health page. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable

from parley.errors import InferenceFailed
from parley.protocol.control import STAGE_BUCKETS_MS
from parley.session.events import (
    Answered,
    ChatAsked,
    Ended,
    Event,
    Failed,
    Said,
    TurnBegan,
    TurnDone,
    UnitDone,
)

SMOOTHING = 0.1
"""Weight of the newest unit in the average."""


class Meter:
    """Numbers of all sessions of a worker. `take` gives what came since the last call."""

    def __init__(self) -> None:
        self.total_requests = 0
        self.avg_inference_ms = 0.0
        self._buckets: dict[str, list[int]] = defaultdict(_no_counts)
        self._sums_ms: dict[str, float] = defaultdict(float)
        self._errors: Counter[str] = Counter()

    def count_request(self) -> None:
        """A session was accepted."""
        self.total_requests += 1

    def count_error(self, code: str) -> None:
        """Something failed."""
        self._errors[code] += 1

    def add(self, stage: str, durations_ms: Iterable[float]) -> None:
        """Durations of a stage."""
        buckets = self._buckets[stage]
        for duration_ms in durations_ms:
            buckets[bisect_left(STAGE_BUCKETS_MS, duration_ms)] += 1
            self._sums_ms[stage] += duration_ms

    def add_inference(self, duration_ms: float) -> None:
        """One answer: a unit, or from a request to the first piece."""
        if self.avg_inference_ms:
            self.avg_inference_ms += SMOOTHING * (duration_ms - self.avg_inference_ms)
        else:
            self.avg_inference_ms = duration_ms

    def take(self) -> tuple[dict[str, tuple[int, ...]], dict[str, float], dict[str, int]]:
        """Buckets and sums per stage and errors by code since the last call."""
        taken = (
            {stage: tuple(counts) for stage, counts in self._buckets.items()},
            {stage: round(total, 3) for stage, total in self._sums_ms.items()},
            dict(self._errors),
        )
        self._buckets.clear()
        self._sums_ms.clear()
        self._errors.clear()
        return taken


class SessionMeter:
    """One session's observer: units, times to the first piece, errors."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._asked_s: float | None = None

    def observe(self, event: Event, at_s: float) -> None:
        """See `Observer`."""
        match event:
            case UnitDone():
                self._meter.add("unit", [event.wall_ms])
                self._meter.add_inference(event.wall_ms)
            case TurnBegan() | ChatAsked():
                self._asked_s = at_s
            case Said() | Answered() if self._asked_s is not None:
                first_ms = 1000 * (at_s - self._asked_s)
                self._asked_s = None
                self._meter.add("first_piece", [first_ms])
                self._meter.add_inference(first_ms)
            case Failed() | Ended() if event.error is not None:
                self._meter.count_error(event.error.code)
            case TurnDone(has_failed=True):
                self._meter.count_error(InferenceFailed.code)
            case _:
                # Everything else takes no time of the model.
                return


def _no_counts() -> list[int]:
    return [0] * (len(STAGE_BUCKETS_MS) + 1)
