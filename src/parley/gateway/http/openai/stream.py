"""Response bodies that are sent while they are generated."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from parley import logs
from parley.errors import ParleyError
from parley.gateway.acquisition import Departed
from parley.gateway.http.errors import openai_error
from parley.gateway.metrics import Metrics

EVENTS: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"

log = logs.get(__name__)


class PiecesResponse(Response):
    """A body that is sent piece by piece. A failure before the first piece becomes an error
    response; afterwards an event stream ends with an error object, and any other body without its
    proper end.

    Args:
        pieces: iterated, and closed, in the task that serves the request.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], *, media_type: str, metrics: Metrics
    ) -> None:
        # Without it, nginx keeps an answer that it receives by HTTP/1.0 until its end.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._pieces = pieces
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False
        async with contextlib.aclosing(self._pieces) as pieces:
            try:
                async for piece in pieces:
                    if not has_started:
                        has_started = True
                        await self._begin(send)
                    if piece:
                        await send(_body(piece, more=True))
                if not has_started:
                    await self._begin(send)
                await send(_body(b"", more=False))
            except Departed:
                if not has_started:
                    raise
            except ParleyError as error:
                if not has_started:
                    raise
                self._metrics.error(error.code)
                log.info("stream_failed", code=error.code)
                if self.media_type != EVENTS:
                    # Without the last chunk, which shows that the body is incomplete.
                    raise
                field = getattr(error, "field", None)
                body = openai_error(error.http_status, str(error), error.code, field)
                await send(_body(event(body), more=True))
                await send(_body(DONE, more=False))

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _body(piece: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}
