"""Every HTTP exchange passes here: tokens are checked, keys counted, admin actions written down.

A token that is shown and not valid is refused on every path, pages included, so that nobody goes on
believing in a key that was revoked.
"""

from __future__ import annotations

import sqlite3
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley import logs
from parley.errors import ParleyError
from parley.gateway.access import SHARE_PREFIX
from parley.gateway.house import House
from parley.gateway.http.errors import problem
from parley.gateway.state import AuditEntry

OPEN_PATHS: Final = ("/", "/health", "/docs", "/openapi.json", "/api/token")
OPEN_FOLDERS: Final = ("/static/", "/docs/", "/s/", f"/api/sessions/{SHARE_PREFIX}")
"""What is there without a key on a server that needs one: pages, and what share links open."""

PAGES: Final = frozenset(
    {
        *("/turnbased", "/half_duplex", "/omni", "/audio_duplex", "/realtime"),
        *("/mobile", "/mobile/", "/mobile-omni", "/mobile-omni/"),
    }
)
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


log = logs.get(__name__)


class Gate:
    """ASGI middleware, inside the shield and outside the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        house: House = scope["app"].state.house
        try:
            self._check(scope, house)
        except ParleyError as error:
            house.metrics.error(error.code)
            await problem(error.http_status, str(error), error.code)(scope, receive, send)
            return
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            address = scope["state"].get("admin_address")
            if address is not None and scope["method"] not in READING:
                await _note(
                    house,
                    AuditEntry(house.clock.time(), address, scope["method"], scope["path"], status),
                )

    def _check(self, scope: Scope, house: House) -> None:
        headers = Headers(scope=scope)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        caller = house.access.identify(headers, next(iter(query.get("token", [])), None))
        scope.setdefault("state", {})["caller"] = caller
        path = scope["path"]
        if house.access.needs_key and caller.kind == "anonymous" and not is_open(path):
            peer = scope["client"][0] if scope.get("client") else None
            # Admins without a token are known by where they sit.
            house.door.check_admin(peer, headers)
        house.access.count(caller)


async def _note(house: House, entry: AuditEntry) -> None:
    try:
        await house.state.note(entry)
    except sqlite3.Error as error:
        # It is done, and the log knows of it; only the audit cannot be written at present.
        log.error("audit entry is lost", path=entry.path, why=str(error))


def is_open(path: str) -> bool:
    """Whether a path is there without a key on a server that needs one."""
    return path in OPEN_PATHS or path in PAGES or path == "/admin" or path.startswith(OPEN_FOLDERS)
