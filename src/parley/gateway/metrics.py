"""What an operator's monitoring sees: one registry, filled when it is read.

State that others own (queue, leases, workers) is read from them at the moment of scraping; only
what nobody else counts is counted here.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from parley.gateway.fleet import Fleet
from parley.gateway.port import Traffic
from parley.gateway.queue import Queue
from parley.protocol.control import STAGE_BUCKETS_MS, Beat, Durations, TaskType


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(STAGE_BUCKETS_MS) + 1))
    sum_ms: float = 0.0

    def add(self, durations: Durations) -> None:
        for index, count in enumerate(durations.counts[: len(self.counts)]):
            self.counts[index] += count
        self.sum_ms += durations.sum_ms


class Metrics:
    """Counters of the gateway, and the registry of everything it tells."""

    def __init__(self, queue: Queue, fleet: Fleet) -> None:
        self._queue = queue
        self._fleet = fleet
        self.up = Traffic()
        """Clients to workers."""
        self.down = Traffic()
        """Workers to clients."""
        self.loop_lag_s = 0.0
        self.loop_lag_worst_s = 0.0
        self._stages: dict[str, _Histogram] = {}
        self._answers: dict[str, _Histogram] = {}
        self._errors: Tally[tuple[str, str]] = Tally()
        self._sessions: Tally[TaskType] = Tally()
        self._waits_s = 0.0
        self._waits = 0
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def error(self, code: str, *, source: str = "gateway") -> None:
        """An error was told to someone."""
        self._errors[code, source] += 1

    def session(self, task: TaskType, waited_s: float) -> None:
        """A session began."""
        self._sessions[task] += 1
        self._waits += 1
        self._waits_s += waited_s

    def beat(self, beat: Beat) -> None:
        """What a worker counted since its last beat."""
        for stage, durations in beat.stages.items():
            if stage in self._stages or len(self._stages) < 64:
                self._stages.setdefault(stage, _Histogram()).add(durations)
        for task, durations in beat.answers.items():
            self._answers.setdefault(task, _Histogram()).add(durations)
        for code, count in beat.errors.items():
            self._errors[code[:64], "worker"] += count

    def lag(self, seconds: float) -> None:
        """How late the event loop woke up."""
        self.loop_lag_s = seconds
        self.loop_lag_worst_s = max(self.loop_lag_worst_s, seconds)

    def page(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        yield GaugeMetricFamily("parley_queue_length", "Tickets waiting.", value=len(self._queue))
        yield GaugeMetricFamily("parley_queue_limit", "Places.", value=self._queue.limit)
        leases = self._fleet.leases
        yield GaugeMetricFamily("parley_leases", "Slots given out.", value=len(leases))
        running = GaugeMetricFamily("parley_sessions", "Running sessions.", labels=["mode"])
        begun = CounterMetricFamily("parley_sessions_begun", "Sessions so far.", labels=["mode"])
        tally = Tally(lease.task for lease in leases)
        for task in ("chat", "half_duplex_audio", "audio_duplex", "omni_duplex"):
            running.add_metric([task], tally[task])
            begun.add_metric([task], self._sessions[task])
        yield running
        yield begun
        yield CounterMetricFamily(
            "parley_queue_wait_seconds", "Waited by all sessions.", value=self._waits_s
        )
        workers = GaugeMetricFamily("parley_workers", "Workers by state.", labels=["state"])
        for state, count in Tally(worker.view for worker in self._fleet).items():
            workers.add_metric([state], count)
        yield workers
        slots = GaugeMetricFamily("parley_slots", "Slots of usable workers.", labels=["state"])
        usable = [worker for worker in self._fleet if worker.is_usable]
        slots.add_metric(["all"], sum(worker.slots for worker in usable))
        slots.add_metric(["free"], sum(worker.free_slots for worker in usable))
        yield slots
        relayed = CounterMetricFamily("parley_relay_bytes", "Passed on.", labels=["direction"])
        passed = CounterMetricFamily("parley_relay_messages", "Passed on.", labels=["direction"])
        for direction, traffic in (("up", self.up), ("down", self.down)):
            relayed.add_metric([direction], traffic.bytes)
            passed.add_metric([direction], traffic.messages)
        yield relayed
        yield passed
        errors = CounterMetricFamily("parley_errors", "Errors told.", labels=["code", "source"])
        for (code, source), count in self._errors.items():
            errors.add_metric([code, source], count)
        yield errors
        yield GaugeMetricFamily(
            "parley_loop_lag_seconds", "Lateness of the event loop.", value=self.loop_lag_s
        )
        yield GaugeMetricFamily(
            "parley_loop_lag_worst_seconds", "Worst since start.", value=self.loop_lag_worst_s
        )
        yield _times("parley_unit_stage_seconds", "Time per unit by stage.", "stage", self._stages)
        yield _times(
            "parley_answer_seconds",
            "From a unit to its result, or from a request to the first piece of the answer.",
            "mode",
            self._answers,
        )


def _times(name: str, help: str, label: str, histograms: Mapping[str, _Histogram]) -> Metric:
    times = HistogramMetricFamily(name, help, labels=[label])
    bounds = [f"{bound / 1000:g}" for bound in STAGE_BUCKETS_MS] + ["+Inf"]
    for value, histogram in histograms.items():
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            buckets.append((bound, total))
        times.add_metric([value], buckets, sum_value=histogram.sum_ms / 1000)
    return times
