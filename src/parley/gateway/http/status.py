"""`/health`, `/ready`, `/status`, `/workers`, `/api/cache`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from fastapi import Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from parley import __version__
from parley.clock import Clock
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.eta import EtaTracker
from parley.gateway.http.errors import shown
from parley.gateway.http.requester import Who
from parley.gateway.http.routing import Router
from parley.gateway.metrics import Metrics
from parley.gateway.queue import Queue
from parley.gateway.sessions import GatewaySession, Sessions, SessionState
from parley.gateway.supervisor import Supervisor
from parley.gateway.tls import own_fingerprint
from parley.gateway.worker_pool import Lease, Worker, WorkerPool
from parley.installation import build_id
from parley.settings import GatewaySettings

READY_AGAIN_S: Final = 5
"""`Retry-After` of a server that is not ready, or fails."""

METRICS_MOST: Final = 8
METRICS_S: Final = 4.0
"""The metrics are made at most this often in this many seconds: making them takes about 4 ms, and
on a server without keys any client may ask."""


class Health(BaseModel):
    """State of the gateway; with 503, `failing` names the background tasks that fail."""

    status: str = Field("ok", examples=["ok"])
    healthy: bool = True
    timestamp: str = Field(examples=["2026-11-20T17:43:12+00:00"])
    version: str = Field(examples=["0.1.0"])
    failing: list[str] = Field([], examples=[[]])


class Readiness(BaseModel):
    """`ready`: a new session would be served; 503 if not."""

    ready: bool = True
    why: str = Field("", description="what is missing", examples=[""])


class RunningTask(BaseModel):
    """A lease, as lists show it."""

    worker_id: str = Field(examples=["w0"])
    request_type: str = Field(examples=["chat"])
    task_type: str = Field(examples=["chat"])
    started_at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    elapsed_s: float = Field(examples=[2.4])
    estimated_remaining_s: float = Field(examples=[12.6])


class FastPath(BaseModel):
    """A fast part of a worker's model. `reason` is there for admins only."""

    part: str = Field(examples=["attention"])
    state: str = Field(description="fast, plain or refused", examples=["fast"])
    reason: str | None = Field(None, description="why it is not fast")


class ContextPagesInfo(BaseModel):
    """Pages of a worker's context memory."""

    used: int = Field(examples=[120])
    free: int = Field(examples=[40])


class WorkerInfo(BaseModel):
    """One worker. `url`, `host` and `port` are there for admins only."""

    worker_id: str = Field(examples=["w0"])
    index: int = Field(examples=[0])
    status: str = Field(examples=["idle"])
    current_request_type: str | None = Field(examples=["chat"])
    current_task: str | None = Field(examples=["chat"])
    current_session_id: str | None
    gpu_id: str = Field(examples=["cuda:0"])
    model: str = Field(examples=["parrot"])
    version: str = Field("", examples=["0.1.0"])
    build: str = Field(
        "", description="commit, or a hash of the installed files", examples=["0123456789ab"]
    )
    voice_problem: str | None = Field(
        None, description="why it has no default voice, where it has none; text works without"
    )
    fast_paths: list[FastPath] = Field(
        [], description="fast parts of the model, and which of them were replaced by a slower form"
    )
    context_pages: ContextPagesInfo | None = Field(
        None, description="of the memory that its contexts share; null where each has its own"
    )
    slots: int = Field(examples=[4])
    free_slots: int = Field(examples=[3])
    draining: bool = Field(False, description="gets no new work, because an admin asked for it")
    unreachable: bool = Field(
        False, description="connected, but the gateway cannot connect to its address"
    )
    total_requests: int = Field(examples=[118])
    avg_inference_time_ms: float = Field(examples=[412.5])
    last_heartbeat: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    task_started_at: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    busy_since: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    cached_hash: str | None = None
    url: str | None = None
    host: str | None = None
    port: int | None = None


class RecordingHealth(BaseModel):
    """State of recording on all workers."""

    lost_entries: int = Field(
        0, description="that workers could not write, since the gateway started", examples=[0]
    )
    failing_workers: int = Field(0, description="whose last entry failed", examples=[0])
    no_room_workers: int = Field(
        0, description="that record nothing: too little is free", examples=[0]
    )


class SessionLogHealth(BaseModel):
    """Logs from which another worker can continue a session whose client asked for resuming."""

    sessions: int = Field(0, description="with a log", examples=[3])
    bytes: int = Field(0, description="size of all logs", examples=[412_000])
    dropped: int = Field(
        0,
        description="logs dropped since the gateway started, because all together were too large",
        examples=[0],
    )
    place: Literal["off", "file", "redis"] = Field("off", description="where the logs are")


class SessionInfo(BaseModel):
    """Place and state of one session."""

    session_id: str = Field(examples=["hdx_2a5979215b12b3ba"])
    state: str = Field(description="see `session_states`", examples=["away"])
    kind: str | None = Field(None, description="null: it has ended", examples=["half_duplex_audio"])
    for_s: float = Field(description="seconds in this state", examples=[4.2])
    worker: str | None = Field(None, description="that runs it", examples=["worker-0-1f2e3d4c"])
    key_id: str | None = Field(
        None, description="the key that its client showed", examples=["k_0123456789ab"]
    )
    address: str = Field("", description="where its client is", examples=["127.0.0.1"])
    is_protected: bool = Field(
        False, description="another worker could continue it", examples=[True]
    )
    why: str = Field("", description="why it was lost", examples=[""])


class Status(BaseModel):
    """State of the whole service; `workers` is filled for admins only."""

    gateway_healthy: bool = True
    version: str = Field("", description="of the gateway", examples=["0.1.0"])
    build: str = Field(
        "", description="commit, or a hash of the installed files", examples=["0123456789ab"]
    )
    total_workers: int = Field(examples=[2])
    idle_workers: int = Field(examples=[1])
    busy_workers: int = Field(examples=[1])
    duplex_workers: int = Field(examples=[0])
    loading_workers: int = Field(examples=[0])
    error_workers: int = Field(examples=[0])
    offline_workers: int = Field(examples=[0])
    free_slots: int = Field(
        description="slots that a session can take now, of all workers", examples=[3]
    )
    waiting_workers: dict[int, str] = Field(
        {},
        description="workers that wait for a device in the cluster, by number, and why",
        examples=[{}],
    )
    queue_length: int = Field(examples=[0])
    max_queue_size: int = Field(examples=[1000])
    recording: RecordingHealth
    session_logs: SessionLogHealth
    session_states: dict[str, int] = Field(
        {},
        description="number of sessions by state: waiting, connected, away, moving, ended, lost",
        examples=[{"connected": 2, "away": 1}],
    )
    sessions: list[SessionInfo] = Field(
        [], description="for admins: where each session is, the waiting ones first"
    )
    running_tasks: list[RunningTask]
    workers: list[WorkerInfo]
    certificate_fingerprint: str | None = Field(
        None, description="for admins: what workers on other hosts are started with"
    )


class Workers(BaseModel):
    """All workers."""

    total: int = Field(examples=[1])
    workers: list[WorkerInfo]


class CacheInfo(BaseModel):
    """How full a worker's context is."""

    worker_id: str = Field(examples=["w0"])
    status: str = Field(examples=["idle"])
    kv_cache_length: int = Field(examples=[2048])


class Caches(BaseModel):
    """How full the contexts are."""

    workers: list[CacheInfo]


def iso(unix_s: float) -> str:
    """Unix seconds as UTC text."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def running_task(lease: Lease, clock: Clock, eta: EtaTracker) -> RunningTask:
    """A lease as lists show it."""
    elapsed_s = clock.monotonic() - lease.granted_at
    return RunningTask(
        worker_id=lease.worker.worker_id,
        request_type=lease.kind,
        task_type=lease.kind,
        started_at=iso(lease.granted_time),
        elapsed_s=round(elapsed_s, 1),
        estimated_remaining_s=round(max(0.0, eta.eta(lease.kind) - elapsed_s), 1),
    )


def worker_info(worker: Worker, *, is_admin: bool) -> WorkerInfo:
    """A worker as lists show it."""
    lease = next(iter(worker.leases.values()), None)
    kind = lease.kind if lease else None
    since = iso(lease.granted_time) if lease else None
    address: dict[str, Any] = {}
    if is_admin:
        parts = urlsplit(worker.hello.url)
        address = {"url": worker.hello.url, "host": parts.hostname, "port": parts.port}
    return WorkerInfo(
        worker_id=worker.worker_id,
        index=worker.hello.index,
        status=worker.view,
        current_request_type=kind,
        current_task=kind,
        # Ids of running sessions would let a stranger stop them.
        current_session_id=lease.session_id if lease and is_admin else None,
        gpu_id=worker.hello.device,
        model=worker.hello.model,
        version=worker.hello.version,
        build=worker.hello.build,
        voice_problem=worker.hello.details.get("voice_problem"),
        fast_paths=fast_paths(worker, is_admin=is_admin),
        context_pages=context_pages(worker),
        slots=worker.slots,
        free_slots=worker.free_slots,
        draining=worker.is_draining,
        unreachable=worker.is_connected and worker.is_unreachable,
        total_requests=max(
            worker.total_requests, worker.heartbeat.total_requests if worker.heartbeat else 0
        ),
        avg_inference_time_ms=worker.heartbeat.avg_inference_time_ms if worker.heartbeat else 0.0,
        last_heartbeat=iso(worker.last_seen_time),
        task_started_at=since,
        busy_since=since,
        **address,
    )


def fast_paths(worker: Worker, *, is_admin: bool) -> list[FastPath]:
    """The fast parts of a worker's model."""
    if worker.heartbeat is None:
        return []
    found = []
    for part, words in worker.heartbeat.fast_paths.items():
        state, _, reason = words.partition(": ")
        found.append(
            FastPath(part=part, state=state, reason=(reason or None) if is_admin else None)
        )
    return found


def context_pages(worker: Worker) -> ContextPagesInfo | None:
    """The pool that a worker's contexts share."""
    pages = None if worker.heartbeat is None else worker.heartbeat.context_pages
    return None if pages is None else ContextPagesInfo(used=pages.used, free=pages.free)


def recording_health(metrics: Metrics, worker_pool: WorkerPool) -> RecordingHealth:
    """What the workers' heartbeats say of their recordings."""
    states = [w.heartbeat.recording for w in worker_pool if w.heartbeat is not None]
    return RecordingHealth(
        lost_entries=metrics.recording_lost,
        failing_workers=states.count("failing"),
        no_room_workers=states.count("no_room"),
    )


def list_sessions(
    sessions: Sessions, queue: Queue, worker_pool: WorkerPool, clock: Clock
) -> list[SessionInfo]:
    """Where every session is: in the queue, in the registry, or, as a REST request, at a worker."""
    now_s = clock.monotonic()
    registered = list(sessions)
    known = {each.session_id for each in registered}
    waiting = [
        SessionInfo(
            session_id=ticket.session_id,
            state="waiting",
            kind=ticket.kind,
            for_s=round(now_s - ticket.enqueued_at, 1),
            key_id=ticket.key_id,
            address=ticket.address,
        )
        for ticket in queue
    ]
    requests = [
        SessionInfo(
            session_id=lease.session_id,
            state=SessionState.CONNECTED,
            kind=lease.kind,
            for_s=round(now_s - lease.granted_at, 1),
            worker=lease.worker.worker_id,
            key_id=lease.key_id,
            address=lease.address,
        )
        for lease in worker_pool.leases
        if lease.session_id not in known
    ]
    return [*waiting, *(_session_info(each, now_s) for each in registered), *requests]


def _session_info(session: GatewaySession, now_s: float) -> SessionInfo:
    lease, found = session.lease, session.lost or session.lease
    return SessionInfo(
        session_id=session.session_id,
        state=session.state,
        kind=None if found is None else found.kind,
        for_s=round(now_s - session.since_s, 1),
        worker=None if lease is None else lease.worker.worker_id,
        key_id=None if found is None else found.key_id,
        address="" if found is None else found.address,
        is_protected=bool(found is not None and found.log_id),
        why=session.why,
    )


def session_log_health(metrics: Metrics) -> SessionLogHealth:
    """The logs of running sessions, as the last sweep found them."""
    logged = metrics.session_logs
    if logged is None:
        return SessionLogHealth()
    return SessionLogHealth(
        sessions=logged.count, bytes=logged.size_bytes, dropped=logged.dropped, place=logged.place
    )


def _not_ready(dispatcher: Dispatcher, *, is_closing: bool) -> str:
    worker_pool, queue = dispatcher.worker_pool, dispatcher.queue
    if is_closing:
        return "The server is shutting down."
    if dispatcher.is_paused:
        return "Another gateway may have become active."
    if not worker_pool.can_take:
        return "No worker can take a session."
    if len(queue) >= queue.limit:
        return "The queue is full."
    return ""


def routes(
    *,
    clock: Clock,
    closing: asyncio.Future[None],
    dispatcher: Dispatcher,
    eta: EtaTracker,
    gateway: GatewaySettings,
    metrics: Metrics,
    queue: Queue,
    sessions: Sessions,
    supervisor: Supervisor,
    worker_pool: WorkerPool,
) -> Router:
    router = Router(tags=["status"])

    @router.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """The gateway is alive and all its background tasks run. For workers see `/status`."""
        failing = sorted(supervisor.failing)
        if failing:
            response.status_code = 503
            response.headers["retry-after"] = str(READY_AGAIN_S)
        return Health(
            status="failing" if failing else "ok",
            healthy=not failing,
            timestamp=iso(clock.time()),
            version=__version__,
            failing=failing,
        )

    @router.get("/ready", responses={503: {"model": Readiness}})
    async def ready(response: Response) -> Readiness:
        """For load balancers: a new session would be served, i.e. a worker is there, perhaps busy,
        the queue has room, and the server does not shut down."""
        why = _not_ready(dispatcher, is_closing=closing.done())
        if why:
            response.status_code = 503
            response.headers["retry-after"] = str(READY_AGAIN_S)
        return Readiness(ready=not why, why=why)

    @router.get("/status")
    async def status(who: Who) -> Status:
        """Workers by state, the queue, and what runs."""
        views: list[str] = [worker.view for worker in worker_pool]
        duplex = views.count("duplex_active") + views.count("duplex_paused")
        others = ("busy_chat", "busy_half_duplex", "cleanup")
        loading = worker_pool.loading_workers
        admin = who.is_operator
        listed = list_sessions(sessions, queue, worker_pool, clock)
        return Status(
            gateway_healthy=not supervisor.failing,
            version=__version__,
            build=build_id(),
            total_workers=len(views) + loading - views.count("loading"),
            idle_workers=views.count("idle"),
            busy_workers=duplex + sum(views.count(view) for view in others),
            duplex_workers=duplex,
            loading_workers=loading,
            error_workers=views.count("error"),
            offline_workers=views.count("offline"),
            free_slots=sum(worker.free_slots for worker in worker_pool),
            waiting_workers=worker_pool.waiting,
            queue_length=len(queue),
            max_queue_size=queue.limit,
            recording=recording_health(metrics, worker_pool),
            session_logs=session_log_health(metrics),
            session_states=dict(Counter(each.state for each in listed)),
            sessions=listed if admin else [],
            running_tasks=[running_task(lease, clock, eta) for lease in worker_pool.leases],
            workers=[worker_info(w, is_admin=True) for w in worker_pool] if admin else [],
            certificate_fingerprint=(
                own_fingerprint(gateway.ssl_certfile) if admin and not gateway.http else None
            ),
        )

    @router.get("/workers")
    async def workers(who: Who) -> Workers:
        """All workers; their addresses for admins only."""
        admin = who.is_operator
        listed = [worker_info(worker, is_admin=admin) for worker in worker_pool]
        return Workers(total=len(listed), workers=listed)

    @router.get("/cache", include_in_schema=False)
    @router.get("/api/cache")
    async def cache() -> Caches:
        """How full each worker's context is, in tokens."""
        return Caches(
            workers=[
                CacheInfo(
                    worker_id=worker.worker_id,
                    status=worker.view,
                    kv_cache_length=worker.heartbeat.kv_cache_length if worker.heartbeat else 0,
                )
                for worker in worker_pool
            ]
        )

    metrics_page = b""
    made: deque[float] = deque(maxlen=METRICS_MOST)

    @router.get(
        "/metrics",
        name="metrics",
        response_class=PlainTextResponse,
        responses={200: shown("parley_queue_length 0.0\n", "text/plain")},
    )
    async def exposition() -> Response:
        """Metrics for Prometheus; up to four seconds old if they are requested very often."""
        nonlocal metrics_page
        now_s = clock.monotonic()
        if len(made) < METRICS_MOST or now_s - made[0] >= METRICS_S:
            made.append(now_s)
            metrics_page = metrics.page()
        return Response(metrics_page, media_type=CONTENT_TYPE_LATEST)

    return router
