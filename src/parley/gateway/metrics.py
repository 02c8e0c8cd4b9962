"""Prometheus metrics: one registry, filled when it is read.

State that others own (queue, leases, workers) is read from them at the moment of scraping; only
what no other part counts is counted here.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from parley import __version__
from parley.gateway.log_sweep import LogSweep
from parley.gateway.queue import Queue
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.installation import build_id
from parley.protocol.control import STAGE_BUCKETS_MS, Durations, Heartbeat, RecordingState
from parley.protocol.kinds import Kind
from parley.protocol.values import InterruptionState
from parley.transport import Ended, Traffic

Resumed = Literal[
    "resumed", "unknown", "expired", "replaced", "gap", "lost", "not_yet_known", "unreachable"
]
"""Result for a client that returned: its session, or the reason for the refusal."""

RebuildOutcome = Literal["rebuilt", "lost"]

WAIT_BUCKETS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(STAGE_BUCKETS_MS) + 1))
    sum_ms: float = 0.0

    def add(self, durations: Durations) -> None:
        for index, count in enumerate(durations.counts[: len(self.counts)]):
            self.counts[index] += count
        self.sum_ms += durations.sum_ms


class Metrics:
    """Counters of the gateway, and the registry of everything it reports.

    Args:
        find_disk_free: bytes that are free where the data lies; may raise OSError.
        count_keys: keys that work.
        ended: connections that were ended for what they cost.
        count_kept: sessions whose client was cut off and may come back.
        is_in_doubt: whether another gateway may have become active.
    """

    def __init__(
        self,
        queue: Queue,
        worker_pool: WorkerPool,
        *,
        session_logs: LogSweep | None = None,
        find_disk_free: Callable[[], int] | None = None,
        count_keys: Callable[[], int] | None = None,
        ended: Mapping[Ended, int] | None = None,
        count_kept: Callable[[], int] = lambda: 0,
        is_in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self._queue = queue
        self._worker_pool = worker_pool
        self.session_logs = session_logs
        self._rebuilt: Tally[RebuildOutcome] = Tally()
        self.up = Traffic()
        """From clients to workers."""
        self.down = Traffic()
        """From workers to clients."""
        self.loop_lag_s = 0.0
        self.loop_lag_worst_s = 0.0
        self._stages: dict[str, _Histogram] = {}
        self._answers: dict[str, _Histogram] = {}
        self._errors: Tally[tuple[str, str]] = Tally()
        self.recording_lost = 0
        """Recording entries that workers could not write."""
        self._sessions: Tally[Kind] = Tally()
        self._tokens: Tally[Kind] = Tally()
        self._cuts = 0
        self._resumptions: Tally[Resumed] = Tally()
        self._interruptions: Tally[str] = Tally()
        self._find_disk_free = find_disk_free
        self._count_keys = count_keys
        self._ended = {} if ended is None else ended
        self._count_kept = count_kept
        self._is_in_doubt = is_in_doubt
        self.registry = CollectorRegistry(auto_describe=False)
        self._waits = Histogram(
            "parley_queue_wait_seconds",
            "From a client's arrival to its slot.",
            ["mode"],
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        for kind in Kind:
            self._waits.labels(kind)
        Info("parley_build", "This server.", registry=self.registry).info(
            {"version": __version__, "build": build_id(), "python": platform.python_version()}
        )
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)
        worker_pool.spent.listen(self._spent)

    def error(self, code: str, *, source: str = "gateway") -> None:
        """An error was sent to a client."""
        self._errors[code, source] += 1

    def session(self, kind: Kind, waited_s: float) -> None:
        self._sessions[kind] += 1
        self._waits.labels(kind).observe(waited_s)

    def cut(self) -> None:
        """A connection broke; its session waits for the client."""
        self._cuts += 1

    def resumption(self, result: Resumed) -> None:
        """A client resumed its session, or was refused."""
        self._resumptions[result] += 1

    def _spent(self, lease: Lease, tokens: int) -> None:
        self._tokens[lease.kind] += tokens

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Add a worker's counts since its last heartbeat."""
        for stage, durations in heartbeat.stages.items():
            if stage in self._stages or len(self._stages) < 64:
                self._stages.setdefault(stage, _Histogram()).add(durations)
        for kind, durations in heartbeat.answers.items():
            self._answers.setdefault(kind, _Histogram()).add(durations)
        for code, count in heartbeat.errors.items():
            self._errors[code[:64], "worker"] += count
        for state, count in heartbeat.interruptions.items():
            self._interruptions[state] += count
        self.recording_lost += heartbeat.recording_lost

    def rebuilt(self, outcome: RebuildOutcome) -> None:
        """A session of a lost worker continues at another one, or is lost."""
        self._rebuilt[outcome] += 1

    def lag(self, seconds: float) -> None:
        """Record how late the event loop woke up."""
        self.loop_lag_s = seconds
        self.loop_lag_worst_s = max(self.loop_lag_worst_s, seconds)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _log_metrics(self) -> Iterable[Metric]:
        logged = self.session_logs
        if logged is None:
            return
        yield GaugeMetricFamily(
            "parley_session_logs",
            "Sessions that another worker could continue.",
            value=logged.count,
        )
        yield GaugeMetricFamily(
            "parley_session_log_bytes", "Size of their logs.", value=logged.size_bytes
        )
        yield CounterMetricFamily(
            "parley_session_logs_dropped",
            "Logs dropped because all of them together were too large.",
            value=logged.dropped,
        )
        rebuilt = CounterMetricFamily(
            "parley_sessions_rebuilt", "Sessions of lost workers.", labels=["outcome"]
        )
        for outcome in get_args(RebuildOutcome):
            rebuilt.add_metric([outcome], self._rebuilt[outcome])
        yield rebuilt

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        yield GaugeMetricFamily("parley_queue_length", "Tickets waiting.", value=len(self._queue))
        yield GaugeMetricFamily("parley_queue_limit", "Places.", value=self._queue.limit)
        yield from self._log_metrics()
        leases = self._worker_pool.leases
        yield GaugeMetricFamily("parley_leases", "Slots given out.", value=len(leases))
        running = GaugeMetricFamily("parley_sessions", "Running sessions.", labels=["mode"])
        started = CounterMetricFamily("parley_sessions_begun", "Sessions so far.", labels=["mode"])
        tokens = CounterMetricFamily(
            "parley_generated_tokens", "Text and speech, as workers report it.", labels=["mode"]
        )
        tally = Tally(lease.kind for lease in leases)
        for kind in Kind:
            running.add_metric([kind], tally[kind])
            started.add_metric([kind], self._sessions[kind])
            tokens.add_metric([kind], self._tokens[kind])
        yield from (running, started, tokens)
        yield from self._of_connections()
        workers = GaugeMetricFamily("parley_workers", "Workers by state.", labels=["state"])
        for state, count in Tally(worker.view for worker in self._worker_pool).items():
            workers.add_metric([state], count)
        yield workers
        yield GaugeMetricFamily(
            "parley_workers_without_device",
            "Workers that a cluster has no place for yet.",
            value=len(self._worker_pool.waiting),
        )
        yield from self._by_worker()
        slots = GaugeMetricFamily("parley_slots", "Slots of usable workers.", labels=["state"])
        usable = [worker for worker in self._worker_pool if worker.is_usable]
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
        errors = CounterMetricFamily("parley_errors", "Errors sent.", labels=["code", "source"])
        for (code, source), count in self._errors.items():
            errors.add_metric([code, source], count)
        yield errors
        yield CounterMetricFamily(
            "parley_recording_lost_entries",
            "Entries of recordings that could not be written.",
            value=self.recording_lost,
        )
        recording = GaugeMetricFamily(
            "parley_recording_workers", "Workers by how they record.", labels=["state"]
        )
        states = Tally(w.heartbeat.recording for w in self._worker_pool if w.heartbeat is not None)
        for each in get_args(RecordingState):
            recording.add_metric([each], states[each])
        yield recording
        yield GaugeMetricFamily(
            "parley_loop_lag_seconds", "Lateness of the event loop.", value=self.loop_lag_s
        )
        yield GaugeMetricFamily(
            "parley_loop_lag_worst_seconds", "Worst since start.", value=self.loop_lag_worst_s
        )
        yield from self._of_this_host()
        yield _times("parley_unit_stage_seconds", "Time per unit by stage.", "stage", self._stages)
        yield _times(
            "parley_answer_seconds",
            "From a unit to its result, or from a request to the first piece of the answer.",
            "mode",
            self._answers,
        )

    def _of_connections(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "parley_sessions_kept",
            "Sessions whose client was cut off and may come back.",
            value=self._count_kept(),
        )
        yield CounterMetricFamily(
            "parley_connection_cuts", "Clients cut off whose session waited.", value=self._cuts
        )
        ended = CounterMetricFamily(
            "parley_connections_ended",
            "Client connections that were ended for what they cost, by reason.",
            labels=["reason"],
        )
        for why in get_args(Ended):
            ended.add_metric([why], self._ended.get(why, 0))
        yield ended
        resumptions = CounterMetricFamily(
            "parley_resumptions", "Clients that came back, by what they got.", labels=["result"]
        )
        for result in get_args(Resumed):
            resumptions.add_metric([result], self._resumptions[result])
        yield resumptions
        interruptions = CounterMetricFamily(
            "parley_interruptions",
            "Users who spoke while the assistant did, by result.",
            labels=["state"],
        )
        for state in get_args(InterruptionState):
            interruptions.add_metric([state], self._interruptions[state])
        yield interruptions

    def _by_worker(self) -> Iterable[Metric]:
        labels = ["worker", "device"]
        up = GaugeMetricFamily("parley_worker_up", "Whether it can serve.", labels=labels)
        slots = GaugeMetricFamily("parley_worker_slots", "Its slots.", labels=labels)
        held = GaugeMetricFamily("parley_worker_leases", "Its sessions.", labels=labels)
        requests = CounterMetricFamily(
            "parley_worker_sessions", "Sessions since its start.", labels=labels
        )
        context = GaugeMetricFamily(
            "parley_worker_context_tokens", "Tokens in its contexts.", labels=labels
        )
        memory = GaugeMetricFamily(
            "parley_worker_device_memory_bytes",
            "Of its whole GPU, other processes included.",
            labels=[*labels, "state"],
        )
        pages = GaugeMetricFamily(
            "parley_worker_context_pages",
            "Pages of the memory that its contexts share.",
            labels=[*labels, "state"],
        )
        fast = GaugeMetricFamily(
            "parley_fast_path",
            "1 for the state that a fast part of the model is in: fast, plain or refused.",
            labels=[*labels, "part", "state"],
        )
        waiting = GaugeMetricFamily(
            "parley_recordings_waiting", "Recordings to come from other hosts.", labels=["worker"]
        )
        for worker in self._worker_pool:
            who = [worker.worker_id, worker.hello.device]
            up.add_metric(who, float(worker.is_usable))
            slots.add_metric(who, worker.slots)
            held.add_metric(who, len(worker.leases))
            heartbeat = worker.heartbeat
            if heartbeat is None:
                continue
            requests.add_metric(who, heartbeat.total_requests)
            context.add_metric(who, heartbeat.kv_cache_length)
            if heartbeat.device_memory is not None:
                used, total = (
                    heartbeat.device_memory.used_bytes,
                    heartbeat.device_memory.total_bytes,
                )
                memory.add_metric([*who, "used"], used)
                memory.add_metric([*who, "free"], total - used)
            if heartbeat.context_pages is not None:
                pages.add_metric([*who, "used"], heartbeat.context_pages.used)
                pages.add_metric([*who, "free"], heartbeat.context_pages.free)
            if heartbeat.recordings_waiting is not None:
                waiting.add_metric([worker.worker_id], heartbeat.recordings_waiting)
            for part, words in heartbeat.fast_paths.items():
                fast.add_metric([*who, part[:64], words.partition(":")[0][:16]], 1)
        yield from (up, slots, held, requests, context, memory, pages, fast, waiting)

    def _of_this_host(self) -> Iterable[Metric]:
        if self._find_disk_free is not None:
            with contextlib.suppress(OSError):
                yield GaugeMetricFamily(
                    "parley_disk_free_bytes", "Where data lies.", value=self._find_disk_free()
                )
        yield GaugeMetricFamily("parley_gateway_active", "0: it stands by.", value=1)
        yield GaugeMetricFamily(
            "parley_leadership_in_doubt",
            "1: another gateway may have become active, so no slot is given out.",
            value=float(self._is_in_doubt()),
        )
        if self._count_keys is not None:
            yield GaugeMetricFamily("parley_keys", "Keys that work.", value=self._count_keys())


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
