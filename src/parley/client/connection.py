"""One socket to a server: how to reach it, what happens when it goes away, what waits to be sent.

Knows no dialect: it carries frames and says what broke. Two lanes lead out. Control messages wait
until they are sent; live sound is dropped oldest first when the network cannot keep up, because
what was said seconds ago is worth less than what is said now. Both are counted, none is lost
silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from parley import errors
from parley.errors import BadInput, ParleyError, Refused
from parley.protocol import codec

FRAME_LIMIT_BYTES: Final = 128 * 1024 * 1024
"""Largest message taken from a server: ten minutes of speech in one chat answer fit."""

GOODBYE_S: Final = 2.0
"""How long leaving may take before the socket is dropped."""

CONTROL_LIMIT: Final = 64


class Unreachable(ParleyError):
    """No conversation came about; `hint` says what to look at.

    `may_pass`: whether trying again may help, as with a server that is still starting.
    """

    code = "unreachable"

    def __init__(self, url: str, why: str, *, hint: str = "", may_pass: bool = False) -> None:
        super().__init__(f"No connection to {url}: {why}")
        self.url = url
        self.hint = hint
        self.may_pass = may_pass


class ConnectionLost(ParleyError):
    """The socket closed before the conversation was over; `unsent` messages never left."""

    code = "connection_lost"

    def __init__(self, close_code: int, reason: str, unsent: int) -> None:
        said = f" ({reason})" if reason else ""
        left = f" {unsent} messages were not sent." if unsent else ""
        super().__init__(f"The connection closed with code {close_code}{said}.{left}")
        self.ended_with = close_code
        self.reason = reason
        self.unsent = unsent


class RemoteError(ParleyError):
    """An error whose code this version does not know; `wire_code` has it."""

    def __init__(self, wire_code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.wire_code = wire_code


def _kinds(root: type[ParleyError]) -> Iterator[type[ParleyError]]:
    """The tree of errors.py, parents first; without the families that are never raised."""
    for kind in root.__subclasses__():
        if kind.__module__ != errors.__name__:
            continue
        if kind not in (BadInput, Refused):
            yield kind
        yield from _kinds(kind)


_KINDS: Final[dict[str, type[ParleyError]]] = {ParleyError.code: ParleyError}
for _kind in _kinds(ParleyError):
    # A subclass may share its parent's code; the parent is the honest reading.
    _KINDS.setdefault(_kind.code, _kind)


def as_error(code: str, sentence: str) -> ParleyError:
    """An error from the wire as the class that has its code.

    Only the sentence travels; of the facts, `field` is None.
    """
    kind = _KINDS.get(code)
    if kind is None:
        return RemoteError(code, sentence or code)
    error = kind.__new__(kind, sentence)
    if isinstance(error, BadInput):
        error.field = None
    return error


# ---- how to reach a server -----------------------------------------------------------------


class AccessOptions(TypedDict, total=False):
    """Keyword arguments that every client takes."""

    insecure: bool
    ca: Path | str | None
    token: str | None
    open_timeout_s: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a server.

    Args:
        url: `https://host:8006` or `http://…` (`wss`, `ws` mean the same).
        insecure: do not check the certificate. For self-made ones prefer `ca`.
        ca: a certificate file to trust, e.g. the server's own `certs/cert.pem`.
        token: sent as `Authorization: Bearer …`.
        open_timeout_s: limit of one attempt.
        attempts: how often an opening is tried, where trying again changes nothing for the server.
    """

    url: str
    insecure: bool = False
    ca: Path | str | None = None
    token: str | None = None
    open_timeout_s: float = 10.0
    attempts: int = 3

    def http_url(self, path: str) -> str:
        """`path` on this server, for requests."""
        return self._url(path, {"ws": "http", "wss": "https"})

    def socket_url(self, path: str) -> str:
        """`path` on this server, for sockets."""
        return self._url(path, {"http": "ws", "https": "wss"})

    def _url(self, path: str, schemes: dict[str, str]) -> str:
        parts = urlsplit(self.url if "://" in self.url else f"https://{self.url}")
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
            raise Unreachable(self.url, "this is no address of a server.", hint=_ADDRESS_HINT)
        scheme = schemes.get(parts.scheme, parts.scheme)
        wanted = urlsplit(path)
        return urlunsplit(
            (scheme, parts.netloc, parts.path.rstrip("/") + wanted.path, wanted.query, "")
        )

    def headers(self) -> dict[str, str]:
        """What goes with every request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def verify(self) -> ssl.SSLContext:
        """Whom to trust.

        Raises:
            Unreachable: `ca` is not a certificate file.
        """
        try:
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(
                self.url,
                f"the certificate file {self.ca} cannot be used ({error}).",
                hint="Give a PEM file, e.g. certs/cert.pem of the server.",
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def is_loopback(self) -> bool:
        """Whether the server is this machine; then no proxy is asked."""
        host = urlsplit(self.socket_url("/")).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


_ADDRESS_HINT = "An address looks like https://localhost:8006."
_CERTIFICATE_HINT = (
    "If the server made its own certificate, trust it with ca='certs/cert.pem' (--ca), "
    "or do not check it with insecure=True (--insecure)."
)
_RUNNING_HINT = (
    "Is the server running, and is the port right? https and http are different: "
    "a server started with --http answers http:// only."
)


# ---- the socket ----------------------------------------------------------------------------


class Link:
    """An open socket with its outbox. Open with `await Link.open(…)`; `close` is safe to repeat."""

    def __init__(self, socket: ClientConnection, live_limit: int) -> None:
        self._socket = socket
        self._control: deque[str] = deque()
        self._live: deque[msgspec.Struct] = deque()
        self._live_limit = live_limit
        self._something = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.dropped = 0
        """Live messages given up because the network did not keep pace."""
        self._sender = asyncio.create_task(self._send(), name="parley-client-sender")

    @classmethod
    async def open(cls, access: Access, path: str, *, live_limit: int = 4) -> Link:
        """Connect once.

        Raises:
            Unreachable: nobody there, no trust, or no such address.
        """
        url = access.socket_url(path)
        try:
            socket = await connect(
                url,
                ssl=access.verify() if url.startswith("wss:") else None,
                additional_headers=access.headers(),
                open_timeout=access.open_timeout_s,
                close_timeout=GOODBYE_S,
                max_size=FRAME_LIMIT_BYTES,
                # Base64 of noise does not compress; trying costs more than it saves.
                compression=None,
                proxy=None if access.is_loopback() else True,
            )
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                url,
                f"its certificate is not trusted ({error.verify_message}).",
                hint=_CERTIFICATE_HINT,
            ) from None
        except TimeoutError:
            raise Unreachable(
                url, "no answer in time.", hint=_RUNNING_HINT, may_pass=True
            ) from None
        except InvalidHandshake as error:
            raise Unreachable(
                url, f"it does not speak this protocol there ({error}).", hint=_RUNNING_HINT
            ) from None
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise Unreachable(url, f"{why}.", hint=_RUNNING_HINT, may_pass=True) from None
        return cls(socket, live_limit)

    @property
    def waiting(self) -> int:
        """Messages that have not left yet."""
        return len(self._control) + len(self._live)

    def post(self, message: msgspec.Struct) -> None:
        """Send a control message; it overtakes sound that still waits.

        Raises:
            ConnectionLost: the socket is gone, or 64 messages already wait.
        """
        if self._sender.done() or len(self._control) >= CONTROL_LIMIT:
            raise self._lost()
        self._control.append(codec.encode(message))
        self._wake()

    def post_live(self, message: msgspec.Struct) -> msgspec.Struct | None:
        """Send live sound; returns the oldest waiting message if it had to make room.

        Raises:
            ConnectionLost: the socket is gone.
        """
        if self._sender.done():
            raise self._lost()
        self._live.append(message)
        dropped = None
        if len(self._live) > self._live_limit:
            dropped = self._live.popleft()
            self.dropped += 1
        self._wake()
        return dropped

    def amend_next(self, change: Callable[[msgspec.Struct], msgspec.Struct]) -> None:
        """Change the live message that leaves next, e.g. to keep what a dropped one asked for."""
        if self._live:
            self._live[0] = change(self._live[0])

    async def receive(self) -> str | bytes:
        """The next frame.

        Raises:
            ConnectionLost: the socket closed; also for a normal close, code 1000.
        """
        try:
            return await self._socket.recv()
        except ConnectionClosed:
            raise self._lost() from None

    async def flush(self) -> None:
        """Wait until everything posted so far has left, or the socket is gone."""
        quiet = asyncio.create_task(self._quiet.wait())
        try:
            await asyncio.wait({quiet, self._sender}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            quiet.cancel()

    async def close(self) -> None:
        """Say goodbye within `GOODBYE_S` and let go."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.flush(), GOODBYE_S)
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        await self._socket.close()

    def _wake(self) -> None:
        self._quiet.clear()
        self._something.set()

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            while self._control or self._live:
                frame = (
                    self._control.popleft() if self._control else codec.encode(self._live.popleft())
                )
                try:
                    await self._socket.send(frame)
                except ConnectionClosed:
                    return  # `receive` tells the reason to whoever listens.
            self._quiet.set()

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(
            self._socket.close_code or 1006, self._socket.close_reason or "", self.waiting
        )
