"""Errors of the REST API: `{"detail": …, "code": …}` without internals. Browsers that follow a
wrong link get a page instead.

Paths below `/v1/` are for OpenAI's clients: errors are OpenAI's error objects, and a full queue
returns 429 with `Retry-After`, after which these clients retry by themselves.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from parley import logs
from parley.errors import ParleyError, Unauthorized
from parley.gateway.acquisition import Departed
from parley.gateway.http import absent
from parley.gateway.http.files import WebFiles
from parley.gateway.metrics import Metrics
from parley.protocol.openai import code_of

log = logs.get(__name__)

OF_A_PROXY: Final = ("host_forbidden", "origin_forbidden", "upgrade_required")
"""Errors that a proxy may cause. They are logged: a page cannot read why its socket is refused."""

CLIENT_CLOSED_STATUS: Final = 499
"""The client left before its answer."""

CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    421: "host_forbidden",
    422: "invalid_request",
    429: "rate_limited",
    503: "service_unavailable",
    504: "timeout",
    507: "insufficient_storage",
}


class ErrorDetail(msgspec.Struct, kw_only=True):
    """Format of errors; `code` is stable, `detail` is for people."""

    detail: Annotated[str, Meta(examples=["Queue full (1000 requests)"])]
    code: Annotated[str, Meta(examples=["queue_full"])]


class OpenAIErrorBody(msgspec.Struct, kw_only=True):
    """An error; `code` is stable, `message` is for people."""

    message: Annotated[str, Meta(examples=["Queue full (1000 requests)"])]
    type: Annotated[str, Meta(examples=["rate_limit_error"])]
    param: Annotated[str | None, Meta(description="the field at fault")] = None
    code: Annotated[str | None, Meta(examples=["queue_full"])]


class OpenAIError(msgspec.Struct, kw_only=True):
    """Format of errors below `/v1/`."""

    error: OpenAIErrorBody


OPENAI_PREFIX: Final = "/v1/"
REQUEST_ID: Final = b"x-request-id"
"""Header of every response: SDKs show it as `_request_id`, and the log has it as `request_id`."""

RETRY_AFTER_S: Final[Mapping[int, int]] = {429: 15, 503: 10}
"""Default of `Retry-After` in seconds, by status."""


def openai_type(status: int) -> str:
    """The `type` of an OpenAI error object."""
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def refusal(
    path: str,
    status: int,
    detail: str,
    code: str | None = None,
    *,
    field: str | None = None,
    retry_after_s: int | None = None,
) -> JSONResponse:
    """An error in the format for the clients of `path`."""
    if not path.startswith(OPENAI_PREFIX):
        return problem(status, detail, code, retry_after_s=retry_after_s)
    code = code or CODES.get(status, "error")
    status = {422: 400}.get(status, 429 if code == "queue_full" else status)
    body = openai_error(status, detail, code, field)
    return JSONResponse(body, status, headers=retry_after(status, retry_after_s))


def openai_error(status: int, message: str, code: str, field: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's format; see `OpenAIError`."""
    kind = openai_type(status)
    return {"error": {"message": message, "type": kind, "param": field, "code": code_of(code)}}


def retry_after(status: int, retry_after_s: int | None) -> dict[str, str] | None:
    """The header that every 429 and 503 has."""
    if status not in RETRY_AFTER_S:
        return None
    return {"retry-after": str(retry_after_s or RETRY_AFTER_S[status])}


def problem(
    status: int,
    detail: str,
    code: str | None = None,
    *,
    retry_after_s: int | None = None,
    **more: Any,
) -> JSONResponse:
    """An error as a response; `more`: other fields of its body."""
    body = {"detail": detail, "code": code or CODES.get(status, "error"), **more}
    return JSONResponse(body, status, headers=retry_after(status, retry_after_s))


MISSING: Final = "404"
"""The page for unknown addresses."""
NOWHERE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>404</title></head>
<body>
<h1>There is no such page.</h1>
<p><a href="/">To the start page</a></p>
</body>
</html>
"""


def storage_status(error: Exception) -> int | None:
    """507 for a full disk, 503 for one that cannot be written now; None for other errors."""
    match error:
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return 507
        case OSError(errno=errno.EROFS | errno.EIO | errno.EACCES | errno.EPERM):
            return 503
        case sqlite3.Error():
            # The low byte is the primary result code; the rest has details.
            match getattr(error, "sqlite_errorcode", 0) & 0xFF:
                case sqlite3.SQLITE_FULL:
                    return 507
                case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
                    return 503
                case sqlite3.SQLITE_BUSY:  # another process writes, and does not finish
                    return 503
    return None


def _is_reader(request: Request) -> bool:
    """True if the request comes from a browser that followed a wrong link."""
    path = request.url.path
    is_data = path.startswith(("/api/", "/static/", "/v1/", "/ws/"))
    return not is_data and "text/html" in request.headers.get("accept", "")


class Failures:
    """Converts exceptions of routes to responses, and counts them.

    Args:
        files: the pages, one of which is for unknown addresses.
    """

    def __init__(self, metrics: Metrics, files: WebFiles | None) -> None:
        self._metrics = metrics
        self._files = files
        self._complaints = {code: logs.Complaints() for code in OF_A_PROXY}

    def answer(self, request: Request, error: Exception, *, is_there: bool = True) -> Response:
        """The response to a request that failed before its response started. `is_there`: True if
        its path has a route."""
        if isinstance(error, Unauthorized) and not is_there and _is_reader(request):
            # A person with a wrong link, who can do nothing about a key there.
            error = HTTPException(404)
        match error:
            case ParleyError():
                return self.refusal(request.url.path, error)
            case HTTPException():
                answer = self._answer_http(request, error)
                answer.headers.update(error.headers or {})
                return answer
            case ClientDisconnect() | Departed():
                # No client reads it; it is for the log.
                return Response(status_code=CLIENT_CLOSED_STATUS)
        status = storage_status(error)
        if status is not None:
            return self._answer_storage(request, error, status)
        self.report(request, error)
        detail = f"The server failed; its log has the reason under {_id_of(request)}."
        return refusal(request.url.path, 500, detail, "internal_error")

    def refusal(self, path: str, error: ParleyError) -> Response:
        """A refusal in the format for the clients of `path`."""
        self._metrics.error(error.code)
        self._complain(error.code, str(error))
        return refusal(
            path,
            error.http_status,
            str(error),
            error.code,
            field=getattr(error, "field", None),
            retry_after_s=error.retry_after_s,
        )

    def _complain(self, code: str, why: str) -> None:
        found = self._complaints.get(code)
        if found is not None and found.is_news(code, asyncio.get_running_loop().time()):
            log.warning(code, why=why)

    def report(self, request: Request, error: Exception) -> None:
        """Log and count an error of the server."""
        log.error(
            "request_failed",
            path=request.url.path,
            request_id=_id_of(request),
            exc_info=error,
        )
        self._metrics.error("internal_error")

    def _answer_http(self, request: Request, error: HTTPException) -> Response:
        path, detail = request.url.path, str(error.detail)
        if error.status_code == 404 and request.method == "GET" and absent.is_socket(path):
            self._complain("upgrade_required", absent.SOCKET)
            answer = refusal(path, 426, absent.SOCKET, "upgrade_required")
            answer.headers["upgrade"] = "websocket"
            return answer
        if error.status_code == 404 and _is_reader(request):
            if self._files is not None and self._files.has(MISSING):
                return self._files.page(MISSING, request.scope, 404)
            return HTMLResponse(NOWHERE, 404)
        # A path with an id contains unknown names.
        is_unknown = (error.status_code, detail) in (
            (404, "Not Found"),
            (405, "Method Not Allowed"),
        )
        route = absent.meant(path) or path
        if is_unknown and route.startswith(OPENAI_PREFIX):
            status = 404 if absent.has_hint(path) else error.status_code
            sentence = absent.sentence(request.method, path)
            return refusal(route, status, sentence, "unknown_url")
        return refusal(path, error.status_code, detail)

    def _answer_storage(self, request: Request, error: Exception, status: int) -> Response:
        """A full or failing disk is a temporary error of this server."""
        log.error("storage_failed", path=request.url.path, why=str(error))
        code = "insufficient_storage" if status == 507 else "storage_unavailable"
        self._metrics.error(code)
        sentence = "is full" if status == 507 else "cannot be written to at present"
        detail = f"The server's disk {sentence}; nothing was changed."
        return refusal(request.url.path, status, detail, code)


def _id_of(request: Request) -> str:
    return str(request.scope["state"]["request_id"])
