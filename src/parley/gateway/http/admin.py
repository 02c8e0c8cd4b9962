"""Routes for admins only, and `/api/admin`: the audit log and deleting old recordings."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request, Security
from pydantic import BaseModel, ConfigDict, Field

from parley import logs
from parley.gateway.http.errors import problems
from parley.gateway.http.requester import Who
from parley.gateway.http.routing import Router
from parley.gateway.http.schemes import ADMIN_TOKEN, BEARER
from parley.gateway.http.status import iso
from parley.gateway.maintenance import Maintenance
from parley.gateway.state import State
from parley.library.presets import Presets
from parley.library.voices import VoiceLibrary

log = logs.get(__name__)


def _only(*, also_operators: bool) -> Any:
    async def check(
        request: Request,
        who: Who,
        # For the document; `Admins` reads the headers.
        _token: Annotated[object, Security(ADMIN_TOKEN)],
        _bearer: Annotated[object, Security(BEARER)],
    ) -> None:
        who.check_role(also_operators=also_operators)
        # `AuthMiddleware` writes the audit entry, with the answer's status.
        request.state.is_audited = True
        log.info("admin", method=request.method, path=request.url.path, address=who.peer)

    return Depends(check)


ADMINS_ONLY: Final = _only(also_operators=False)
"""Dependency of a route that only admins may call; its calls are audited."""
OPERATORS_ONLY: Final = _only(also_operators=True)
"""The same, also for keys with the role `operate`."""


def admin_router(
    *statuses: int, path: str = "", tag: str = "admin", only: Any = ADMINS_ONLY
) -> Router:
    """Routes below `/api/admin`, all of them for admins; `statuses`: of their other errors."""
    return Router(
        prefix=f"/api/admin{path}",
        tags=[tag],
        dependencies=[only],
        responses=problems(401, *statuses),
    )


class AuditLine(BaseModel):
    """One action of an admin."""

    at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    address: str = Field(examples=["127.0.0.1"])
    who: str = Field(
        description="the id of a key or of a user that a proxy has signed in; `admin`: the "
        "holder of the admin token; `local`: a caller on this machine, without a token",
        examples=["k_0123456789ab"],
    )
    method: str = Field(examples=["PUT"])
    path: str = Field(examples=["/api/admin/apps/omni"])
    status: int = Field(examples=[200])


class Audit(BaseModel):
    """Newest first."""

    entries: list[AuditLine]


class StateReport(BaseModel):
    """Files that were found broken, and set aside, when the server started."""

    problems: list[str] = Field(
        examples=[["state.db was broken and is kept as state.db.corrupt-1763660592"]]
    )
    last_clean: dict[str, Any] | None = Field(
        description="the last cleaning-up, null: none yet",
        examples=[{"status": "ok", "scanned": 12, "deleted": 3, "at_s": 1763660592.0}],
    )


class CleanOrder(BaseModel):
    """Limits for this run; those that are omitted are as set."""

    model_config = ConfigDict(strict=True)

    dry_run: bool = True
    retention_days: int | None = Field(None, ge=-1, le=100_000, examples=[30])
    max_gb: float | None = Field(None, ge=-1, le=1e9, allow_inf_nan=False, examples=[50.0])


class RemovedRecording(BaseModel):
    """A deleted recording, and why: expired, capacity or broken."""

    session_id: str = Field(examples=["20251001_090000_omni_0123456789abcdef01234567"])
    reason: str = Field(examples=["expired"])


class CleanReport(BaseModel):
    """What was examined and deleted; with `dry_run`, what would be deleted."""

    status: str = Field(examples=["ok"])
    scanned: int = Field(examples=[12])
    deleted: int = Field(examples=[1])
    deleted_expired: int = Field(examples=[1])
    deleted_capacity: int = Field(examples=[0])
    deleted_broken: int = Field(examples=[0])
    remaining: int = Field(examples=[11])
    remaining_size_mb: float = Field(examples=[240.5])
    errors: int = Field(examples=[0])
    victims: list[RemovedRecording]


def routes(
    *,
    maintenance: Maintenance,
    presets: Presets,
    state: State,
    voices: VoiceLibrary,
) -> Router:
    router = admin_router(422)

    @router.get("/audit")
    async def audit(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Audit:
        """The audit log."""
        return Audit(
            entries=[
                AuditLine(
                    at=iso(entry.at_s),
                    address=entry.address,
                    who=entry.who,
                    method=entry.method,
                    path=entry.path,
                    status=entry.status,
                )
                for entry in await state.audit(limit)
            ]
        )

    @router.get("/state", name="state")
    async def stored() -> StateReport:
        """Stored files that were found broken, and the last cleaning-up of recordings."""
        return StateReport(
            problems=[*state.problems, *voices.problems, *presets.problems],
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
