"""Prometheus metrics: one registry, filled when it is read.

State that other parts own (queue, leases, workers) is read from them when the metrics are scraped;
this module counts only what no other part counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

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
from prometheus_client.registry import Collector

from parley import __version__
from parley.gateway.authenticator import Authenticator
from parley.gateway.log_sweep import LogSweep
from parley.gateway.rebuilding import RebuildOutcome
from parley.gateway.sessions import Sessions
from parley.gateway.worker_pool import Lease
from parley.installation import build_id
from parley.protocol.control import STAGE_BUCKETS_MS, Durations, Heartbeat, RecordingState
from parley.protocol.kinds import Kind
from parley.protocol.values import InterruptionState, SilenceReason
from parley.recording.layout import free_bytes
from parley.transport import Ended, OpenConnections, Traffic

Resumed = Literal[
    "resumed", "unknown", "expired", "replaced", "gap", "lost", "not_yet_known", "unreachable"
]
"""Result for a client that returned: its session, or the reason for the refusal."""

Values = float | Mapping[Any, float]
"""Values of a metric: the only one, or one for each value of its label or combination of its
labels."""
K = TypeVar("K")

LOOK_EVERY_S: Final = 60.0
LOOKS_KEPT: Final = 60
DRAWN: Final = {
    "parley_sessions": "parley_sessions",
    "parley_slots": "parley_slots",
    "parley_queue_length": "parley_queue_length",
    "parley_relay_bytes": "parley_relay_bytes_total",
    "parley_errors": "parley_errors_total",
    "parley_answer_seconds": "parley_answer_seconds_bucket",
}
"""The metrics that the operator's page plots for the last hour, for servers without a monitoring
system: names of families, and of their samples that are plotted."""

WAIT_BUCKETS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)


class Look(NamedTuple):
    """The plotted metrics at one time, in Prometheus' text format."""

    at_s: float
    """Unix time."""
    text: str


@dataclass(kw_only=True, eq=False, repr=False)
class Metrics:
    """Counters of the gateway, and the registry of all metrics that it reports.

    Args:
        data_dir: the free space of its disk is reported.
    """

    authenticator: Authenticator
    open_connections: OpenConnections
    sessions: Sessions
    session_logs: LogSweep
    data_dir: Path

    def __post_init__(self) -> None:
        self._dispatcher = self.sessions.dispatcher
        self.up = Traffic()
        """From clients to workers."""
        self.down = Traffic()
        """From workers to clients."""
        self.loop_lag_s = 0.0
        self.loop_lag_worst_s = 0.0
        self._stages: dict[str, Durations] = {}
        self._answers: dict[str, Durations] = {}
        self._errors: Tally[tuple[str, str]] = Tally()
        self.recording_lost = 0
        """Number of recording entries that workers could not write."""
        self._started: Tally[Kind] = Tally()
        self._tokens: Tally[Kind] = Tally()
        self._cuts = 0
        self._resumptions: Tally[Resumed] = Tally()
        self._interruptions: Tally[str] = Tally()
        self._silences: Tally[str] = Tally()
        self.looks: deque[Look] = deque(maxlen=LOOKS_KEPT)
        """Oldest first."""
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
        self._dispatcher.worker_pool.spent.listen(self._spent)

    def error(self, code: str, *, source: str = "gateway") -> None:
        self._errors[code, source] += 1

    def session(self, kind: Kind, waited_s: float) -> None:
        self._started[kind] += 1
        self._waits.labels(kind).observe(waited_s)

    def cut(self) -> None:
        """A connection broke; its session waits for the client."""
        self._cuts += 1

    def resumption(self, result: Resumed) -> None:
        self._resumptions[result] += 1

    def _spent(self, lease: Lease, tokens: int) -> None:
        self._tokens[lease.kind] += tokens

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Add the counts of a worker since its last heartbeat."""
        for stage, durations in heartbeat.stages.items():
            if stage in self._stages or len(self._stages) < 64:
                self._stages.setdefault(stage, Durations()).add(durations)
        for kind, durations in heartbeat.answers.items():
            self._answers.setdefault(kind, Durations()).add(durations)
        for code, count in heartbeat.errors.items():
            self._errors[code[:64], "worker"] += count
        for state, count in heartbeat.interruptions.items():
            self._interruptions[state] += count
        for reason, count in heartbeat.silences.items():
            self._silences[reason] += count
        self.recording_lost += heartbeat.recording_lost

    @property
    def sessions_without_log(self) -> int:
        beats = (worker.heartbeat for worker in self._dispatcher.worker_pool)
        return sum(beat.sessions_without_log for beat in beats if beat is not None)

    def lag(self, seconds: float) -> None:
        self.loop_lag_s = seconds
        self.loop_lag_worst_s = max(self.loop_lag_worst_s, seconds)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def look(self) -> None:
        """Add a sample to those of the last hour."""
        lines = generate_latest(_Drawn(self)).decode().splitlines()
        names = DRAWN.values()
        text = "\n".join(line for line in lines if line.partition("{")[0].split(" ")[0] in names)
        self.looks.append(Look(self._dispatcher.clock.time(), text))

    async def look_forever(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def collect(self) -> Iterable[Metric]:
        pool, queue = self._dispatcher.worker_pool, self._dispatcher.queue
        leases = pool.leases
        usable = [worker for worker in pool if worker.is_usable]
        running = Tally(lease.kind for lease in leases)
        recording = Tally(w.heartbeat.recording for w in pool if w.heartbeat is not None)
        passed = {"up": self.up, "down": self.down}
        slots = {
            "all": sum(worker.slots for worker in usable),
            "free": sum(worker.free_slots for worker in usable),
        }
        yield _gauge("parley_queue_length", "Tickets waiting.", len(queue))
        yield _gauge("parley_queue_limit", "Places.", queue.limit)
        yield _gauge("parley_leases", "Slots given out.", len(leases))
        yield _gauge("parley_sessions", "Running sessions.", _each(Kind, running), "mode")
        begun = _each(Kind, self._started)
        yield _counter("parley_sessions_begun", "Sessions so far.", begun, "mode")
        tokens, how = _each(Kind, self._tokens), "Text and speech, as workers report it."
        yield _counter("parley_generated_tokens", how, tokens, "mode")
        yield from self._of_logs()
        yield from self._of_connections()
        views = Tally("draining" if w.is_draining and w.view == "idle" else w.view for w in pool)
        yield _gauge("parley_workers", "Workers by state.", views, "state")
        yield _gauge(
            "parley_workers_without_device",
            "Workers that a cluster has no place for yet.",
            len(pool.waiting),
        )
        yield from self._by_worker()
        yield _gauge("parley_slots", "Slots of usable workers.", slots, "state")
        size = {way: traffic.bytes for way, traffic in passed.items()}
        yield _counter("parley_relay_bytes", "Passed on.", size, "direction")
        count = {way: traffic.messages for way, traffic in passed.items()}
        yield _counter("parley_relay_messages", "Passed on.", count, "direction")
        yield _counter("parley_errors", "Errors sent.", self._errors, "code", "source")
        yield _counter(
            "parley_recording_lost_entries",
            "Entries of recordings that could not be written.",
            self.recording_lost,
        )
        states = _each(get_args(RecordingState), recording)
        yield _gauge("parley_recording_workers", "Workers by how they record.", states, "state")
        yield from self._of_this_host()
        yield _times("parley_unit_stage_seconds", "Time per unit by stage.", "stage", self._stages)
        yield _times(
            "parley_answer_seconds",
            "From a unit to its result, or from a request to the first piece of the answer.",
            "mode",
            self._answers,
        )

    def _of_logs(self) -> Iterable[Metric]:
        logged = self.session_logs
        protected = "Sessions that another worker could continue."
        yield _gauge("parley_session_logs", protected, logged.count)
        yield _gauge("parley_session_log_bytes", "Size of their logs.", logged.size_bytes)
        without = "Sessions whose log cannot be written; they are lost with their worker."
        yield _gauge("parley_sessions_without_log", without, self.sessions_without_log)
        yield _counter(
            "parley_session_logs_dropped",
            "Logs dropped because all of them together were too large.",
            logged.dropped,
        )
        rebuilt = _each(get_args(RebuildOutcome), self.sessions.rebuilding.outcomes)
        yield _counter("parley_sessions_rebuilt", "Sessions of lost workers.", rebuilt, "outcome")

    def _of_connections(self) -> Iterable[Metric]:
        yield _gauge(
            "parley_sessions_kept",
            "Sessions whose client was cut off and may come back.",
            self.sessions.away,
        )
        cut = "Clients cut off whose session waited."
        yield _counter("parley_connection_cuts", cut, self._cuts)
        yield _counter(
            "parley_connections_ended",
            "Client connections that were ended for what they cost, by reason.",
            _each(get_args(Ended), self.open_connections.ended),
            "reason",
        )
        results = _each(get_args(Resumed), self._resumptions)
        got = "Clients that came back, by what they got."
        yield _counter("parley_resumptions", got, results, "result")
        states = _each(get_args(InterruptionState), self._interruptions)
        spoke = "Users who spoke while the assistant did, by result."
        yield _counter("parley_interruptions", spoke, states, "state")
        reasons = _each(get_args(SilenceReason), self._silences)
        why = "Reasons of silence that clients were sent."
        yield _counter("parley_silences", why, reasons, "reason")

    def _by_worker(self) -> Iterable[Metric]:
        who = "worker", "device"
        workers = {(one.worker_id, one.hello.device): one for one in self._dispatcher.worker_pool}
        beats = {key: one.heartbeat for key, one in workers.items() if one.heartbeat is not None}
        memory: dict[tuple[str, ...], float] = {}
        pages: dict[tuple[str, ...], float] = {}
        fast: dict[tuple[str, ...], float] = {}
        for key, beat in beats.items():
            if beat.device_memory is not None:
                used, total = beat.device_memory.used_bytes, beat.device_memory.total_bytes
                memory |= {(*key, "used"): used, (*key, "free"): total - used}
            if beat.context_pages is not None:
                pages[*key, "used"] = beat.context_pages.used
                pages[*key, "free"] = beat.context_pages.free
            for part, words in beat.fast_paths.items():
                fast[*key, part[:64], words.partition(":")[0][:16]] = 1
        up = {key: float(one.is_usable) for key, one in workers.items()}
        yield _gauge("parley_worker_up", "Whether it can serve.", up, *who)
        slots = {key: one.slots for key, one in workers.items()}
        yield _gauge("parley_worker_slots", "Its slots.", slots, *who)
        held = {key: len(one.leases) for key, one in workers.items()}
        yield _gauge("parley_worker_leases", "Its sessions.", held, *who)
        served = {key: beat.total_requests for key, beat in beats.items()}
        yield _counter("parley_worker_sessions", "Sessions since its start.", served, *who)
        tokens = {key: beat.kv_cache_length for key, beat in beats.items()}
        yield _gauge("parley_worker_context_tokens", "Tokens in its contexts.", tokens, *who)
        whole = "Of its whole GPU, other processes included."
        yield _gauge("parley_worker_device_memory_bytes", whole, memory, *who, "state")
        shared = "Pages of the memory that its contexts share."
        yield _gauge("parley_worker_context_pages", shared, pages, *who, "state")
        state = "1 for the state that a fast part of the model is in: fast, plain or refused."
        yield _gauge("parley_fast_path", state, fast, *who, "part", "state")
        waiting = {
            worker: beat.recordings_waiting
            for (worker, _), beat in beats.items()
            if beat.recordings_waiting is not None
        }
        to_come = "Recordings to come from other hosts."
        yield _gauge("parley_recordings_waiting", to_come, waiting, "worker")

    def _of_this_host(self) -> Iterable[Metric]:
        late, worst = self.loop_lag_s, self.loop_lag_worst_s
        yield _gauge("parley_loop_lag_seconds", "Lateness of the event loop.", late)
        yield _gauge("parley_loop_lag_worst_seconds", "Worst since start.", worst)
        with contextlib.suppress(OSError):
            free = free_bytes(self.data_dir)
            yield _gauge("parley_disk_free_bytes", "Where data lies.", free)
        yield _gauge("parley_gateway_active", "0: it stands by.", 1)
        yield _gauge(
            "parley_leadership_in_doubt",
            "1: another gateway may have become active, so no slot is given out.",
            float(self._dispatcher.is_paused),
        )
        yield _gauge("parley_keys", "Keys that work.", self.authenticator.keys)


@dataclass(frozen=True)
class _Drawn(Collector):
    """The plotted metrics only: writing all of them takes nine times as long."""

    metrics: Metrics

    def collect(self) -> Iterable[Metric]:
        return (family for family in self.metrics.collect() if family.name in DRAWN)


def _each(keys: Iterable[K], counts: Mapping[K, int]) -> dict[K, int]:
    """The counts of all keys, including those at zero."""
    return {key: counts.get(key, 0) for key in keys}


def _gauge(name: str, help: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, help, labels=labels), values)


def _counter(name: str, help: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, help, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    """A metric family with one value, or with one for each combination of its labels."""
    for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family


def _times(name: str, help: str, label: str, histograms: Mapping[str, Durations]) -> Metric:
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
