"""`POST /api/_debug/record_trace`: what pages on telephones report about their microphone.

Off unless `log.client_traces` is on: any client of the server could write here. Source:
service.md 5.6.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from parley import logs
from parley.errors import ServiceUnavailable
from parley.gateway.http.bodies import json_body
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime
from parley.protocol import codec
from parley.recording.timeline import iso

FILE_BYTES: Final = 5_000_000
"""The file and its predecessor have at most this together."""

FILE_NAME: Final = "record_trace.jsonl"

log = logs.get(__name__)


class Kept(msgspec.Struct, kw_only=True):
    """The trace is stored."""

    ok: bool = True


class TraceFile:
    """One JSON object per line; a full file replaces the previous one."""

    def __init__(self, path: Path, *, limit_bytes: int = FILE_BYTES) -> None:
        self.path = path
        self.older = path.with_suffix(path.suffix + ".1")
        self._half_bytes = limit_bytes // 2
        self._lock = threading.Lock()

    def append(self, entry: dict[str, Any]) -> None:
        """Blocks on the disk; safe to call from several threads.

        Raises:
            OSError: it could not be written.
        """
        line = msgspec.json.encode(entry) + b"\n"
        with self._lock:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size and size + len(line) > self._half_bytes:
                self.path.replace(self.older)
            with self.path.open("ab") as file:
                file.write(line)


EXAMPLE: Final = {"page": "/mobile/", "event": "track ended", "at_ms": 1834}


def routes(runtime: GatewayRuntime) -> Router:
    admission, settings = runtime.access.admission, runtime.settings
    router = Router(tag="pages")
    kept = TraceFile(settings.storage.data_dir / FILE_NAME)

    @router.post(
        "/api/_debug/record_trace",
        errors=(403, 422, 503),
        body=json_body(None, EXAMPLE, description="anything, at most 64 KiB"),
        answer=Kept,
    )
    async def record_trace(request: Request) -> Kept | Response:
        """Store a page's report about its microphone. 403 unless the server's
        `log.client_traces` is on."""
        if not settings.log.client_traces:
            raise HTTPException(403, "This server does not accept traces.")
        admission.check_origin(request.headers)
        try:
            trace = codec.parse(await request.body())
        except ClientDisconnect:
            return Response(status_code=400)
        if not isinstance(trace, dict):
            raise HTTPException(422, "A trace must be a JSON object.")
        try:
            await asyncio.to_thread(kept.append, {"at": iso(runtime.clock.time()), "trace": trace})
        except OSError as error:
            log.error("trace_write_failed", why=str(error))
            raise ServiceUnavailable("The trace cannot be written at present.") from None
        return Kept()

    return router
