"""uvicorn's HTTP connection, with additional limits.

Heads are limited in time and size. Bodies must arrive, and responses must be read, at a minimum
rate that every working network reaches. Connections per address are limited. Refused requests never
reach the application.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import httptools
from starlette.datastructures import Headers
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.http11 import MAX_LINE_LENGTH

from parley.protocol.networks import network_of
from parley.protocol.values import SLOWEST_BYTES_PER_S
from parley.transport.acknowledged import acknowledged_bytes
from parley.transport.clients import OpenConnections
from parley.transport.limits import ARRIVAL_LIMIT_S, Arrival, Budget

HEAD_LIMIT_S: Final = 20.0
"""Time limit from the connection, or the first byte after a response, to the end of a request's
head."""
IDLE_LIMIT_S: Final = 75
"""Time for which a connection waits for another request: longer than clients and proxies reuse one
(httpx 5 s, aiohttp 15 s, nginx 60 s), because a request that meets the end of its connection is
lost."""
HEAD_LIMIT_BYTES: Final = 16 << 10
CHUNK_LINE_BYTES: Final = 32
"""What frames a body may have as many bytes as a head, and so much per chunk: the parser joins a
trailer field that grows, read by read."""
FIELDS_LIMIT: Final = 100
"""Maximum numbers of header fields of a request, fields of its query, and trailer fields of its
body: each costs a call here or in the application's parser."""

FREE_PIECES: Final = 1024
PIECE_BYTES: Final = 64
"""A body may arrive in this number of pieces of any size; if there are more, pieces must have this
number of bytes on average. Each piece costs a call, and a chunk of one byte takes six on the
wire."""

BODY_GRACE_S: Final = 30.0
"""Time for which a body may pause; see `Arrival`."""

STALL_S: Final = 30.0
"""While a response waits for its reader, it must be read at `SLOWEST_BYTES_PER_S`; this is the
measuring interval."""

DRAIN_BYTES: Final = 64 << 20
DRAIN_PAUSE_S: Final = 0.0025
"""How much of a body is still received and discarded after the response, for the grace period,
because a client that is still sending would otherwise not see the response. One read per interval:
the connections of an address take turns."""

LAST_CHUNK: Final = b"\r\n0\r\n\r\n"

PIPELINE_LIMIT: Final = 8


class BadHead(Exception):
    """A request that is refused with `status`."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class BoundedHttp(HttpToolsProtocol):
    """HTTP connection with limits on time, size and number."""

    head_limit_s = HEAD_LIMIT_S
    body_grace_s = BODY_GRACE_S
    body_limit_s = ARRIVAL_LIMIT_S
    stall_s = STALL_S

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._open: OpenConnections = self.app_state["open_connections"]
        self._is_counted = False
        self._head_bytes = 0
        self._is_idle = False
        """True from a response to the next byte."""
        self._is_in_body = False
        self._is_draining = False
        self._body_bytes = 0
        self._body_pieces = 0
        self._trailers = 0
        self._budget: Budget | None = self.app_state.get("budget")
        self._unread: tuple[int, str] | None = None
        """Bytes of a response that are counted, and their owner."""
        self._delivered: int | None = None
        """Bytes that the client had acknowledged when its connection was last found idle."""
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def _address(self) -> str:
        return network_of(self.client[0]) if self.client else "unknown"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._open.enter(self._address):
            self._refuse(429, "Too many connections.")
            return
        self._is_counted = True
        # With TLS this was checked before the handshake.
        if self.scheme == "http" and not self._open.may_open(self._address):
            transport.abort()  # a response would cost more than the request
            return
        self._after(self.head_limit_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall_timer()
        self._stop_draining()
        self._count_unread(0)
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_draining and self._is_chunked:
            # The body is not parsed, so its end is unknown: close the connection after the
            # response.
            self._drain(len(data))
            if data.endswith(LAST_CHUNK):
                self.transport.close()
            return
        self._head_bytes += len(data)
        if self._is_idle:
            self._is_idle = False
            self._after(self.head_limit_s, self.transport.close)
        super().data_received(data)
        if self._head_bytes > HEAD_LIMIT_BYTES and not self.transport.is_closing():
            status, what = (400, "Body's framing") if self._is_in_body else (431, "Request head")
            self._give_up(status, f"{what} exceeds {HEAD_LIMIT_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            error = getattr(sys.exception(), "__context__", None)
            known = error if isinstance(error, BadHead) else BadHead(msg)
            self._refuse(known.status, str(known))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            # A trailer field says nothing about the request: not who sent it, nor from where.
            self._trailers += 1
            if self._trailers > FIELDS_LIMIT:
                raise BadHead("A body may have at most 100 trailer fields.")
            return
        if len(self.headers) >= FIELDS_LIMIT:
            raise BadHead(f"Request has more than {FIELDS_LIMIT} header fields.", 431)
        super().on_header(name, value)

    def handle_websocket_upgrade(self) -> None:
        # The WebSocket counts itself, and has limits of its own.
        self._leave()
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        self._check_head()
        self._is_in_body = True
        # From here on it is what frames the body.
        self._head_bytes = 0
        super().on_headers_complete()
        self._body_bytes = self._body_pieces = self._trailers = 0
        if not self._has_body:
            return  # it will be complete in a moment
        self._arrival = Arrival(self.loop.time(), self.body_grace_s, self.body_limit_s)
        self._after(self.body_grace_s, self._check_body)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = max(0, self._head_bytes - len(body) - CHUNK_LINE_BYTES)
        if self._is_draining:
            self._drain(len(body))
            return
        self._body_bytes += len(body)
        self._body_pieces += 1
        if self._body_pieces > FREE_PIECES and self._body_bytes < PIECE_BYTES * self._body_pieces:
            raise BadHead(f"The chunks of a long body must have {PIECE_BYTES} bytes on average.")
        self._arrival.advance(self._body_bytes, self.loop.time())
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        super().on_message_complete()
        if self._is_draining:
            self._drain_on()
            self._stop_draining()
            self._after(self.head_limit_s, self.transport.close)
        self._is_in_body = False
        self._head_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self._is_in_body:
            self._is_idle = self.cycle.response_complete
            return
        self._unset_keepalive_if_required()
        self._open.draining[self._address] += 1
        self._is_draining = True
        self._body_bytes = 0
        self._after(self.body_grace_s, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        delivered = acknowledged_bytes(self.transport)
        if self.flow.write_paused or delivered not in (None, self._delivered):
            # The last answer is still being read. Closing a TLS connection would break it off.
            self._delivered = delivered
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._count_unread(self.transport.get_write_buffer_size()):
            self._watch_output()
        else:
            self._open.ended["unread_answers"] += 1
            self.transport.abort()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        self._count_unread(0)
        super().resume_writing()

    def _drain(self, count: int) -> None:
        """Discard `count` bytes of a body that is no longer read, and receive no others for a
        moment."""
        self._body_bytes += count
        if self._body_bytes > DRAIN_BYTES:
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.pause_reading()
            pause_s = DRAIN_PAUSE_S * self._open.draining[self._address]
            self.loop.call_later(pause_s, self._drain_on)

    def _drain_on(self) -> None:
        if self._is_draining and not self.transport.is_closing():
            self.transport.resume_reading()

    def _fields(self, name: bytes) -> list[bytes]:
        """Values of a header field of the newest request."""
        return [value for each, value in self.headers if each == name]

    @property
    def _is_chunked(self) -> bool:
        return bool(self._fields(b"transfer-encoding"))

    @property
    def _has_body(self) -> bool:
        return self._is_chunked or any(map(int, self._fields(b"content-length")))

    def _stop_draining(self) -> None:
        if self._is_draining:
            self._is_draining = False
            self._open.draining -= Counter([self._address])

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise BadHead("Only HTTP/1.0 and HTTP/1.1 are supported.")
        fields_bytes = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.url) + fields_bytes > HEAD_LIMIT_BYTES:
            raise BadHead(f"Request head exceeds {HEAD_LIMIT_BYTES} bytes.", 431)
        if self.url.count(b"&") >= FIELDS_LIMIT:
            raise BadHead("A query may have at most 100 fields.")
        hosts = self._fields(b"host")
        if len(hosts) > 1 or (not hosts and version != "1.0"):
            raise BadHead("A request must have one Host field.")
        _, is_absolute, authority = self.url.partition(b"://")
        if is_absolute and not self.url.startswith(b"/") and hosts != [authority.split(b"/")[0]]:
            raise BadHead("The request target must name the host of the Host field.")
        if self.parser.should_upgrade() and self._should_upgrade():
            self._check_upgrade(version)
        if len(self.pipeline) >= PIPELINE_LIMIT:
            raise BadHead(f"More than {PIPELINE_LIMIT} requests wait for their answers.")

    def _check_upgrade(self, version: str) -> None:
        if version == "1.0":
            raise BadHead("A WebSocket requires HTTP/1.1.")
        if self._has_body:
            raise BadHead("A WebSocket request must not have a body.")
        lines = [(b"GET HTTP/1.1", self.url), *self.headers]
        if any(len(name) + len(value) + 4 > MAX_LINE_LENGTH for name, value in lines):
            raise BadHead(
                f"A line of a WebSocket request may have at most {MAX_LINE_LENGTH} bytes.", 431
            )

    def _check_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:
            # At the moment it is this server that does not read.
            self._arrival.wait_until(now + 1.0)
        due = self._arrival.due
        if now < due:
            self._after(due - now, self._check_body)
            return
        self._open.ended["slow_body"] += 1
        self._give_up(408, "Request body was not received in time.")

    def _give_up(self, status: int, sentence: str) -> None:
        """End the connection, with an answer if there is none yet."""
        if self.cycle is not None and self._is_in_body and self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(status, sentence)

    def _count_unread(self, size: int) -> bool:
        """Count waiting bytes of a response as memory of its address; returns False if the address
        has none left."""
        if self._budget is None:
            return True
        if self._unread is not None:
            self._budget.give(*self._unread)
            self._unread = None
        if size:
            peer, headers = self.client and self.client[0], Headers(raw=self.headers)
            owner = self.app_state["owner_of"](peer, headers)
            if not self._budget.take(size, owner):
                return False
            self._unread = size, owner
        return True

    def _watch_output(self) -> None:
        """Check that the peer reads the response."""
        self._stop_stall_timer()
        before = self.transport.get_write_buffer_size()

        def check() -> None:
            waiting = self.transport.get_write_buffer_size()
            if before - waiting < self.stall_s * SLOWEST_BYTES_PER_S:
                self._open.ended["slow_reader"] += 1
                self.transport.abort()
            else:
                self._watch_output()

        self._stall_timer = self.loop.call_later(self.stall_s, check)

    def _refuse(self, status: int, sentence: str) -> None:
        """Send the last response on this connection."""
        self._stop_timer()
        body = sentence.encode()
        again = b"retry-after: 1\r\n" if status == 429 else b""
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\n%sconnection: close\r\n\r\n%s"
            % (status, HTTPStatus(status).phrase.encode(), len(body), again, body)
        )
        self.transport.close()

    def _leave(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._open.leave(self._address)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)
