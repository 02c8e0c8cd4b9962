"""Address of a server with OpenAI's API, and connections to it that stay open between requests.

A connection is used by one request at a time, so that another thread can end that request.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from parley.protocol.networks import is_proxied

CONNECT_S: Final = 5.0
IDLE_S: Final = 60.0
"""Time for which a connection stays open without a request; many servers close it sooner."""
IDLE_MOST: Final = 8
"""Maximum number of open connections without a request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and key of the server.

    Args:
        url: up to and including `/v1`.
        timeout_s: maximum time without data.
        extra: further fields of a request for an answer; a field that is None is omitted.
    """

    url: str
    model: str = ""
    key: str = field(default="", repr=False)
    timeout_s: float = 20.0
    takes_images: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The address for logs and messages, without a user name and password in it."""
        return without_credentials(self.url)

    def options(self) -> dict[str, Any]:
        """How httpx sends requests to it."""
        return {
            "headers": {"Authorization": f"Bearer {self.key}"} if self.key else {},
            "verify": _certificates(),
            "trust_env": is_proxied(self.url),
        }

    def hidden(self, text: str) -> str:
        """A text of the server, which may quote the key, without it."""
        return text.replace(self.key, "(key)") if self.key else text


def without_credentials(url: str) -> str:
    """A URL without the user name and password in it."""
    found = urlsplit(url)
    return found._replace(netloc=found.netloc.rpartition("@")[2]).geturl()


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Trusted certificates. Reading them takes longer than everything else in a request."""
    return httpx.create_ssl_context()


class PooledConnection:
    """A connection to the server. It reconnects if the server closed it after the last request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_new = True
        self._url = endpoint.url
        self.is_shut = False
        self._socket: socket.socket | None = None
        self._client = httpx.Client(
            timeout=httpx.Timeout(endpoint.timeout_s, connect=CONNECT_S),
            follow_redirects=True,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE_S),
            **endpoint.options(),
        )

    def send(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Send a request; returns the response, whose body is yet to be read."""
        request = self._client.build_request(
            "POST", f"{self._url}{path}", json=body, extensions={"trace": self._connected}
        )
        try:
            return self._client.send(request, stream=True)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            # The server may close a connection in the moment in which it is used again.
            if self._is_new or self.is_shut:
                raise
            return self._client.send(request, stream=True)

    def shut(self) -> None:
        """End the connection now, from any thread; blocked reads end, too."""
        self.is_shut = True
        if self._socket is not None:
            # A shutdown ends a blocked read in another thread; a close does not.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def keep(self) -> None:
        """The response was read to its end: the connection stays open."""
        self._is_new = False

    def close(self) -> None:
        self._client.close()

    def _connected(self, name: str, info: Mapping[str, Any]) -> None:
        """Store the connection's socket (httpx's trace)."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_shut:
                self.shut()


class ConnectionPool:
    """Open connections to a server; the one that was used last is used next."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        # Now, while the model loads: a file of certificates that cannot be read would end the
        # thread of an answer, and the first answer should not wait for it.
        _certificates()
        self._idle: list[PooledConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def take(self) -> PooledConnection:
        """An open connection, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return PooledConnection(self.endpoint)

    def give_back(self, connection: PooledConnection) -> None:
        """Keep a connection whose last response was read to its end."""
        connection.keep()
        if len(self._idle) < IDLE_MOST and not connection.is_shut:
            self._idle.append(connection)
        else:
            connection.close()


def _close_all(connections: list[PooledConnection]) -> None:
    for connection in connections:
        connection.close()
