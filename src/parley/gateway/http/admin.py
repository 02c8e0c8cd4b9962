"""`/api/admin`: the audit log and deleting old recordings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parley.gateway.http.bodies import Time, filled
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.state import Role
from parley.recording.timeline import iso


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


class RemovedRecording(msgspec.Struct, kw_only=True):
    """A deleted recording, and the reason: expired, capacity or broken."""

    session_id: Annotated[str, Meta(examples=["20251001_090000_omni_0123456789abcdef01234567"])]
    reason: Annotated[str, Meta(examples=["expired"])]


class CleanReport(msgspec.Struct, kw_only=True):
    """Numbers of examined and deleted recordings; with `dry_run`, those that would be deleted."""

    status: Annotated[str, Meta(examples=["ok"])]
    scanned: Annotated[int, Meta(examples=[12])]
    deleted: Annotated[int, Meta(examples=[1])]
    deleted_expired: Annotated[int, Meta(examples=[1])]
    deleted_capacity: Annotated[int, Meta(examples=[0])]
    deleted_broken: Annotated[int, Meta(examples=[0])]
    remaining: Annotated[int, Meta(examples=[11])]
    remaining_size_mb: Annotated[float, Meta(examples=[240.5])]
    errors: Annotated[int, Meta(examples=[0])]
    victims: list[RemovedRecording]


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
        return StateReport(
            problems=[*state.problems, *stores.voices.problems, *stores.presets.problems],
            last_clean=await state.fact("retention.last"),
        )

    @router.post("/clean")
    async def clean(order: CleanOrder) -> CleanReport:
        """Delete recordings by age and size; by default only list those that would be deleted.
        Running and pinned ones stay."""
        report = await maintenance.clean(
            dry_run=order.dry_run, retention_days=order.retention_days, max_gb=order.max_gb
        )
        values = report.as_dict()
        victims = values.pop("victims") or []
        return CleanReport(
            **values,
            victims=[RemovedRecording(session_id=one, reason=reason) for one, reason in victims],
        )

    return router
