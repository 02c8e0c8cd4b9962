"""`/health`, `/ready`, `/status`, `/workers`, `/api/cache`, `/metrics`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from parley import __version__
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.http.bodies import JSON, Time, WorkerId, filled
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.queue import Ticket
from parley.gateway.rates import Seldom
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.sessions import GatewaySession, Sessions, SessionState
from parley.gateway.tls import own_fingerprint
from parley.gateway.worker_pool import Lease, Worker
from parley.installation import build_id
from parley.protocol.control import ContextPages
from parley.recording.timeline import iso

READY_AGAIN_S: Final = 5
"""`Retry-After` of a server that is not ready or failing."""


ServerProblem = Annotated[
    str, Meta(description="why servers behind a worker's model cannot be used, if they cannot")
]


class Health(msgspec.Struct, kw_only=True):
    """State of the gateway; with 503, `failing` lists the failing background tasks."""

    status: str = "ok"
    healthy: bool = True
    timestamp: Annotated[str, Meta(examples=["2026-11-20T17:43:12+00:00"])]
    version: Annotated[str, Meta(examples=["0.1.0"])]
    failing: list[str] = []
    problem: ServerProblem = ""


class Readiness(msgspec.Struct, kw_only=True):
    """`ready`: True if a new session would be served; otherwise 503."""

    ready: bool = True
    why: Annotated[str, Meta(description="what is missing")] = ""


class RunningTask(msgspec.Struct, kw_only=True):
    """A lease in lists."""

    worker_id: WorkerId
    request_type: Annotated[str, Meta(examples=["chat"])]
    task_type: Annotated[str, Meta(examples=["chat"])]
    started_at: Time
    elapsed_s: Annotated[float, Meta(examples=[2.4])]
    estimated_remaining_s: Annotated[float, Meta(examples=[12.6])]


class FastPath(msgspec.Struct, kw_only=True):
    """A fast part of a worker's model. `reason` is visible only to admins."""

    part: Annotated[str, Meta(examples=["attention"])]
    state: Annotated[str, Meta(description="fast, plain or refused", examples=["fast"])]
    reason: Annotated[str | None, Meta(description="why it is not fast")] = None


class WorkerInfo(msgspec.Struct, kw_only=True):
    """One worker. `url`, `host` and `port` are visible only to admins."""

    worker_id: WorkerId
    index: Annotated[int, Meta(examples=[0])]
    status: Annotated[str, Meta(examples=["idle"])]
    current_request_type: Annotated[str | None, Meta(examples=["chat"])]
    current_task: Annotated[str | None, Meta(examples=["chat"])]
    current_session_id: str | None
    gpu_id: Annotated[str, Meta(examples=["cuda:0"])]
    model: Annotated[str, Meta(examples=["parrot"])]
    version: Annotated[str, Meta(examples=["0.1.0"])] = ""
    build: Annotated[
        str, Meta(description="commit, or a hash of the installed files", examples=["0123456789ab"])
    ] = ""
    voice_problem: Annotated[
        str | None,
        Meta(description="why it has no default voice, where it has none; text works without"),
    ] = None
    problem: ServerProblem = ""
    slots_limit: Annotated[
        str | None,
        Meta(description="why it offers fewer slots than its memory has room for, where it does"),
    ] = None
    fast_paths: Annotated[
        list[FastPath],
        Meta(
            description="fast parts of the model, and which of them were replaced by a slower form"
        ),
    ] = []
    context_pages: Annotated[
        ContextPages | None,
        Meta(description="of the memory that its contexts share; null where each has its own"),
    ] = None
    slots: Annotated[int, Meta(examples=[4])]
    free_slots: Annotated[int, Meta(examples=[3])]
    draining: Annotated[
        bool, Meta(description="gets no new work, because an admin asked for it")
    ] = False
    unreachable: Annotated[
        bool, Meta(description="connected, but the gateway cannot connect to its address")
    ] = False
    total_requests: Annotated[int, Meta(examples=[118])]
    avg_inference_time_ms: Annotated[float, Meta(examples=[412.5])]
    last_heartbeat: Time
    task_started_at: Time | None
    busy_since: Time | None
    cached_hash: str | None = None
    url: str | None = None
    host: str | None = None
    port: int | None = None


class RecordingHealth(msgspec.Struct, kw_only=True):
    """State of recording on all workers."""

    lost_entries: Annotated[
        int,
        Meta(description="that workers could not write, since the gateway started"),
    ] = 0
    failing_workers: Annotated[int, Meta(description="whose last entry failed")] = 0
    no_room_workers: Annotated[int, Meta(description="that record nothing: too little is free")] = 0


class SessionLogHealth(msgspec.Struct, kw_only=True):
    """Logs from which another worker can continue a session whose client requested resuming."""

    sessions: Annotated[int, Meta(description="with a log")] = 0
    bytes: Annotated[int, Meta(description="size of all logs")] = 0
    dropped: Annotated[
        int,
        Meta(description="logs dropped since the gateway started: all together were too large"),
    ] = 0
    place: Annotated[Literal["off", "file", "redis"], Meta(description="where the logs are")] = (
        "off"
    )
    missing: Annotated[
        int, Meta(description="sessions whose log cannot be written: lost with their worker")
    ] = 0


class SessionInfo(msgspec.Struct, kw_only=True):
    """Place and state of one session."""

    session_id: Annotated[str, Meta(examples=["hdx_2a5979215b12b3ba"])]
    state: Annotated[str, Meta(description="see `session_states`", examples=["away"])]
    kind: Annotated[
        str | None, Meta(description="null: it has ended", examples=["half_duplex_audio"])
    ] = None
    for_s: Annotated[float, Meta(description="seconds in this state")]
    worker: Annotated[
        str | None, Meta(description="that runs it", examples=["worker-0-1f2e3d4c"])
    ] = None
    key_id: Annotated[
        str | None, Meta(description="the key that its client showed", examples=["k_0123456789ab"])
    ] = None
    address: Annotated[str, Meta(description="where its client is", examples=["127.0.0.1"])] = ""
    is_protected: Annotated[
        bool, Meta(description="another worker could continue it", examples=[True])
    ] = False
    why: Annotated[str, Meta(description="why it was lost")] = ""


class Status(msgspec.Struct, kw_only=True):
    """State of the whole service; `workers` is filled only for admins."""

    gateway_healthy: bool = True
    version: Annotated[str, Meta(description="of the gateway", examples=["0.1.0"])] = ""
    build: Annotated[
        str, Meta(description="commit, or a hash of the installed files", examples=["0123456789ab"])
    ] = ""
    total_workers: Annotated[int, Meta(examples=[2])]
    idle_workers: Annotated[int, Meta(examples=[1])]
    busy_workers: Annotated[int, Meta(examples=[1])]
    duplex_workers: Annotated[int, Meta(examples=[0])]
    loading_workers: Annotated[int, Meta(examples=[0])]
    error_workers: Annotated[int, Meta(examples=[0])]
    offline_workers: Annotated[int, Meta(examples=[0])]
    free_slots: Annotated[
        int, Meta(description="slots that a session can take now, of all workers")
    ]
    waiting_workers: Annotated[
        dict[int, str],
        Meta(description="workers that wait for a device in the cluster, by number, and why"),
    ] = {}
    problem: ServerProblem = ""
    queue_length: Annotated[int, Meta(examples=[0])]
    max_queue_size: Annotated[int, Meta(examples=[1000])]
    recording: RecordingHealth
    session_logs: SessionLogHealth
    session_states: Annotated[
        dict[str, int],
        Meta(
            description="sessions by state: waiting, connected, away, moving, ended, lost",
            examples=[{"connected": 2, "away": 1}],
        ),
    ] = {}
    sessions: Annotated[
        list[SessionInfo],
        Meta(description="for admins: where each session is, the waiting ones first"),
    ] = []
    running_tasks: list[RunningTask]
    workers: list[WorkerInfo]
    certificate_fingerprint: Annotated[
        str | None, Meta(description="for admins: what workers on other hosts are started with")
    ] = None


class Workers(msgspec.Struct, kw_only=True):
    """All workers."""

    total: Annotated[int, Meta(examples=[1])]
    workers: list[WorkerInfo]


class CacheInfo(msgspec.Struct, kw_only=True):
    """Number of tokens in a worker's contexts."""

    worker_id: WorkerId
    status: Annotated[str, Meta(examples=["idle"])]
    kv_cache_length: Annotated[int, Meta(examples=[2048])]


class Caches(msgspec.Struct, kw_only=True):
    """Tokens in the contexts."""

    workers: list[CacheInfo]


def running_tasks(dispatcher: Dispatcher) -> list[RunningTask]:
    tasks, now_s = [], dispatcher.clock.monotonic()
    for lease in dispatcher.worker_pool.leases:
        elapsed_s = now_s - lease.granted_at
        left_s = max(0.0, dispatcher.eta.eta(lease.kind) - elapsed_s)
        tasks.append(
            RunningTask(
                worker_id=lease.worker.worker_id,
                request_type=lease.kind,
                task_type=lease.kind,
                started_at=iso(lease.granted_time),
                elapsed_s=round(elapsed_s, 1),
                estimated_remaining_s=round(left_s, 1),
            )
        )
    return tasks


def worker_info(worker: Worker, *, is_admin: bool) -> WorkerInfo:
    lease = next(iter(worker.leases.values()), None)
    kind = lease.kind if lease else None
    since = iso(lease.granted_time) if lease else None
    address: dict[str, Any] = {}
    if is_admin:
        parts = urlsplit(worker.hello.url)
        address = {"url": worker.hello.url, "host": parts.hostname, "port": parts.port}
    hello, beat = worker.hello, worker.heartbeat
    return WorkerInfo(
        worker_id=worker.worker_id,
        index=hello.index,
        status=worker.view,
        current_request_type=kind,
        current_task=kind,
        # With the ids of running sessions, a stranger could stop them.
        current_session_id=lease.session_id if lease and is_admin else None,
        gpu_id=hello.device,
        model=hello.model,
        version=hello.version,
        build=hello.build,
        voice_problem=hello.details.get("voice_problem"),
        problem="" if beat is None else beat.problem,
        slots_limit=hello.details.get("slots_limit"),
        fast_paths=fast_paths(worker, is_admin=is_admin),
        context_pages=None if beat is None else beat.context_pages,
        slots=worker.slots,
        free_slots=worker.free_slots,
        draining=worker.is_draining,
        unreachable=worker.is_connected and worker.is_unreachable,
        total_requests=max(worker.total_requests, beat.total_requests if beat else 0),
        avg_inference_time_ms=beat.avg_inference_time_ms if beat else 0.0,
        last_heartbeat=iso(worker.last_seen_time),
        task_started_at=since,
        busy_since=since,
        **address,
    )


def fast_paths(worker: Worker, *, is_admin: bool) -> list[FastPath]:
    if worker.heartbeat is None:
        return []
    found = []
    for part, words in worker.heartbeat.fast_paths.items():
        state, _, reason = words.partition(": ")
        found.append(
            FastPath(part=part, state=state, reason=(reason or None) if is_admin else None)
        )
    return found


def list_sessions(sessions: Sessions, dispatcher: Dispatcher) -> list[SessionInfo]:
    """The state of every session: in the queue, in the registry, or, for REST requests, at a
    worker."""
    now_s = dispatcher.clock.monotonic()
    registered = list(sessions)
    known = {each.session_id for each in registered}
    waiting = [
        _listed(ticket, "waiting", now_s - ticket.enqueued_at) for ticket in dispatcher.queue
    ]
    requests = [
        _listed(lease, SessionState.CONNECTED, now_s - lease.granted_at, lease.worker.worker_id)
        for lease in dispatcher.worker_pool.leases
        if lease.session_id not in known
    ]
    return [*waiting, *(_session_info(each, now_s) for each in registered), *requests]


def _listed(
    one: Ticket | Lease, state: str, for_s: float, worker: str | None = None
) -> SessionInfo:
    return SessionInfo(
        session_id=one.session_id,
        state=state,
        kind=one.kind,
        for_s=round(for_s, 1),
        worker=worker,
        key_id=one.key_id,
        address=one.address,
    )


def _session_info(session: GatewaySession, now_s: float) -> SessionInfo:
    lease, found = session.lease, session.lost or session.lease
    return filled(
        SessionInfo,
        session,
        state=session.shown,
        kind=None if found is None else found.kind,
        for_s=round(now_s - session.since_s, 1),
        worker=None if lease is None else lease.worker.worker_id,
        address="" if found is None else found.address,
        is_protected=bool(found is not None and found.log_id),
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


def routes(runtime: GatewayRuntime) -> Router:
    dispatcher, sessions = runtime.dispatcher, runtime.sessions
    metrics, supervisor = runtime.metrics, runtime.supervisor
    gateway = runtime.settings.gateway
    clock, worker_pool, queue = dispatcher.clock, dispatcher.worker_pool, dispatcher.queue
    router = Router(tag="status")

    def problem() -> str:
        beats = [worker.heartbeat for worker in worker_pool if worker.heartbeat is not None]
        return next((beat.problem for beat in beats if beat.problem), "")

    @router.get("/health", answer=Health, others={503: Health})
    async def health() -> Response:
        """200 if the gateway is alive and all its background tasks are running. For workers see
        `/status`."""
        failing = sorted(supervisor.failing)
        health = Health(
            status="failing" if failing else "ok",
            healthy=not failing,
            timestamp=iso(clock.time()),
            version=__version__,
            failing=failing,
            problem=problem(),
        )
        return _answer(health, is_well=not failing)

    @router.get("/ready", answer=Readiness, others={503: Readiness})
    async def ready() -> Response:
        """For load balancers: 200 if a new session would be served, i.e. a worker is connected,
        even if busy, the queue has room, and the server is not shutting down."""
        why = _not_ready(dispatcher, is_closing=runtime.closing.done())
        return _answer(Readiness(ready=not why, why=why), is_well=not why)

    def status_for(*, admin: bool) -> Response:
        views: list[str] = [worker.view for worker in worker_pool]
        duplex = views.count("duplex_active") + views.count("duplex_paused")
        others = ("busy_chat", "busy_half_duplex", "cleanup")
        loading = worker_pool.loading_workers
        listed = list_sessions(sessions, dispatcher)
        recording = [w.heartbeat.recording for w in worker_pool if w.heartbeat is not None]
        status = Status(
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
            problem=problem(),
            queue_length=len(queue),
            max_queue_size=queue.limit,
            recording=RecordingHealth(
                lost_entries=metrics.recording_lost,
                failing_workers=recording.count("failing"),
                no_room_workers=recording.count("no_room"),
            ),
            session_logs=SessionLogHealth(
                sessions=metrics.session_logs.count,
                bytes=metrics.session_logs.size_bytes,
                dropped=metrics.session_logs.dropped,
                place=metrics.session_logs.place,
                missing=metrics.sessions_without_log,
            ),
            session_states=dict(Counter(each.state for each in listed)),
            sessions=listed if admin else [],
            running_tasks=running_tasks(dispatcher),
            workers=[worker_info(w, is_admin=True) for w in worker_pool] if admin else [],
            certificate_fingerprint=(
                own_fingerprint(gateway.ssl_certfile) if admin and not gateway.http else None
            ),
        )
        return _answer(status)

    for_strangers = Seldom(clock, lambda: status_for(admin=False))

    @router.get("/status", answer=Status)
    async def status(who: Requester) -> Response:
        """Workers by state, the queue, and running sessions; for clients other than operators up to
        four seconds old if it is requested very often."""
        return status_for(admin=True) if who.is_operator else for_strangers.get()

    @router.get("/workers")
    async def workers(who: Requester) -> Workers:
        """All workers; their addresses are visible only to admins."""
        admin = who.is_operator
        listed = [worker_info(worker, is_admin=admin) for worker in worker_pool]
        return Workers(total=len(listed), workers=listed)

    @router.get("/cache", is_documented=False)
    @router.get("/api/cache")
    async def cache() -> Caches:
        """Number of tokens in each worker's contexts."""
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

    metrics_page = Seldom(clock, metrics.page)

    @router.get(
        "/metrics",
        name="metrics",
        answer={
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": "parley_queue_length 0.0\n",
                }
            }
        },
    )
    async def exposition() -> Response:
        """Metrics for Prometheus; up to four seconds old if they are requested very often."""
        return Response(metrics_page.get(), media_type=CONTENT_TYPE_LATEST)

    return router


def _answer(body: msgspec.Struct, *, is_well: bool = True) -> Response:
    headers = None if is_well else {"retry-after": str(READY_AGAIN_S)}
    return Response(msgspec.json.encode(body), 200 if is_well else 503, headers, JSON)
