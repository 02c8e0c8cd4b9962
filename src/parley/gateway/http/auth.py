"""Checks of every HTTP request and WebSocket: tokens, keys' limits, host and origin; the audit log.

An invalid token is refused on every path, pages included, so that the owner of a revoked key
notices it.

WebSockets are checked before they are accepted: the host name, the page's origin, the worker's
secret, a program's key. Pages cannot see why an upgrade was refused, so their keys are refused on
the open socket, with the dialect's messages, before anything is read.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Final
from urllib.parse import unquote_plus

from starlette.types import Scope

from parley import logs
from parley.errors import Forbidden, Unauthorized
from parley.gateway.authenticator import SHARE_PREFIX, who
from parley.gateway.http import pages
from parley.gateway.http.requester import Requester, RequestHeaders
from parley.gateway.parts import AccessControl
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.state import AuditEntry
from parley.media import decoder
from parley.protocol.control import CONTROL_PATH, VOICE_PATH
from parley.transport.peer import Peer

OPEN_PATHS: Final = ("/", "/health", "/ready", "/openapi.json", "/api/token")
OPEN_FOLDERS: Final = ("/static/", "/s/", f"/api/sessions/{SHARE_PREFIX}")
"""Paths that need no key on a server with keys: pages, and those for share links."""

TALKS: Final = re.compile(r"/v1/realtime/.*|/api/sessions/[^/]+/end")
"""Routes that a client secret opens, which may be in a stranger's browser, like every WebSocket. A
page that is closed ends its call with the second, so that the slot is free."""

PAGES: Final = frozenset(each.rstrip("/") for each in (*pages.PAGES, *pages.OTHER_NAMES))
QUIET_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines request every few seconds."""
SHARE_TOKEN: Final = re.compile(rf"{SHARE_PREFIX}[A-Za-z0-9_=-]+")
TOKEN_FIELD: Final = re.compile(rb"(?:^|&)token=([^&]+)")
CALLER: Final = "parley.caller"
"""In the state of a WebSocket: who opened it, or the error with which its route refuses it."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


log = logs.get(__name__)


def check(scope: Scope, access: AccessControl) -> None:
    """Identify the sender of a request, for routes, and count the request.

    Raises:
        ParleyError: it is not allowed.
    """
    headers, path = scope["state"]["headers"], scope["path"]
    peer = Peer.of(scope, headers)
    if path == VOICE_PATH:
        # Workers may know us by any name their operator chose.
        access.admission.check_worker(peer, headers)
        return
    if path not in ("/health", "/ready"):
        access.admission.check_host(headers)
    requester = Requester(
        caller=access.authenticator.identify(headers, _token(scope), peer=peer.address),
        address=access.admission.address_of(peer.address, headers),
        peer=peer,
        headers=headers,
        access=access,
    )
    scope["state"]["requester"] = requester
    must_show = access.authenticator.needs_key and not is_open(path)
    # Admins without a token are identified by their address.
    if must_show and requester.is_anonymous and not requester.is_admin:
        raise Unauthorized("A key is required.")
    if requester.caller.only_talks and not (TALKS.fullmatch(path) or is_open(path)):
        raise Forbidden("A client secret opens realtime sessions only. Use a key here.")
    decoder.owner.set(requester.owner)
    access.authenticator.count(requester.caller, None if is_open(path) else requester.address)


def check_socket(scope: Scope, access: AccessControl) -> None:
    """Check a WebSocket before a route sees it.

    Raises:
        ParleyError: it is not allowed.
    """
    headers = RequestHeaders(scope)
    if scope["path"] == CONTROL_PATH:
        # Workers may know us by any name their operator chose.
        access.admission.check_worker(Peer.of(scope, headers), headers)
        return
    access.admission.check_host(headers)
    access.admission.check_origin(headers)
    try:
        caller = access.authenticator.identify(headers, _token(scope), peer=peer_of(scope))
        if access.authenticator.needs_key and caller.kind == "anonymous":
            raise Unauthorized("A key is required.")
        scope["state"][CALLER] = caller
    except Unauthorized as error:
        # Sockets as in browsers, which Node has, too, hide the status of a refused upgrade: their
        # routes refuse them with a message and a close code.
        if "origin" not in headers and headers.get("sec-fetch-mode") != "websocket":
            raise
        scope["state"][CALLER] = error


def _token(scope: Scope) -> str | None:
    found = TOKEN_FIELD.search(scope.get("query_string", b""))
    return unquote_plus(found[1].decode("latin-1")) if found else None


def peer_of(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None


def log_access(scope: Scope, access: AccessControl, status: int, took_s: float) -> None:
    requester: Requester | None = scope.get("state", {}).get("requester")
    key = None if requester is None else requester.key_id
    log.info(
        "request",
        method=scope["method"],
        # A share link's token allows access to its recording.
        path=SHARE_TOKEN.sub(f"{SHARE_PREFIX}…", scope["path"]),
        status=status,
        took_ms=round(1000 * took_s, 1),
        client=access.admission.address_of(peer_of(scope), scope["state"]["headers"]),
        **({"key": key} if key else {}),
    )


async def note(scope: Scope, runtime: GatewayRuntime, status: int) -> None:
    """Write an audit entry for an admin's action that was not just reading."""
    if not scope["state"].get("is_audited") or scope["method"] in READING:
        return
    requester: Requester = scope["state"]["requester"]
    entry = AuditEntry(
        at_s=runtime.clock.time(),
        address=requester.address,
        who=who(requester.caller),
        method=scope["method"],
        path=scope["path"],
        status=status,
    )
    try:
        await runtime.stores.state.note(entry)
    except sqlite3.Error as error:
        # The action is complete and logged; only its audit entry cannot be written.
        log.error("audit_entry_lost", path=entry.path, why=str(error))


def is_open(path: str) -> bool:
    """True if a path needs no key on a server that needs one."""
    return path in OPEN_PATHS or path.rstrip("/") in PAGES or path.startswith(OPEN_FOLDERS)
