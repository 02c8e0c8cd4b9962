"""What an operator's monitoring sees: one registry, filled when it is read.

State that others own (queue, leases, workers) is read from them at the moment of scraping; only
what nobody else counts is counted here.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
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
from parley.protocol.control import STAGE_BUCKETS_MS, Beat, TaskType


@dataclass(slots=True)
class _Stage:
    counts: list[int] = field(default_factory=lambda: [0] * (len(STAGE_BUCKETS_MS) + 1))
    sum_ms: float = 0.0

    def add(self, counts: Sequence[int], sum_ms: float) -> None:
        for index, count in enumerate(counts[: len(self.counts)]):
            self.counts[index] += count
        self.sum_ms += sum_ms


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
        self._stages: dict[str, _Stage] = {}
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
        for name, counts in beat.stages.items():
            if name not in self._stages and len(self._stages) >= 64:
                continue
            stage = self._stages.setdefault(name, _Stage())
            stage.add(counts, beat.stage_sums_ms.get(name, 0.0))
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
        yield self._stage_times()

    def _stage_times(self) -> Metric:
        times = HistogramMetricFamily(
            "parley_unit_stage_seconds", "Time per unit by stage.", labels=["stage"]
        )
        for name, stage in self._stages.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            bounds = [f"{bound / 1000:g}" for bound in STAGE_BUCKETS_MS] + ["+Inf"]
            for bound, count in zip(bounds, stage.counts, strict=True):
                total += count
                buckets.append((bound, total))
            times.add_metric([name], buckets, sum_value=stage.sum_ms / 1000)
        return times
