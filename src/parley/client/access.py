"""Access to a server, and the errors of a connection.

Address, key and trust come from arguments or from PARLEY_URL, PARLEY_TOKEN and PARLEY_CA.
All network access goes through `Transport`; tests pass their own as `transport=`.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict
from urllib.parse import urlsplit, urlunsplit

import httpx

from parley import errors
from parley.errors import BadInput, InvalidRequest, ParleyError, Refused
from parley.protocol.networks import is_this_machine

DEFAULT_URL: Final = "https://localhost:8006"

ADDRESS_HINT: Final = "An address looks like https://localhost:8006."
PATH_HINT: Final = f"{ADDRESS_HINT} /v1 is for OpenAI's clients."
NAME_HINT: Final = "Check the server's name and this machine's network connection."
CERTIFICATE_HINT: Final = (
    "For a self-signed certificate, pass it with ca='certs/cert.pem' (--ca), "
    "or disable the check with insecure=True (--insecure)."
)
INVALID_HINT: Final = (
    "Use a name or address that the certificate has, or have it replaced if it is expired; "
    "insecure=True (--insecure) disables the check."
)
RUNNING_HINT: Final = (
    "Check that the server is running and the port is right. A server started with --http "
    "answers http:// only, any other https:// only."
)

REDIRECT_HINT: Final = (
    "If that is the server's own address, use it. If it is a login page, a key may be needed."
)


def variable(name: str) -> str | None:
    """`PARLEY_<name>` from the environment; None when it is absent or empty."""
    return os.environ.get(f"PARLEY_{name}") or None


class Unreachable(ParleyError):
    """The server cannot be reached; `hint` says what to check. `may_pass`: True if a retry may
    help, e.g. because the server is still starting.
    """

    code = "unreachable"

    def __init__(self, url: str, why: str, *, hint: str = "", may_pass: bool = False) -> None:
        super().__init__(f"No connection to {url}: {why}")
        self.url = url
        self.hint = hint
        if hint:
            # Shown under a traceback.
            self.add_note(f"hint: {hint}")
        self.may_pass = may_pass


class BadAddress(Unreachable):
    """The address is not that of a server."""


class NoWebSocket(Unreachable):
    """The server responds, but opens no WebSocket at this address."""


def unreachable(url: str, error: Exception) -> Unreachable:
    """The error for a failed connection, with a hint, and without the details of libraries."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    match cause:
        case ssl.SSLCertVerificationError():
            why = f"its certificate is not trusted ({cause.verify_message})."
            is_unknown = 18 <= cause.verify_code <= 21  # Fine once it or its issuer is trusted.
            return Unreachable(url, why, hint=CERTIFICATE_HINT if is_unknown else INVALID_HINT)
        case ssl.SSLError():
            why = f"no TLS there ({(cause.reason or str(cause)).replace('_', ' ').lower()})."
            return Unreachable(url, why, hint=RUNNING_HINT)
        case socket.gaierror():
            there = urlsplit(url if "//" in url else f"//{url}")
            why = f"unknown host '{there.hostname}' ({cause.strerror})."
            return Unreachable(url, why, hint=NAME_HINT)
        case TimeoutError():
            return Unreachable(url, "timed out.", hint=RUNNING_HINT, may_pass=True)
        case OSError(errno=int(number)) if number > 0:
            return Unreachable(url, f"{os.strerror(number)}.", hint=RUNNING_HINT, may_pass=True)
    why = (str(error) or type(error).__name__).rstrip(".")
    return Unreachable(url, f"{why}.", hint=RUNNING_HINT, may_pass=cause is not None)


class ConnectionLost(ParleyError):
    """The connection closed before the session ended; `unsent` is the number of messages that were
    not sent."""

    code = "connection_lost"

    def __init__(self, close_code: int, reason: str, unsent: int) -> None:
        said = f" ({reason})" if reason else ""
        left = f" {unsent} messages were not sent." if unsent else ""
        super().__init__(f"The connection closed with code {close_code}{said}.{left}")
        self.ended_with = close_code
        self.reason = reason
        self.unsent = unsent


class RemoteError(ParleyError):
    """An error whose code, `wire_code`, is unknown to this version."""

    def __init__(self, wire_code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.wire_code = wire_code


def _kinds(root: type[ParleyError]) -> Iterator[type[ParleyError]]:
    """The classes of errors.py, parents first, without bases that are never raised."""
    for kind in root.__subclasses__():
        if kind.__module__ != errors.__name__:
            continue
        if kind not in (BadInput, Refused):
            yield kind
        yield from _kinds(kind)


_KINDS: Final[dict[str, type[ParleyError]]] = {ParleyError.code: ParleyError}
for _kind in _kinds(ParleyError):
    # A subclass may share its parent's code; only the parent can be inferred from it.
    _KINDS.setdefault(_kind.code, _kind)


def as_error(code: str, sentence: str) -> ParleyError:
    """Convert an error from the wire to the class with its code.

    Only the message is transmitted; other attributes are None.
    """
    kind = _KINDS.get(code)
    return RemoteError(code, sentence or code) if kind is None else kind.from_wire(sentence)


def fields_of(reply: httpx.Response) -> dict[str, Any] | None:
    """The JSON object of a response; None if it is none."""
    try:
        found = reply.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def refusal_of(url: str, reply: httpx.Response) -> ParleyError:
    """The error behind a response: a refusal, or the sign that another site answers at `url`, or a
    proxy whose server is away."""
    fields = fields_of(reply) or {}
    if "detail" in fields:
        return as_error(str(fields.get("code", "")), str(fields["detail"]))
    if reply.status_code == 401:
        return errors.Unauthorized()
    if reply.has_redirect_location:
        where = reply.headers["location"].partition("?")[0]
        return Unreachable(url, f"redirected to {where}", hint=REDIRECT_HINT)
    why = f"not a parley server (it answered {reply.status_code})."
    return Unreachable(url, why, hint=RUNNING_HINT)


# ---- how to reach a server -----------------------------------------------------------------


class SocketClosed(Exception):
    """The socket was closed: close code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with code {code}")
        self.code = code
        self.reason = reason


class Socket(Protocol):
    """One open connection. `send` and `receive` raise `SocketClosed` after it closed."""

    async def send(self, frame: str | bytes) -> None:
        """Send one message; waits while the network is slow."""
        ...

    async def receive(self) -> str | bytes:
        """Receive the next message. Cancelling loses no message."""
        ...

    async def close(self) -> None:
        """Close; safe to repeat."""
        ...


class Transport(Protocol):
    """Network used for messages and requests."""

    async def connect(self, access: Access, url: str) -> Socket:
        """Open a socket to `url` (`ws:` or `wss:`).

        Raises:
            Unreachable: there is no server, its certificate is not trusted, or the address is
                wrong.
            ParleyError: the server refused; the class shows the reason.
        """
        ...

    def requests(self, access: Access) -> httpx.AsyncBaseTransport | None:
        """The transport for `httpx`; None: its default."""
        ...


class AccessOptions(TypedDict, total=False):
    """Keyword arguments of all clients."""

    insecure: bool
    ca: Path | str | None
    token: str | None
    open_timeout_s: float
    attempts: int
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class Access:
    """Address, key and TLS trust of a server.

    Args:
        url: `https://host:8006` or `http://…` (`wss`, `ws` mean the same); default: PARLEY_URL, or
            port 8006 of this machine.
        insecure: True: do not verify the certificate. For self-signed ones, prefer `ca`.
        ca: a certificate file to trust, e.g. the server's own `certs/cert.pem`; default: PARLEY_CA.
        token: a key, sent as `Authorization: Bearer …`; default: PARLEY_TOKEN.
        open_timeout_s: time limit of one attempt.
        attempts: number of attempts to connect, if a retry has no side effects.
        transport: default: the real network.
    """

    url: str = ""
    insecure: bool = False
    ca: Path | str | None = None
    token: str | None = None
    open_timeout_s: float = 10.0
    attempts: int = 3
    transport: Transport | None = None

    def __post_init__(self) -> None:
        # Frozen: defaults are filled in here.
        object.__setattr__(self, "url", self.url or variable("URL") or DEFAULT_URL)
        # A key that was copied or read from a file may end with a line break.
        token = (self.token or variable("TOKEN") or "").strip() or None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidRequest("token must be printable ASCII characters.", field="token")
        object.__setattr__(self, "token", token)
        object.__setattr__(self, "ca", self.ca or variable("CA"))

    @classmethod
    def of(cls, url: str, options: AccessOptions, *, client: str) -> Access:
        """Access for a client with these options in addition to its own.

        Raises:
            TypeError: an option does not exist.
        """
        unknown = sorted(options.keys() - AccessOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"{client} has no option '{unknown[0]}'.")
        return cls(url, **options)

    def http_url(self, path: str) -> str:
        """URL of `path` on this server, for requests."""
        return self._url(path, {"ws": "http", "wss": "https"})

    def socket_url(self, path: str) -> str:
        """URL of `path` on this server, for sockets."""
        return self._url(path, {"http": "ws", "https": "wss"})

    def _url(self, path: str, schemes: dict[str, str]) -> str:
        try:
            parts = urlsplit(self.url if "://" in self.url else f"https://{self.url}")
            is_address = parts.scheme in ("http", "https", "ws", "wss") and bool(parts.hostname)
            is_address &= parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise BadAddress(self.url, "not the address of a server.", hint=ADDRESS_HINT)
        scheme = schemes.get(parts.scheme, parts.scheme)
        wanted = urlsplit(path)
        return urlunsplit(
            (scheme, parts.netloc, parts.path.rstrip("/") + wanted.path, wanted.query, "")
        )

    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def verify(self) -> ssl.SSLContext:
        """The TLS context.

        Raises:
            Unreachable: `ca` is not a certificate file.
        """
        try:
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(
                self.url,
                f"the certificate file {self.ca} cannot be used ({error}).",
                hint="Pass a PEM file, e.g. certs/cert.pem of the server.",
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def http(self) -> httpx.AsyncClient:
        """A client for requests to this server. If the server is on this machine, a proxy from the
        environment is not used, because it cannot reach local addresses."""
        address = self.http_url("/")
        return httpx.AsyncClient(
            base_url=address,
            headers=self.headers(),
            timeout=self.open_timeout_s,
            transport=None if self.transport is None else self.transport.requests(self),
            verify=self.verify() if address.startswith("https:") else True,
            trust_env=not self.is_loopback(),
        )

    def is_loopback(self) -> bool:
        """True if the server is on this machine; then no proxy is used."""
        return is_this_machine(urlsplit(self.socket_url("/")).hostname)
