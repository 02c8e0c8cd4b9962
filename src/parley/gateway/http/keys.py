"""`/api/admin/keys`: keys for clients. `/api/token`: short-lived tokens for browsers."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field, field_validator
from starlette.exceptions import HTTPException

from parley.errors import Unauthorized
from parley.gateway.access import COOKIE, Caller, hash_key, make_key
from parley.gateway.house import House
from parley.gateway.http.admin import admin_only
from parley.gateway.http.errors import problems
from parley.gateway.http.status import iso
from parley.gateway.state import Key


class KeyInfo(BaseModel):
    """A key, without the key itself."""

    id: str = Field(examples=["k_0123456789ab"])
    name: str = Field(examples=["kiosk in the hall"])
    created_at: str = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    last_used_at: str | None = Field(examples=["2026-11-20T17:43:12.000+00:00"])
    revoked_at: str | None
    max_sessions: int = Field(examples=[8])
    per_minute: int = Field(examples=[120])


class KeyList(BaseModel):
    """Keys that work, oldest first."""

    keys: list[KeyInfo]


class NewKey(BaseModel):
    """What a key is for, and how much may be done with it."""

    name: str = Field(min_length=1, max_length=60, examples=["kiosk in the hall"])
    max_sessions: int = Field(8, ge=1, le=100_000, description="sessions and tickets at once")
    per_minute: int = Field(120, ge=1, le=1_000_000, description="requests and new sessions")

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.strip() or not name.isprintable():
            raise ValueError("a name is printable text")
        return name.strip()


class MadeKey(KeyInfo):
    """The new key, the only time it is shown."""

    key: str = Field(examples=["pk_…"])


class Revoked(BaseModel):
    """It opens nothing any more."""

    success: bool = True


class Token(BaseModel):
    """Opens sessions for a while: as a bearer token, as `?token=`, or by the cookie set with it."""

    token: str = Field(examples=["st_…"])
    expires_in_s: float = Field(examples=[900.0])


def routes(house: House) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["keys"])
    admin = APIRouter(
        prefix="/api/admin/keys",
        dependencies=[Depends(admin_only(house))],
        responses=problems(401, 404, 422),
    )

    def describe(key: Key) -> KeyInfo:
        return KeyInfo(
            id=key.id,
            name=key.name,
            created_at=iso(key.created_s),
            last_used_at=None if key.last_used_s is None else iso(key.last_used_s),
            revoked_at=None if key.revoked_s is None else iso(key.revoked_s),
            max_sessions=key.max_sessions,
            per_minute=key.per_minute,
        )

    async def reload() -> None:
        seal = await house.state.secret("tokens", b"")
        house.access.fill(await house.state.keys(), seal)

    @admin.get("")
    async def keys() -> KeyList:
        """Keys that work."""
        await house.keeper.save()
        return KeyList(
            keys=[describe(key) for key in await house.state.keys() if key.revoked_s is None]
        )

    @admin.post("", status_code=201)
    async def make(new: NewKey) -> MadeKey:
        """Make a key. Only its hash is kept: whoever loses it needs another."""
        secret = make_key()
        key = Key(
            id=f"k_{secrets.token_hex(6)}",
            name=new.name,
            hash=hash_key(secret),
            created_s=house.clock.time(),
            last_used_s=None,
            revoked_s=None,
            max_sessions=new.max_sessions,
            per_minute=new.per_minute,
        )
        await house.state.add_key(key)
        await reload()
        return MadeKey(**describe(key).model_dump(), key=secret)

    @admin.delete("/{key_id}")
    async def revoke(key_id: str) -> Revoked:
        """Revoke a key at once; sessions that run go on."""
        if not any(key.id == key_id and key.revoked_s is None for key in await house.state.keys()):
            raise HTTPException(404, "No such key.")
        await house.state.revoke_key(key_id, house.clock.time())
        await reload()
        return Revoked()

    @router.post("/api/token", responses=problems(401, 403))
    async def token(request: Request, response: Response) -> Token:
        """A short-lived token for a browser, in exchange for a key."""
        house.door.check_origin(request.headers)
        caller: Caller = request.state.caller
        if caller.kind == "anonymous":
            raise Unauthorized("A key is required.")
        made, lasts_s = house.access.session_token(caller)
        response.set_cookie(
            COOKIE,
            made,
            max_age=round(lasts_s),
            httponly=True,
            samesite="strict",
            secure=not house.settings.gateway.http,
        )
        return Token(token=made, expires_in_s=lasts_s)

    router.include_router(admin)
    return router
