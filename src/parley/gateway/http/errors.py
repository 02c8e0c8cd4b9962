"""Errors of the REST side: `{"detail": …, "code": …}`, and nothing about our insides. A person who
followed a wrong link reads words instead."""

from __future__ import annotations

import secrets
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from parley import logs
from parley.errors import ParleyError
from parley.gateway.metrics import Metrics

log = logs.get(__name__)

CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    504: "timeout",
}


class Problem(BaseModel):
    """What every error looks like; `code` is stable, `detail` is for people."""

    detail: str
    code: str

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"detail": "Queue full (1000 requests)", "code": "queue_full"}
        }
    )


def shown(example: Any, media_type: str = "application/json") -> dict[str, Any]:
    """The `content` of an answer without a model: what it looks like."""
    return {"content": {media_type: {"example": example}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may fail so."""
    return {status: {"model": Problem} for status in statuses}


def problem(status: int, detail: str, code: str | None = None, **more: Any) -> JSONResponse:
    """An error as a response."""
    body = {"detail": detail, "code": code or CODES.get(status, "error"), **more}
    return JSONResponse(body, status)


NOWHERE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>404</title></head>
<body>
<h1>There is no such page.</h1>
<p><a href="/">To the start page</a></p>
<h1 lang="zh">没有这个页面。</h1>
<p lang="zh"><a href="/">返回首页</a></p>
</body>
</html>
"""


def _is_reader(request: Request) -> bool:
    """Whether a person asks, who has followed a wrong link."""
    path = request.url.path
    is_data = path.startswith(("/api/", "/static/", "/v1/", "/ws/"))
    return not is_data and "text/html" in request.headers.get("accept", "")


def install(app: FastAPI) -> None:
    """Answer every error in our shape. Before the application starts; its house counts them."""

    def count(code: str) -> None:
        metrics: Metrics = app.state.house.metrics
        metrics.error(code)

    async def ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ParleyError)
        count(error.code)
        return problem(error.http_status, str(error), error.code)

    async def theirs(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and _is_reader(request):
            return HTMLResponse(NOWHERE, 404)
        return problem(error.status_code, str(error.detail))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0] if error.errors() else {"loc": (), "msg": "Invalid."}
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return problem(422, f"{where}: {first['msg']}" if where else str(first["msg"]))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        error_id = secrets.token_hex(4)
        log.error("request failed", path=request.url.path, error_id=error_id, exc_info=error)
        count("internal_error")
        return problem(500, f"Something went wrong here (error {error_id}).", "internal_error")

    app.add_exception_handler(ParleyError, ours)
    app.add_exception_handler(HTTPException, theirs)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)
