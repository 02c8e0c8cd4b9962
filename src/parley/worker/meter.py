"""Counts the work of a worker, for its heartbeats and its health page. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    Failed,
    InterruptionChanged,
    OutputDelta,
    SessionEnded,
    SessionInterrupted,
    SilenceExplained,
    TurnCompleted,
    TurnStarted,
    UnitDone,
)
from parley.errors import InferenceFailed
from parley.protocol.control import STAGE_BUCKETS_MS, Durations
from parley.protocol.kinds import Kind
from parley.protocol.values import InterruptionState, SilenceReason
from parley.session_log.entries import Observed, TokensGenerated

SMOOTHING = 0.1
"""Weight of the newest unit in the average."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts since the last heartbeat: times by stage and kind, errors by code, interruptions and
    explained silences."""

    stages: dict[str, Durations]
    answers: dict[Kind, Durations]
    errors: dict[str, int]
    interruptions: dict[InterruptionState, int]
    silences: dict[SilenceReason, int]


@dataclass(slots=True)
class _Tally:
    counts: list[int] = field(default_factory=lambda: [0] * (len(STAGE_BUCKETS_MS) + 1))
    sum_ms: float = 0.0

    def add(self, durations_ms: Iterable[float]) -> None:
        for duration_ms in durations_ms:
            self.counts[bisect_left(STAGE_BUCKETS_MS, duration_ms)] += 1
            self.sum_ms += duration_ms

    @property
    def durations(self) -> Durations:
        return Durations(tuple(self.counts), round(self.sum_ms, 3))


class WorkerMeter:
    """Counts of all sessions of a worker. `take` returns those since the previous call."""

    def __init__(self) -> None:
        self.total_requests = 0
        self.avg_inference_ms = 0.0
        self._stages: dict[str, _Tally] = defaultdict(_Tally)
        self._answers: dict[Kind, _Tally] = defaultdict(_Tally)
        self.errors: Counter[str] = Counter()
        self.interruptions: Counter[InterruptionState] = Counter()
        """Speech of users during answers."""
        self.silences: Counter[SilenceReason] = Counter()

    def add(self, stage: str, durations_ms: Iterable[float]) -> None:
        self._stages[stage].add(durations_ms)

    def add_answer(self, kind: Kind, stage: str, duration_ms: float) -> None:
        """Count one answer: a unit, or the time from a request to the first piece."""
        for tally in (self._stages[stage], self._answers[kind]):
            tally.add([duration_ms])
        if self.avg_inference_ms:
            self.avg_inference_ms += SMOOTHING * (duration_ms - self.avg_inference_ms)
        else:
            self.avg_inference_ms = duration_ms

    def take(self) -> Counted:
        """The counts since the previous call."""
        counted = Counted(
            {stage: tally.durations for stage, tally in self._stages.items()},
            {kind: tally.durations for kind, tally in self._answers.items()},
            dict(self.errors),
            dict(self.interruptions),
            dict(self.silences),
        )
        self._stages.clear()
        self._answers.clear()
        self.errors.clear()
        self.interruptions.clear()
        self.silences.clear()
        return counted


class SessionMeter:
    """One session's observer: units, times to the first piece, errors."""

    def __init__(self, meter: WorkerMeter, kind: Kind) -> None:
        self._meter = meter
        self._kind = kind
        self._asked_s: float | None = None
        self.tokens = 0
        """Number of tokens generated so far, text and speech."""

    def observe(self, event: Observed, at_s: float) -> None:
        if isinstance(event, AnswerDone):
            self.tokens += event.generated_tokens + event.speech_tokens
        match event:
            case UnitDone():
                self.tokens += event.result.text_tokens + event.result.speech_tokens
                self._meter.add_answer(self._kind, "unit", event.wall_ms)
            case TokensGenerated(tokens):
                self.tokens += tokens
            case TurnStarted() | ChatRequested():
                self._asked_s = at_s
            case OutputDelta() | AnswerDone() if self._asked_s is not None:
                first_ms = 1000 * (at_s - self._asked_s)
                self._asked_s = None
                self._meter.add_answer(self._kind, "first_piece", first_ms)
            case Failed() | SessionEnded() if event.error is not None:
                self._meter.errors[event.error.code] += 1
            case InterruptionChanged(state=state):
                self._meter.interruptions[state] += 1
            case SessionInterrupted():
                # The client determined it.
                self._meter.interruptions["stopped"] += 1
            case SilenceExplained(reason=reason):
                self._meter.silences[reason] += 1
            case TurnCompleted(has_failed=True):
                self._meter.errors[InferenceFailed.code] += 1
            case _:
                # All other events take no time of the model.
                return
