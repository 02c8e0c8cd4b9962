"""`/api/admin/keys`: keys for clients. `/api/token`: short-lived tokens for browsers."""

from __future__ import annotations

import csv
import io
import secrets
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from parley.errors import Unauthorized
from parley.gateway.authenticator import (
    COOKIE,
    SESSION_S,
    hash_key,
    make_key,
)
from parley.gateway.forward_auth import USER_PREFIX
from parley.gateway.http.admin import admin_router
from parley.gateway.http.bodies import JSON, Success, Time, filled
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.state import Key, Role
from parley.recording.timeline import iso


class KeyInfo(msgspec.Struct, kw_only=True):
    """A key, without the key itself."""

    id: Annotated[str, Meta(examples=["k_0123456789ab"])]
    name: Annotated[str, Meta(examples=["kiosk in the hall"])]
    created_at: Time
    last_used_at: Time | None
    revoked_at: str | None
    max_sessions: Annotated[int, Meta(examples=[8])]
    per_minute: Annotated[int, Meta(examples=[120])]
    role: Role = "talk"
    expires_at: Annotated[str | None, Meta(examples=["2027-01-01T00:00:00.000+00:00"])] = None
    old_key_until: Annotated[
        str | None,
        Meta(
            description="until when the key before the last rotation works",
            examples=["2026-11-20T18:43:12.000+00:00"],
        ),
    ] = None
    minutes_per_day: Annotated[int | None, Meta(examples=[60])] = None
    tokens_per_day: Annotated[int | None, Meta(examples=[100000])] = None
    minutes_today: Annotated[float, Meta(examples=[12.5])] = 0.0
    tokens_today: Annotated[int, Meta(examples=[18200])] = 0


class UsageOfKey(msgspec.Struct, kw_only=True):
    """Usage of one key on one day (UTC)."""

    key_id: Annotated[str, Meta(examples=["k_0123456789ab"])]
    name: Annotated[str, Meta(examples=["kiosk in the hall"])]
    day: Annotated[str, Meta(examples=["2026-11-20"])]
    sessions: Annotated[int, Meta(examples=[14])]
    minutes: Annotated[float, Meta(examples=[41.3])]
    tokens: Annotated[int, Meta(description="generated, text and speech")]


class UsageReport(msgspec.Struct, kw_only=True):
    """Usage by day, oldest first."""

    usage: list[UsageOfKey]


class KeyList(msgspec.Struct, kw_only=True):
    """Valid keys, oldest first."""

    keys: list[KeyInfo]


Days = Annotated[float, Meta(gt=0, le=36_500)]
Minutes = Annotated[int, Meta(ge=1, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class NewKey(msgspec.Struct, kw_only=True):
    """Name, role and limits of a new key."""

    name: Annotated[str, Meta(min_length=1, max_length=60, examples=["kiosk in the hall"])]
    max_sessions: Annotated[
        int, Meta(ge=1, le=100_000, description="sessions and tickets at a time")
    ] = 8
    per_minute: Annotated[
        int, Meta(ge=1, le=1_000_000, description="requests and new sessions")
    ] = 120
    role: Annotated[
        Role, Meta(description="operate: also look after the server; admin: everything")
    ] = "talk"
    expires_in_days: Annotated[Days | None, Meta(description="null: never")] = None
    minutes_per_day: Annotated[Minutes | None, Meta(description="of sessions")] = None
    tokens_per_day: Annotated[Tokens | None, Meta(description="generated")] = None

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise ValueError("name must be printable text")
        self.name = self.name.strip()


class Rotation(msgspec.Struct, kw_only=True):
    """Time for which the old key remains valid."""

    overlap_s: Annotated[
        float,
        Meta(
            ge=0,
            le=2_592_000,
            description="seconds for which the old key works, too; 0: it stops immediately",
        ),
    ] = 3600.0


class MadeKey(KeyInfo, kw_only=True):
    """The new key, which is shown only this once."""

    key: Annotated[str, Meta(examples=["pk_…"])]


class Token(msgspec.Struct, kw_only=True):
    """A token that opens sessions for a while: as a bearer token, as `?token=`, or by the cookie
    set with it."""

    token: Annotated[str, Meta(examples=["st_…"])]
    expires_in_s: Annotated[float, Meta(examples=[900.0])]


def routes(runtime: GatewayRuntime) -> Router:
    access, clock, gateway = runtime.access, runtime.clock, runtime.settings.gateway
    admission, authenticator = access.admission, access.authenticator
    maintenance, state = runtime.stores.maintenance, runtime.stores.state
    router = Router(tag="keys")
    admin = admin_router("/keys", tag="keys", errors=(404,))

    def describe(key: Key) -> KeyInfo:
        used = access.usage.today(key.id)
        return filled(
            KeyInfo,
            key,
            created_at=iso(key.created_s),
            last_used_at=None if key.last_used_s is None else iso(key.last_used_s),
            revoked_at=None if key.revoked_s is None else iso(key.revoked_s),
            expires_at=None if key.expires_s is None else iso(key.expires_s),
            old_key_until=None if key.old_until_s is None else iso(key.old_until_s),
            minutes_today=round(used.seconds / 60, 2),
            tokens_today=used.tokens,
        )

    @admin.get("")
    async def keys() -> KeyList:
        """Valid keys."""
        await maintenance.save()
        return KeyList(keys=[describe(key) for key in await state.keys() if key.revoked_s is None])

    async def report(days: int, key_id: str | None = None) -> list[UsageOfKey]:
        await maintenance.save()
        since = datetime.fromtimestamp(clock.time() - 86_400 * (days - 1), UTC).date().isoformat()
        names = {key.id: key.name for key in await state.keys()}
        return [
            filled(
                UsageOfKey,
                row,
                name=names.get(row.key_id) or row.key_id.removeprefix(USER_PREFIX),
                minutes=round(row.seconds / 60, 2),
            )
            for row in await state.usage(since, key_id)
        ]

    @admin.get(
        "/usage",
        answer={
            "content": {
                JSON: {"schema": UsageReport},
                "text/csv": {"schema": {"type": "string"}},
            }
        },
    )
    async def used(
        days: Annotated[int, Meta(ge=1, le=3660)] = 31,
        format: Literal["json", "csv"] = "json",
    ) -> UsageReport | Response:
        """Usage of all keys by day, with that of running sessions; also as CSV."""
        rows = await report(days)
        return UsageReport(usage=rows) if format == "json" else as_csv(rows)

    @router.get("/api/usage")
    async def own(who: Requester, days: Annotated[int, Meta(ge=1, le=3660)] = 31) -> UsageReport:
        """Usage of the caller's own key by day."""
        if who.key_id is None:
            raise Unauthorized("Send a key: this is the usage of one key.")
        return UsageReport(usage=await report(days, who.key_id))

    @admin.post("", status=201)
    async def make(new: NewKey) -> MadeKey:
        """Create a key. Only its hash is stored: a lost key cannot be shown again."""
        secret = make_key()
        now_s, given = clock.time(), msgspec.structs.asdict(new)
        days = given.pop("expires_in_days")
        key = Key(
            id=f"k_{secrets.token_hex(6)}",
            hash=hash_key(secret),
            created_s=now_s,
            last_used_s=None,
            revoked_s=None,
            expires_s=None if days is None else now_s + 86_400 * days,
            **given,
        )
        await state.add_key(key)
        await maintenance.load_keys()
        return MadeKey(**msgspec.structs.asdict(describe(key)), key=secret)

    async def find(key_id: str) -> Key:
        """A key that is not revoked."""
        for key in await state.keys():
            if key.id == key_id and key.revoked_s is None:
                return key
        raise HTTPException(404, f"There is no key {key_id!r}.")

    @admin.post("/{key_id}/rotate")
    async def rotate(key_id: str, rotation: Rotation) -> MadeKey:
        """Replace a key; its id, limits, usage, voices and recordings are kept. The old key works
        until the end of the overlap, so that programs can change to the new one; a key that was
        replaced earlier stops working immediately."""
        await find(key_id)
        secret = make_key()
        await state.rotate_key(key_id, hash_key(secret), clock.time() + rotation.overlap_s)
        await maintenance.load_keys()
        return MadeKey(**msgspec.structs.asdict(describe(await find(key_id))), key=secret)

    @admin.delete("/{key_id}")
    async def revoke(key_id: str) -> Success:
        """Revoke a key immediately; running sessions continue."""
        await find(key_id)
        await state.revoke_key(key_id, clock.time())
        await maintenance.load_keys()
        return Success()

    @router.post("/api/token", answer=Token, errors=(403,))
    async def token(request: Request, who: Requester) -> Response:
        """A short-lived token for a browser, in exchange for a key."""
        admission.check_origin(request.headers)
        if who.is_anonymous:
            raise Unauthorized("A key is required.")
        made, lasts_s = authenticator.session_token(who.caller), SESSION_S
        body = msgspec.json.encode(Token(token=made, expires_in_s=lasts_s))
        response = Response(body, media_type=JSON)
        response.set_cookie(
            COOKIE,
            made,
            max_age=round(lasts_s),
            httponly=True,
            samesite="strict",
            secure=not gateway.http or admission.is_encrypted(request.headers),
        )
        return response

    router.routes.extend(admin.routes)
    return router


def as_csv(rows: list[UsageOfKey]) -> Response:
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(UsageOfKey.__struct_fields__)
    for row in rows:
        values = msgspec.structs.asdict(row)
        if values["name"].startswith(("=", "+", "-", "@", "\t", "\r")):
            # A spreadsheet would interpret it as a formula.
            values["name"] = "'" + values["name"]
        table.writerow(values.values())
    return Response(
        out.getvalue(),
        media_type="text/csv",
        headers={"content-disposition": 'attachment; filename="usage.csv"'},
    )
