"""Counts the work of a worker, for its heartbeats and its health page. Pure."""

from __future__ import annotations

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
from parley.protocol.control import Durations
from parley.protocol.kinds import Kind
from parley.protocol.values import InterruptionState, SilenceReason
from parley.session_log.entries import Observed, TokensGenerated

SMOOTHING = 0.1
"""Weight of the newest unit in the average."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Times by stage and kind, errors by code, speech of users during answers, and explained
    silences."""

    stages: dict[str, Durations] = field(default_factory=lambda: defaultdict(Durations))
    answers: dict[Kind, Durations] = field(default_factory=lambda: defaultdict(Durations))
    errors: Counter[str] = field(default_factory=Counter)
    interruptions: Counter[InterruptionState] = field(default_factory=Counter)
    silences: Counter[SilenceReason] = field(default_factory=Counter)


class WorkerMeter:
    """Counts of all sessions of a worker since the last heartbeat."""

    def __init__(self) -> None:
        self.total_requests = 0
        self.avg_inference_ms = 0.0
        self.counts = Counts()

    def add(self, stage: str, durations_ms: Iterable[float]) -> None:
        self.counts.stages[stage].count(durations_ms)

    def add_answer(self, kind: Kind, stage: str, duration_ms: float) -> None:
        """Count one answer: a unit, or the time from a request to the first piece."""
        for durations in (self.counts.stages[stage], self.counts.answers[kind]):
            durations.count([duration_ms])
        if self.avg_inference_ms:
            self.avg_inference_ms += SMOOTHING * (duration_ms - self.avg_inference_ms)
        else:
            self.avg_inference_ms = duration_ms

    def take(self) -> Counts:
        """The counts since the previous call."""
        taken, self.counts = self.counts, Counts()
        return taken


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
                self._meter.counts.errors[event.error.code] += 1
            case InterruptionChanged(state=state):
                self._meter.counts.interruptions[state] += 1
            case SessionInterrupted():
                # The client determined it.
                self._meter.counts.interruptions["stopped"] += 1
            case SilenceExplained(reason=reason):
                self._meter.counts.silences[reason] += 1
            case TurnCompleted(has_failed=True):
                self._meter.counts.errors[InferenceFailed.code] += 1
            case _:
                # All other events take no time of the model.
                return
