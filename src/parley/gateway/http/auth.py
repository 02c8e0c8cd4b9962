"""Middleware of every HTTP exchange: checks tokens, counts keys, writes the audit log.

An invalid token is refused on every path, pages included, so that the owner of a revoked key
notices it.

WebSockets are checked before they are accepted: the host name, the page's origin, the worker's
secret, a program's key. Pages cannot see why an upgrade was refused, so their keys are refused on
the open socket, in the dialect's words, before anything is read.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_plus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley import logs
from parley.clock import Clock
from parley.errors import ParleyError, Unauthorized
from parley.gateway.admins import Admins
from parley.gateway.admission import Admission
from parley.gateway.authenticator import SHARE_PREFIX, Authenticator, who
from parley.gateway.http.errors import OPENAI_PREFIX, refusal
from parley.gateway.http.requester import Requester
from parley.gateway.metrics import Metrics
from parley.gateway.state import AuditEntry, State
from parley.media import decoder
from parley.protocol.control import CONTROL_PATH, VOICE_PATH

OPEN_PATHS: Final = ("/", "/health", "/ready", "/docs", "/openapi.json", "/api/token")
OPEN_FOLDERS: Final = ("/static/", "/s/", f"/api/sessions/{SHARE_PREFIX}")
"""What is there without a key on a server that needs one: pages, and what share links open."""

PAGES: Final = frozenset(
    {
        *("/explore", "/turnbased", "/half_duplex", "/omni", "/audio_duplex", "/realtime"),
        *("/omni.html", "/audio_duplex.html"),
        *("/mobile", "/mobile/", "/mobile-omni", "/mobile-omni/"),
        *("/recordings", "/privacy", "/about", "/components", "/playground", "/api"),
        *("/chat", "/voice", "/call", "/talk", "/video", "/duplex", "/protocol"),
    }
)
QUIET_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
"""Asked for by machines every few seconds."""
SHARE_TOKEN: Final = re.compile(rf"{SHARE_PREFIX}[A-Za-z0-9_=-]+")
TOKEN_FIELD: Final = re.compile(rb"(?:^|&)token=([^&]+)")
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class AuthParts:
    """The parts of the running gateway that the middleware uses."""

    admission: Admission
    admins: Admins
    authenticator: Authenticator
    clock: Clock
    metrics: Metrics
    state: State


class AuthMiddleware:
    """ASGI middleware, inside `SecurityMiddleware` and outside the routes.

    Args:
        find_parts: called once the server runs.
        logs_access: whether each exchange gets a line in the log.
    """

    def __init__(
        self, app: ASGIApp, *, find_parts: Callable[[], AuthParts], logs_access: bool = False
    ) -> None:
        self._app = app
        self._find_parts = find_parts
        self._logs_access = logs_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        parts = self._find_parts()
        is_socket = scope["type"] == "websocket"
        try:
            if is_socket:
                self._check_socket(scope, parts)
            else:
                self._check(scope, parts)
        except ParleyError as error:
            parts.metrics.error(error.code)
            # The realtime dialect of the requirement texts is below `/v1/`, too.
            path = "" if is_socket else scope["path"]
            refused = refusal(
                path,
                error.http_status,
                str(error),
                error.code,
                retry_after_s=error.retry_after_s,
            )
            await refused(scope, receive, send)
            return
        if is_socket:
            await self._app(scope, receive, send)
            return
        status, began_s = 0, parts.clock.monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["path"].startswith(OPENAI_PREFIX):
                    took_ms = round(1000 * (parts.clock.monotonic() - began_s))
                    MutableHeaders(scope=message)["openai-processing-ms"] = str(took_ms)
                # First, so that a client that has its answer finds it in the audit log.
                await _note(scope, parts, status)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if not status:
                await _note(scope, parts, 500)
            if self._logs_access and scope["path"] not in QUIET_PATHS:
                _log_access(scope, parts, status or 500, parts.clock.monotonic() - began_s)

    def _check(self, scope: Scope, parts: AuthParts) -> None:
        headers = Headers(scope=scope)
        path = scope["path"]
        if path == VOICE_PATH:
            # Workers may know us by any name their operator chose.
            parts.admission.check_worker(_peer(scope), headers)
            return
        if path not in ("/health", "/ready"):
            parts.admission.check_host(headers)
        peer = _peer(scope)
        requester = Requester(
            caller=parts.authenticator.identify(headers, _token(scope), peer=peer),
            address=parts.admission.address_of(peer, headers),
            peer=peer,
            headers=headers,
            admins=parts.admins,
            authenticator=parts.authenticator,
        )
        scope.setdefault("state", {})["requester"] = requester
        must_show = parts.authenticator.needs_key and not is_open(path)
        # Admins without a token are known by where they sit.
        if must_show and requester.is_anonymous and not requester.is_admin:
            raise Unauthorized("A key is required.")
        decoder.owner.set(requester.network)
        parts.authenticator.count(requester.caller, None if is_open(path) else requester.address)

    def _check_socket(self, scope: Scope, parts: AuthParts) -> None:
        headers = Headers(scope=scope)
        if scope["path"] == CONTROL_PATH:
            # Workers may know us by any name their operator chose.
            parts.admission.check_worker(_peer(scope), headers)
            return
        parts.admission.check_host(headers)
        parts.admission.check_origin(headers)
        if "origin" in headers:
            return
        caller = parts.authenticator.identify(headers, _token(scope), peer=_peer(scope))
        if parts.authenticator.needs_key and caller.kind == "anonymous":
            raise Unauthorized("A key is required.")


def _token(scope: Scope) -> str | None:
    found = TOKEN_FIELD.search(scope.get("query_string", b""))
    return unquote_plus(found[1].decode("latin-1")) if found else None


def _peer(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None


def _log_access(scope: Scope, parts: AuthParts, status: int, took_s: float) -> None:
    requester: Requester | None = scope.get("state", {}).get("requester")
    key = None if requester is None else requester.key_id
    log.info(
        "request",
        method=scope["method"],
        # Whoever has a share link's token may look at what it shows.
        path=SHARE_TOKEN.sub(f"{SHARE_PREFIX}…", scope["path"]),
        status=status,
        took_ms=round(1000 * took_s, 1),
        client=parts.admission.address_of(_peer(scope), Headers(scope=scope)),
        **({"key": key} if key else {}),
    )


async def _note(scope: Scope, parts: AuthParts, status: int) -> None:
    """Write an audit entry for what an admin did, and not only read."""
    if not scope["state"].get("is_audited") or scope["method"] in READING:
        return
    requester: Requester = scope["state"]["requester"]
    entry = AuditEntry(
        at_s=parts.clock.time(),
        address=requester.address,
        who=who(requester.caller),
        method=scope["method"],
        path=scope["path"],
        status=status,
    )
    try:
        await parts.state.note(entry)
    except sqlite3.Error as error:
        # The action is done and logged; only its audit entry cannot be written.
        log.error("audit_entry_lost", path=entry.path, why=str(error))


def is_open(path: str) -> bool:
    """True if a path needs no key on a server that needs one."""
    return path in OPEN_PATHS or path in PAGES or path == "/admin" or path.startswith(OPEN_FOLDERS)
