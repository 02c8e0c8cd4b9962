"""Header fields that protect pages, and those that control caching."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Scope

from parley.gateway.admission import Admission

Field = tuple[bytes, bytes]

PAGE_POLICY: Final = (
    b"default-src 'self'; connect-src 'self' ws: wss:; media-src 'self' blob: data:; "
    b"img-src 'self' blob: data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    b"form-action 'self'; frame-ancestors 'none'"
)
ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
DATA: Final = ("/api/", "/v1/")
"""Responses here belong to one client (recordings, tokens, voices); caches must not store them."""


def completed(path: str, own: Iterable[Field], more: Iterable[Field]) -> list[Field]:
    """The header fields of a response: its own, and the others that it lacks.

    Args:
        path: of the request.
        own: names are lower case.
        more: of this exchange.
    """
    fields = list(own)
    present = dict(fields)
    is_page = present.get(b"content-type", b"").startswith(b"text/html")
    others = [*more, *ALWAYS]
    if is_page:
        others.append((b"content-security-policy", PAGE_POLICY))
    if is_page or path.startswith("/static/"):
        # Browsers check if it has changed; otherwise, after an update, pages would use old scripts.
        others.append((b"cache-control", b"no-cache"))
    elif path.startswith(DATA):
        others.append((b"cache-control", b"no-store"))
    fields += [field for field in others if field[0] not in present]
    return fields


def shown_size(size_bytes: int) -> str:
    """A size for people: 64 KiB, 25 MiB."""
    unit, name = (1 << 20, "MiB") if size_bytes >= 1 << 20 else (1 << 10, "KiB")
    return f"{size_bytes / unit:.3g} {name}"


READABLE: Final = ("/static/", "/v1/")
"""Paths that pages of allowed origins (`security.allowed_origins`) may read, so that they can run
the JavaScript client, and OpenAI's."""
PREFLIGHT_S: Final = 600


def let_pages_read(answer: MutableHeaders, origin: str | None, admission: Admission) -> None:
    """Allow the requesting page to read a response below `READABLE`."""
    if origin is None or not admission.lists_origin(origin):
        return
    answer["access-control-allow-origin"] = origin
    answer["access-control-expose-headers"] = "x-request-id, retry-after"
    answer.add_vary_header("origin")


def preflight(scope: Scope, headers: Headers, admission: Admission) -> Response | None:
    """The response to a CORS preflight request; None for any other request."""
    method = headers.get("access-control-request-method")
    if method is None or scope["method"] != "OPTIONS" or not scope["path"].startswith(READABLE):
        return None
    if not admission.lists_origin(headers.get("origin", "")):
        return None
    allowed = {
        "access-control-allow-methods": method,
        "access-control-allow-headers": headers.get("access-control-request-headers", ""),
        "access-control-max-age": str(PREFLIGHT_S),
    }
    return Response(status_code=204, headers=allowed)
