"""`/health`, `/status`, `/workers`, `/api/cache`, `/metrics`: how things stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from parley import __version__
from parley.gateway.fleet import Lease, Worker
from parley.gateway.house import House
from parley.gateway.http.errors import shown


class Health(BaseModel):
    """The gateway is alive."""

    status: str = Field("ok", examples=["ok"])
    healthy: bool = True
    timestamp: str = Field(examples=["2026-11-20T17:43:12+00:00"])
    version: str = Field(examples=["0.1.0"])


class RunningTask(BaseModel):
    """A lease, as lists show it."""

    worker_id: str = Field(examples=["w0"])
    request_type: str = Field(examples=["chat"])
    task_type: str = Field(examples=["chat"])
    started_at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    elapsed_s: float = Field(examples=[2.4])
    estimated_remaining_s: float = Field(examples=[12.6])


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
    slots: int = Field(examples=[4])
    free_slots: int = Field(examples=[3])
    draining: bool = Field(False, description="gets no new work, by an admin's wish")
    total_requests: int = Field(examples=[118])
    avg_inference_time_ms: float = Field(examples=[412.5])
    last_heartbeat: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    task_started_at: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    busy_since: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    cached_hash: str | None = None
    url: str | None = None
    host: str | None = None
    port: int | None = None


class Status(BaseModel):
    """The whole service in one answer; `workers` is filled for admins only."""

    gateway_healthy: bool = True
    total_workers: int = Field(examples=[2])
    idle_workers: int = Field(examples=[1])
    busy_workers: int = Field(examples=[1])
    duplex_workers: int = Field(examples=[0])
    loading_workers: int = Field(examples=[0])
    error_workers: int = Field(examples=[0])
    offline_workers: int = Field(examples=[0])
    queue_length: int = Field(examples=[0])
    max_queue_size: int = Field(examples=[1000])
    running_tasks: list[RunningTask]
    workers: list[WorkerInfo]


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


def running_task(house: House, lease: Lease) -> RunningTask:
    """A lease as lists show it."""
    elapsed_s = house.clock.monotonic() - lease.granted_at
    return RunningTask(
        worker_id=lease.worker.worker_id,
        request_type=lease.task,
        task_type=lease.task,
        started_at=iso(lease.granted_time),
        elapsed_s=round(elapsed_s, 1),
        estimated_remaining_s=round(max(0.0, house.eta.eta(lease.task) - elapsed_s), 1),
    )


def worker_info(worker: Worker, *, is_admin: bool) -> WorkerInfo:
    """A worker as lists show it."""
    lease = next(iter(worker.leases.values()), None)
    task = lease.task if lease else None
    since = iso(lease.granted_time) if lease else None
    address: dict[str, Any] = {}
    if is_admin:
        parts = urlsplit(worker.hello.url)
        address = {"url": worker.hello.url, "host": parts.hostname, "port": parts.port}
    return WorkerInfo(
        worker_id=worker.worker_id,
        index=worker.hello.index,
        status=worker.view,
        current_request_type=task,
        current_task=task,
        # Ids of running sessions would let a stranger stop them.
        current_session_id=lease.session_id if lease and is_admin else None,
        gpu_id=worker.hello.device,
        model=worker.hello.model,
        slots=worker.slots,
        free_slots=worker.free_slots,
        draining=worker.is_draining,
        total_requests=max(worker.total_requests, worker.beat.total_requests if worker.beat else 0),
        avg_inference_time_ms=worker.beat.avg_inference_time_ms if worker.beat else 0.0,
        last_heartbeat=iso(worker.last_seen_time),
        task_started_at=since,
        busy_since=since,
        **address,
    )


def routes(house: House) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["status"])

    def is_admin(request: Request) -> bool:
        return house.door.is_admin(request.client.host if request.client else None, request.headers)

    @router.get("/health")
    async def health() -> Health:
        """Whether the gateway is alive. Says nothing about workers; see `/status`."""
        return Health(timestamp=iso(house.clock.time()), version=__version__)

    @router.get("/status")
    async def status(request: Request) -> Status:
        """Workers by state, the queue, and what runs."""
        views: list[str] = [worker.view for worker in house.fleet]
        duplex = views.count("duplex_active") + views.count("duplex_paused")
        others = ("busy_chat", "busy_half_duplex", "cleanup")
        loading = house.fleet.loading_workers
        admin = is_admin(request)
        return Status(
            total_workers=len(views) + loading - views.count("loading"),
            idle_workers=views.count("idle"),
            busy_workers=duplex + sum(views.count(view) for view in others),
            duplex_workers=duplex,
            loading_workers=loading,
            error_workers=views.count("error"),
            offline_workers=views.count("offline"),
            queue_length=len(house.queue),
            max_queue_size=house.queue.limit,
            running_tasks=[running_task(house, lease) for lease in house.fleet.leases],
            workers=[worker_info(w, is_admin=True) for w in house.fleet] if admin else [],
        )

    @router.get("/workers")
    async def workers(request: Request) -> Workers:
        """All workers; their addresses for admins only."""
        admin = is_admin(request)
        listed = [worker_info(worker, is_admin=admin) for worker in house.fleet]
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
                    kv_cache_length=worker.beat.kv_cache_length if worker.beat else 0,
                )
                for worker in house.fleet
            ]
        )

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: shown("parley_queue_length 0.0\n", "text/plain")},
    )
    async def metrics() -> Response:
        """Everything for Prometheus."""
        return Response(house.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return router
