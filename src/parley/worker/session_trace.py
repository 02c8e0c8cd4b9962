"""Trace spans of a session in the worker: units with their stages, answers, the end.

A unit's span lasts from the receipt of its audio to its result. It is divided into the wait (for
the previous unit and for the engine) and the model's stages, in order.
"""

from __future__ import annotations

import time
from typing import Final

from parley.dialects.events import (
    AnswerDone,
    ChatRequested,
    OutputDelta,
    SessionEnded,
    SessionReady,
    TurnCompleted,
    TurnStarted,
    UnitDone,
)
from parley.session_log.entries import Observed
from parley.tracing import OFF, TraceSpan, Tracing
from parley.worker.lease import LeasedSlot

STAGES: Final = {"prefill": "encode", "llm": "llm", "tts": "tts", "token2wav": "token2wav"}
"""Names of spans, and of the costs that they show (fields of `UnitResult`)."""
NS_OF_MS: Final = 1_000_000


class SessionTrace:
    def __init__(self, tracing: Tracing, lease: LeasedSlot, worker_id: str) -> None:
        self._session = tracing.begin_session(
            {
                "parley.session_id": lease.session_id,
                "parley.dialect": lease.dialect,
                "parley.kind": lease.kind.value,
                "parley.worker": worker_id,
            },
            parent=lease.trace,
        )
        self._setup = self._session.begin("setup")
        self._answer: TraceSpan = OFF
        self._first: TraceSpan = OFF

    def observe(self, event: Observed, at_s: float) -> None:
        del at_s
        match event:
            case SessionReady():
                self._setup.end()
            case UnitDone():
                self._unit(event)
            case TurnStarted() | ChatRequested():
                self._setup.end()
                self._answer = self._session.begin("answer")
                self._first = self._answer.begin("to first piece")
            case OutputDelta():
                self._first.end()
            case AnswerDone() | TurnCompleted():
                self._first.end()
                self._answer.end()
            case SessionEnded():
                for span in (self._setup, self._first, self._answer):
                    span.end()
                self._session.note({"parley.end": event.reason})
                self._session.end()
            case _:
                return

    def _unit(self, done: UnitDone) -> None:
        end = time.time_ns()
        begin = end - round(done.wall_ms * NS_OF_MS)
        unit = self._session.add(
            "unit",
            begin,
            end,
            {"parley.unit": done.index, "parley.listens": done.result.is_listen},
        )
        costs = {name: getattr(done.result, f"cost_{of}_ms") for name, of in STAGES.items()}
        rest_ms = max(0.0, done.result.cost_all_ms - sum(costs.values()))
        wait_ms = max(0.0, done.wall_ms - sum(costs.values()) - rest_ms)
        at = begin
        for name, ms in (("wait", wait_ms), *costs.items(), ("other", rest_ms)):
            if ms > 0:
                until = min(end, at + round(ms * NS_OF_MS))
                unit.add(name, at, until)
                at = until
