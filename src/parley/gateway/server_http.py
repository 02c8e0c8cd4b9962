"""uvicorn's HTTP connection with the two limits it lacks: time and size of a request's head."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT_S: Final = 20.0
"""From the connection to the end of its first request's head; later ones have uvicorn's keep-alive
limit."""
HEAD_LIMIT_BYTES: Final = 64 << 10


class BoundedHttp(HttpToolsProtocol):
    """Drops a connection whose head does not come, or does not end."""

    head_limit_s = HEAD_LIMIT_S

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_bytes = 0
        self._is_in_body = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_limit_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_in_body and self._head_bytes > HEAD_LIMIT_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._is_in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_body = False
        self._head_bytes = 0

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
