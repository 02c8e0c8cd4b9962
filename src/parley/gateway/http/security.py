"""What holds for every HTTP exchange: an id, bodies of bounded size that fit into the memory for
them, and headers that keep pages safe."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley import logs
from parley.errors import ServiceUnavailable
from parley.gateway.admission import Admission
from parley.gateway.http import absent
from parley.gateway.http.errors import REQUEST_ID, refusal
from parley.transport import Budget

PAGE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; media-src 'self' blob: data:; "
    "img-src 'self' blob: data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
ANSWER_HEAD = ("/static/", "/api/sessions/")
"""Routes that answer HEAD themselves, without reading the file."""
DEFAULT_BODY_BYTES = 64 << 10
"""So much is parsed on the event loop, and held without being counted."""


@dataclass(frozen=True, slots=True)
class SecurityParts:
    """The parts of the running gateway that the middleware uses."""

    admission: Admission
    budget: Budget


class SecurityMiddleware:
    """ASGI middleware.

    Args:
        find_parts: called once the server runs.
        body_limits: path, with `*` for any part, → bytes, where the default does not do.
        spooled: those of these paths whose bodies go to the disk while they are read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        find_parts: Callable[[], SecurityParts],
        body_limits: Mapping[str, int],
        spooled: Collection[str] = (),
    ) -> None:
        self._app = app
        self._find_parts = find_parts
        self._body_limits = body_limits
        self._spooled = spooled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(16)}"
        scope.setdefault("state", {})["request_id"] = request_id
        with logs.bind_request(request_id):
            await self._exchange(scope, receive, send, request_id)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        path = scope["path"]
        if scope["method"] == "HEAD" and not path.startswith(ANSWER_HEAD):
            # The routes answer as to GET; uvicorn, which keeps the scope as it came, sends no body
            # (RFC 9110, 9.3.2).
            scope = {**scope, "method": "GET"}
        limit = next(
            (size for pattern, size in self._body_limits.items() if fnmatchcase(path, pattern)),
            DEFAULT_BODY_BYTES,
        )
        headers = Headers(scope=scope)
        too_large = f"Request body exceeds {shown_size(limit)}."
        length = headers.get("content-length", "0")
        received = claimed = 0
        parts = self._find_parts()
        peer = scope["client"][0] if scope.get("client") else None
        owner = parts.admission.address_of(peer, headers)
        is_held = not any(fnmatchcase(path, pattern) for pattern in self._spooled)

        async def counted() -> Message:
            nonlocal received, claimed
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            if received > limit:
                raise HTTPException(413, too_large)
            unclaimed = received - claimed
            if is_held and unclaimed > DEFAULT_BODY_BYTES:
                if not parts.budget.take(unclaimed, owner):
                    raise ServiceUnavailable("Other large requests fill the memory for them.")
                claimed += unclaimed
            return message

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer[REQUEST_ID] = request_id
                answer.setdefault("x-content-type-options", "nosniff")
                answer.setdefault("referrer-policy", "no-referrer")
                is_page = answer.get("content-type", "").startswith("text/html")
                if is_page or path.startswith("/static/"):
                    # Browsers ask whether it changed; else an update would meet old scripts.
                    answer.setdefault("cache-control", "no-cache")
                if is_page:
                    answer.setdefault("content-security-policy", PAGE_POLICY)
                if path.startswith("/static/"):
                    let_pages_read(answer, headers.get("origin"), parts.admission)
            await send(message)

        if not length.isdigit() or int(length) > limit:
            answer = refusal(path, 413, too_large)
            if absent.has_hint(path):
                sentence = absent.sentence(scope["method"], path)
                answer = refusal(path, 404, sentence, "unknown_url")
            await answer(scope, receive, guarded)
            return
        try:
            await self._app(scope, counted, guarded)
        finally:
            parts.budget.give(claimed, owner)


def shown_size(size_bytes: int) -> str:
    """A size for people: 64 KiB, 25 MiB."""
    unit, name = (1 << 20, "MiB") if size_bytes >= 1 << 20 else (1 << 10, "KiB")
    return f"{size_bytes / unit:.3g} {name}"


def let_pages_read(answer: MutableHeaders, origin: str | None, admission: Admission) -> None:
    """Scripts, styles and sounds of ours are readable by pages of the origins that may also open
    sessions (`security.allowed_origins`), so that they can run the JavaScript client."""
    if origin is None or not admission.lists_origin(origin):
        return
    answer["access-control-allow-origin"] = origin
    answer.add_vary_header("origin")
