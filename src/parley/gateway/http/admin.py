"""`/api/admin`: for admins the audit log and deleting old recordings; for operators the log, the
disk, the metrics of the last hour, draining and restarting workers, and reloading settings.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from parley import logs
from parley.clock import Clock
from parley.gateway.http.bodies import Success, Time, filled
from parley.gateway.http.routing import Router
from parley.gateway.http.status import WorkerInfo, worker_info
from parley.gateway.reload import Reloaded
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.state import Role
from parley.gateway.worker_pool import Worker
from parley.recording.layout import GB, RecordingFolders
from parley.recording.retention import CleanReport
from parley.recording.timeline import iso
from parley.settings import StorageSettings


def admin_router(
    path: str = "", *, tag: str = "admin", role: Role = "admin", errors: Iterable[int] = ()
) -> Router:
    return Router(f"/api/admin{path}", tag=tag, role=role, errors=errors)


class AuditLine(msgspec.Struct, kw_only=True):
    """One action of an admin."""

    at: Time
    address: Annotated[str, Meta(examples=["127.0.0.1"])]
    who: Annotated[
        str,
        Meta(
            description="the id of a key or of a user that a proxy has signed in; `admin`: the "
            "holder of the admin token; `local`: a caller on this machine, without a token",
            examples=["k_0123456789ab"],
        ),
    ]
    method: Annotated[str, Meta(examples=["PUT"])]
    path: Annotated[str, Meta(examples=["/api/admin/apps/omni"])]
    status: Annotated[int, Meta(examples=[200])]


class Audit(msgspec.Struct, kw_only=True):
    """Newest first."""

    entries: list[AuditLine]


class StateReport(msgspec.Struct, kw_only=True):
    """Damaged files that were renamed when the server started."""

    problems: Annotated[
        list[str],
        Meta(examples=[["state.db was broken and is kept as state.db.corrupt-1763660592"]]),
    ]
    last_clean: Annotated[
        dict[str, Any] | None,
        Meta(
            description="the last cleaning-up, null: none yet",
            examples=[{"status": "ok", "scanned": 12, "deleted": 3, "at_s": 1763660592.0}],
        ),
    ]


class CleanOrder(msgspec.Struct, kw_only=True):
    """Limits for this run; omitted ones are as in the settings."""

    dry_run: bool = True
    retention_days: Annotated[int, Meta(ge=-1, le=100_000, examples=[30])] | None = None
    max_gb: Annotated[float, Meta(ge=-1, le=1e9, examples=[50.0])] | None = None


def routes(runtime: GatewayRuntime) -> Router:
    stores = runtime.stores
    maintenance, state = stores.maintenance, stores.state
    router = admin_router()

    @router.get("/audit")
    async def audit(limit: Annotated[int, Meta(ge=1, le=1000)] = 100) -> Audit:
        """The audit log."""
        entries = await state.audit(limit)
        return Audit(entries=[filled(AuditLine, each, at=iso(each.at_s)) for each in entries])

    @router.get("/state", name="state")
    async def stored() -> StateReport:
        """Damaged files, and the last clean-up of recordings."""
        await asyncio.to_thread(stores.presets.list)  # their problems are those of now
        return StateReport(
            problems=[*state.problems, *stores.voices.problems, *stores.presets.problems],
            last_clean=await state.fact("retention.last"),
        )

    @router.post("/clean")
    async def clean(order: CleanOrder) -> CleanReport:
        """Delete recordings by age and size; by default only list those that would be deleted.
        Running and pinned ones stay."""
        return await maintenance.clean(
            dry_run=order.dry_run, retention_days=order.retention_days, max_gb=order.max_gb
        )

    return router


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


def operator_routes(runtime: GatewayRuntime, recent: logs.Recent) -> Router:
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
    async def restart(worker_id: str, order: RestartOrder | None = None) -> Success:
        """End a worker and the sessions that cannot move; its executor restarts it."""
        worker = known(worker_id)
        worker_pool.drain(worker, True)
        await asyncio.wait({moving.begin(worker)}, timeout=MOVE_S)
        worker_control.restart(worker, (order or RestartOrder()).grace_s)
        return Success()

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
