"""The gateway's own connection to a worker's session socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.uri import parse_uri

from parley.transport.connection import Connection, as_transport
from parley.transport.keepalive import Keepalive
from parley.transport.limits import ConnectionLimits

MAX_RESPONSE_HEAD_BYTES = 16 << 10


class DialFailed(Exception):
    """No WebSocket could be opened.

    Args:
        status: HTTP status of the response, if there was one; `head`: its header fields.
    """

    def __init__(self, sentence: str, *, status: int | None = None, head: bytes = b"") -> None:
        super().__init__(sentence)
        self.status = status
        self._head = head

    def header(self, name: str) -> str:
        """A header field of the response; "" if there is none with this name."""
        for line in self._head.decode("latin-1").split("\r\n"):
            field, _, value = line.partition(":")
            if field.lower() == name:
                return value.strip()
        return ""


class ClientConnection(Connection):
    """The client's end. `ready` completes after the handshake, or fails with `DialFailed`."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        limits: ConnectionLimits,
        keepalive: Keepalive,
    ) -> None:
        super().__init__(is_server=False, limits=limits, keepalive=keepalive)
        self._handshake = ClientProtocol(parse_uri(url))
        self._headers = headers
        self._head: bytes | None = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = as_transport(transport)
        request = self._handshake.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._handshake.send_request(request)
        self._transport.write(b"".join(self._handshake.data_to_send()))

    def _received(self, data: bytes) -> None:
        if self._head is None:
            super()._received(data)
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > MAX_RESPONSE_HEAD_BYTES:
                self._refuse("The worker's answer is too long.")
            return
        head, rest = self._head[: end + 4], self._head[end + 4 :]
        if not head.startswith(b"HTTP/1.1 101"):
            status = head[9:12]
            self._refuse(
                f"The worker answered {status.decode(errors='replace')}.",
                status=int(status) if status.isdigit() else None,
                head=head,
            )
            return
        self._handshake.receive_data(head)
        error = self._handshake.handshake_exc
        if error is not None:
            self._refuse(f"Handshake failed: {error}")
            return
        self._head = None
        assert self._transport is not None
        self._opened(self._transport)
        if not self.ready.done():
            self.ready.set_result(None)
        if rest:
            super()._received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(DialFailed("The worker closed the connection."))
        super().connection_lost(exc)

    def _refuse(self, sentence: str, *, status: int | None = None, head: bytes = b"") -> None:
        if not self.ready.done():
            self.ready.set_exception(DialFailed(sentence, status=status, head=head))
        self.abort()


async def dial(
    url: str,
    *,
    headers: Mapping[str, str],
    limits: ConnectionLimits,
    keepalive: Keepalive,
    open_limit_s: float,
    tls: ssl.SSLContext | None,
) -> ClientConnection:
    """Open a WebSocket to `url`: wss:// with `tls`, ws:// without. Cancelling is safe.

    Raises:
        DialFailed: no WebSocket was opened within `open_limit_s`.
    """
    try:
        address = parse_uri(url)
    except WebSocketException as error:
        raise DialFailed(f"Not a WebSocket address: {error}") from error
    connection = ClientConnection(url, headers=headers, limits=limits, keepalive=keepalive)
    is_open = False
    try:
        async with asyncio.timeout(open_limit_s):
            await asyncio.get_running_loop().create_connection(
                lambda: connection, address.host, address.port, ssl=tls
            )
            await connection.ready
        is_open = True
    except TimeoutError:
        raise DialFailed(f"No connection within {open_limit_s:g} s.") from None
    except OSError as error:
        raise DialFailed(f"No connection: {error.strerror or error}") from error
    finally:
        if not is_open:
            if connection.ready.done() and not connection.ready.cancelled():
                # retrieved here, so that it is not reported as forgotten
                connection.ready.exception()
            connection.abort()
    return connection
