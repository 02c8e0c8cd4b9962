"""Header fields that keep pages safe, and those that say what caches may keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import MutableHeaders

from parley.gateway.admission import Admission

Field = tuple[bytes, bytes]

PAGE_POLICY: Final = (
    b"default-src 'self'; connect-src 'self' ws: wss:; media-src 'self' blob: data:; "
    b"img-src 'self' blob: data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    b"form-action 'self'; frame-ancestors 'none'"
)
ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
DATA: Final = ("/api/", "/v1/")
"""Answers here belong to one client (recordings, tokens, voices); caches must not store them."""


def completed(path: str, own: Iterable[Field], more: Iterable[Field]) -> list[Field]:
    """The header fields of an answer: its own, and of the others those that it lacks.

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
        # Browsers ask whether it changed; else an update would meet old scripts.
        others.append((b"cache-control", b"no-cache"))
    elif path.startswith(DATA):
        others.append((b"cache-control", b"no-store"))
    fields += [field for field in others if field[0] not in present]
    return fields


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
