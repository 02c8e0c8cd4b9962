"""What holds for every HTTP exchange: bodies of bounded size, and headers that keep pages safe."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.gateway.http.errors import problem

PAGE_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; media-src 'self' blob: data:; "
    "img-src 'self' blob: data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
DEFAULT_BODY_BYTES = 1 << 20


class TooMuchBody(Exception):
    """A body grew beyond its limit while it was read."""


class Shield:
    """ASGI middleware. `body_limits`: path, with `*` for any part, → bytes, where the default does
    not do."""

    def __init__(self, app: ASGIApp, *, body_limits: Mapping[str, int]) -> None:
        self._app = app
        self._body_limits = body_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        limit = next(
            (size for pattern, size in self._body_limits.items() if fnmatchcase(path, pattern)),
            DEFAULT_BODY_BYTES,
        )
        refusal = problem(413, f"The body may have {limit} bytes.")
        length = Headers(scope=scope).get("content-length", "0")
        is_answered = False
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise TooMuchBody
            return message

        async def guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                headers = MutableHeaders(scope=message)
                headers.setdefault("x-content-type-options", "nosniff")
                headers.setdefault("referrer-policy", "no-referrer")
                is_page = headers.get("content-type", "").startswith("text/html")
                if is_page or path.startswith("/static/"):
                    # Browsers ask whether it changed; else an update would meet old scripts.
                    headers.setdefault("cache-control", "no-cache")
                if is_page:
                    headers.setdefault("content-security-policy", PAGE_POLICY)
            await send(message)

        if not length.isdigit() or int(length) > limit:
            await refusal(scope, receive, guarded)
            return
        try:
            await self._app(scope, counted, guarded)
        except TooMuchBody:
            if not is_answered:
                await refusal(scope, receive, guarded)
