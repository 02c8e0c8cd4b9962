"""`/api/admin` for operators: the log, the disk, the metrics of the last hour; draining and
restarting workers, reloading settings."""

from __future__ import annotations

import asyncio
import shutil
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from parley import logs
from parley.clock import Clock
from parley.gateway.http.admin import admin_router
from parley.gateway.http.bodies import Time, filled
from parley.gateway.http.routing import Router
from parley.gateway.http.status import WorkerInfo, worker_info
from parley.gateway.reload import Reloaded
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.worker_pool import Worker
from parley.recording.layout import GB, RecordingFolders
from parley.recording.timeline import iso
from parley.settings import StorageSettings

LINES_KEPT: Final = 300
DISK_FRESH_S: Final = 60.0
"""Minimum interval between two counts, which examine every file of every recording."""
MOVE_S: Final = 5.0
"""Time for which a restart of a worker waits for its sessions to move."""
RESTART_GRACE_S: Final = 20.0


class PastMetrics(msgspec.Struct, kw_only=True):
    """A sample of the metrics that the operator's page plots."""

    at: Time
    metrics: Annotated[str, Meta(examples=["parley_queue_length 0.0"])]


class LastHour(msgspec.Struct, kw_only=True):
    """Oldest first."""

    looks: list[PastMetrics]


class LogLine(msgspec.Struct, kw_only=True):
    """A warning or an error."""

    at: Time
    level: Annotated[str, Meta(examples=["warning"])]
    source: Annotated[str, Meta(examples=["parley.executor.local"])]
    event: Annotated[str, Meta(examples=["worker died"])]
    more: Annotated[dict[str, str], Meta(examples=[{"worker": "0", "why": "exit code 1"}])]


class Log(msgspec.Struct, kw_only=True):
    """Newest first."""

    lines: list[LogLine]


class Disk(msgspec.Struct, kw_only=True):
    """The disk with the data folder, and the space that recordings take."""

    total_gb: Annotated[float, Meta(examples=[512.1])]
    free_gb: Annotated[float, Meta(examples=[201.4])]
    recordings: Annotated[int, Meta(examples=[812])]
    recordings_gb: Annotated[float, Meta(examples=[37.2])]
    waiting_on_workers: Annotated[
        int, Meta(description="recordings that are still to come from other hosts")
    ] = 0
    min_free_gb: Annotated[float, Meta(description="nothing is recorded below this")]
    max_gb: Annotated[float, Meta(description="recordings may take this much, -1: no cap")]
    retention_days: Annotated[int, Meta(description="-1: for ever")]


class DrainOrder(msgspec.Struct, kw_only=True):
    """`draining`: the worker gets no new work."""

    draining: bool


class RestartOrder(msgspec.Struct, kw_only=True):
    """Time for written answers to finish; conversations end immediately, with a message."""

    grace_s: Annotated[float, Meta(ge=0, le=300)] = RESTART_GRACE_S


class Restarted(msgspec.Struct, kw_only=True):
    """The worker was asked to end; its executor or supervisor starts it again."""

    success: bool = True


def routes(runtime: GatewayRuntime, recent: logs.Recent) -> Router:
    metrics, moving = runtime.metrics, runtime.serving.moving
    worker_control, worker_pool = runtime.serving.worker_control, runtime.dispatcher.worker_pool
    router = admin_router(role="operate")
    disk = _DiskReport(runtime.clock, runtime.stores.folders, runtime.settings.storage)

    def known(worker_id: str) -> Worker:
        worker = worker_pool.find(worker_id)
        if worker is None or not worker.is_connected:
            raise HTTPException(404, f"There is no worker {worker_id!r}.")
        return worker

    @router.get("/log")
    async def log() -> Log:
        """The last warnings and errors of the gateway, including deaths of its workers."""
        return Log(lines=[filled(LogLine, line, at=iso(line.at_s)) for line in recent.lines])

    @router.get("/history")
    async def last_hour() -> LastHour:
        """The metrics of the last hour, one sample per minute."""
        return LastHour(
            looks=[PastMetrics(at=iso(look.at_s), metrics=look.text) for look in metrics.looks]
        )

    @router.get("/disk")
    async def room() -> Disk:
        """Free space, and the size of recordings; counted at most once a minute."""
        report = await disk.read()
        return msgspec.structs.replace(report, waiting_on_workers=runtime.stores.handover.waiting)

    @router.put("/workers/{worker_id}", errors=(404,))
    async def drain(worker_id: str, order: DrainOrder) -> WorkerInfo:
        """Stop or resume giving new sessions to a worker. Sessions that can be resumed move to
        other workers if there are slots; all others continue."""
        worker = known(worker_id)
        worker_pool.drain(worker, order.draining)
        if order.draining:
            moving.begin(worker)
        return worker_info(worker, is_admin=True)

    @router.post("/workers/{worker_id}/restart", errors=(404,))
    async def restart(worker_id: str, order: RestartOrder | None = None) -> Restarted:
        """End a worker and the sessions that cannot move; its executor restarts it."""
        worker = known(worker_id)
        worker_pool.drain(worker, True)
        await asyncio.wait({moving.begin(worker)}, timeout=MOVE_S)
        worker_control.restart(worker, (order or RestartOrder()).grace_s)
        return Restarted()

    @router.post("/reload", role="admin")
    async def reload_settings() -> Reloaded:
        """Read settings and certificate again, as SIGHUP does; sessions continue."""
        return runtime.reload()

    return router


class _DiskReport:
    """Counted in one thread at a time, and cached for a while."""

    def __init__(self, clock: Clock, folders: RecordingFolders, storage: StorageSettings) -> None:
        self._clock = clock
        self._folders = folders
        self._storage = storage
        self._lock = asyncio.Lock()
        self._counted_at = float("-inf")
        self._recordings = 0
        self._bytes = 0

    async def read(self) -> Disk:
        storage = self._storage
        async with self._lock:
            now = self._clock.monotonic()
            if now - self._counted_at >= DISK_FRESH_S:
                self._recordings, self._bytes = await asyncio.to_thread(self._count)
                self._counted_at = now
            usage = await asyncio.to_thread(shutil.disk_usage, storage.data_dir)
        return Disk(
            total_gb=round(usage.total / GB, 2),
            free_gb=round(usage.free / GB, 2),
            recordings=self._recordings,
            recordings_gb=round(self._bytes / GB, 3),
            min_free_gb=storage.min_free_gb,
            max_gb=storage.max_gb,
            retention_days=storage.retention_days,
        )

    def _count(self) -> tuple[int, int]:
        sizes = [folder.size_bytes() for folder in self._folders]
        return len(sizes), sum(sizes)
