"""Admission of clients: origins, addresses, session ids, tokens.

Only checks, no sockets: a client that is refused here has used no other resource. Source:
service.md 8.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from parley import errors
from parley.gateway.signals import Signal
from parley.gateway.waits import wait_until
from parley.protocol.control import SECRET_HEADER
from parley.protocol.networks import (
    host_name,
    is_private_name,
    is_this_machine,
    network_of,
    without_port,
)
from parley.settings import SecuritySettings
from parley.transport.peer import Peer

PORTS = {"http": 80, "https": 443}

TURN_S: Final = 10.0
"""Time for which a request waits while its caller has as many sessions as it may have."""
TURNS: Final = 64
"""Number of requests of one caller that may wait."""


class Admission:
    def __init__(
        self,
        security: SecuritySettings,
        *,
        sessions_per_client: int,
        own_names: Collection[str] = (),
    ) -> None:
        self._own_names = frozenset(own_names)
        self.change(security, sessions_per_client=sessions_per_client)
        self.sessions_by_address: Counter[str] = Counter()
        self._returning: Counter[str] = Counter()
        """By caller, its connections that have not taken over the session that they resume."""
        self._turns: dict[str, deque[object]] = {}
        """By caller, its requests that wait, in order."""
        self._freed: Signal[()] = Signal()
        self._session_ids: dict[str, asyncio.Future[None]] = {}
        """Session ids in use, each with a future that completes when the id is free."""

    def change(self, security: SecuritySettings, *, sessions_per_client: int) -> None:
        """Use these rules for later requests."""
        self._security = security
        self._sessions_per_client = sessions_per_client
        self._gather_names()

    def learn_names(self, names: Collection[str]) -> None:
        """Accept further host names, such as those of a reloaded certificate."""
        self._own_names |= frozenset(names)
        self._gather_names()

    def _gather_names(self) -> None:
        listed = (host_name(origin) or "" for origin in self._security.allowed_origins)
        names = (*self._own_names, *self._security.allowed_hosts, *listed)
        self._names = frozenset(name.lower().rstrip(".") for name in names if name)

    def address_of(self, peer: str | None, headers: Mapping[str, str]) -> str:
        """The client's address: the peer's, or the one that a trusted proxy reports."""
        if self._security.trust_proxy:
            # Our own proxy wrote the last entry; the client may have written those before it.
            last = _last_entry(headers, "x-forwarded-for")
            if last:
                return without_port(last)
        return peer or "unknown"

    def owner_of(self, peer: str | None, headers: Mapping[str, str]) -> str:
        """The network of the client's address, by which limits count."""
        return network_of(self.address_of(peer, headers))

    def is_encrypted(self, headers: Mapping[str, str]) -> bool:
        """True if a trusted proxy reports that the client uses TLS."""
        said = _last_entry(headers, "x-forwarded-proto").lower()
        return self._security.trust_proxy and said == "https"

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Check the Host header against DNS rebinding: a site may point its own name at our
        address, and its pages would then have our origin. IP addresses and names outside the public
        DNS cannot be abused like this.

        Raises:
            HostForbidden: a public name that is neither ours nor on the list.
        """
        host = headers.get("host")
        if host is None:
            return  # HTTP/1.0; no browser
        name = (host_name(f"//{host}") or "").lower().rstrip(".")
        if is_private_name(name) or any(fnmatchcase(name, known) for known in self._names):
            return
        raise errors.HostForbidden(name)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Check the Origin header. Browsers send the origin of the page; programs send none and are
        accepted.

        Raises:
            OriginForbidden: a page of another host or port that is not on the list.
        """
        origin = headers.get("origin")
        if origin is None:
            return
        if self.lists_origin(origin):
            return
        page = _place(origin)
        # A Host without a port means the default port of the page's scheme: a proxy may terminate
        # TLS.
        scheme = origin.partition(":")[0]
        if page is None or page != _place(f"{scheme}://{headers.get('host', '')}"):
            raise errors.OriginForbidden(origin)

    def lists_origin(self, origin: str) -> bool:
        """True if pages of `origin` may open sessions."""
        allowed = self._security.allowed_origins
        return "*" in allowed or origin.rstrip("/") in {one.rstrip("/") for one in allowed}

    @contextmanager
    def visit(
        self, address: str, *, limit: int | None = None, returns: bool = False
    ) -> Iterator[None]:
        """During the block, count a session of `address`, or of a key that has its own `limit`.

        Args:
            returns: True if it resumes a session, which counts until it is taken over. Such
                connections and sessions together may be twice as many.

        Raises:
            TooManySessions: the address (or the /64 of an IPv6 address) has reached its limit.
        """
        whose = "from one address" if limit is None else "with one key"
        caller, limit = network_of(address), limit or self._sessions_per_client
        counts, there = self.sessions_by_address, self.sessions_by_address[caller]
        if returns:
            counts, there, limit = self._returning, there + self._returning[caller], 2 * limit
        if there >= limit:
            raise errors.TooManySessions(there, limit, whose)
        with self._counted(counts, caller):
            yield

    @asynccontextmanager
    async def visit_in_turn(self, address: str, *, limit: int | None = None) -> AsyncIterator[None]:
        """As `visit`, for a request: it waits behind the caller's earlier ones before it is
        refused."""
        caller, turn, loop = network_of(address), object(), asyncio.get_running_loop()
        turns = self._turns.setdefault(caller, deque())
        due_s = loop.time() + (TURN_S if len(turns) < TURNS else 0.0)
        turns.append(turn)

        def is_next() -> bool:
            there = self.sessions_by_address[caller]
            return turns[0] is turn and there < (limit or self._sessions_per_client)

        try:
            await wait_until(is_next, [self._freed], lambda: due_s - loop.time())
        finally:
            turns.remove(turn)
            if not turns:
                del self._turns[caller]
            self._freed.notify()
        with self.visit(address, limit=limit):
            yield

    @contextmanager
    def count(self, address: str, key_id: str | None) -> Iterator[None]:
        """During the block, count a session that was admitted before, whatever the limits."""
        with ExitStack() as held:
            for caller in (address, key_id and f"key {key_id}"):
                if caller:
                    held.enter_context(self._counted(self.sessions_by_address, network_of(caller)))
            yield

    @contextmanager
    def _counted(self, counts: Counter[str], caller: str) -> Iterator[None]:
        counts[caller] += 1
        try:
            yield
        finally:
            counts[caller] -= 1
            if not counts[caller]:
                del counts[caller]
            self._freed.notify()

    @contextmanager
    def claim(self, session_id: str) -> Iterator[None]:
        """Reserve a session id while the block runs.

        Raises:
            SessionIdInUse: a live connection has it.
        """
        if session_id in self._session_ids:
            raise errors.SessionIdInUse(session_id)
        freed = self._session_ids[session_id] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._session_ids[session_id]
            freed.set_result(None)

    async def wait_until_free(self, session_id: str, limit_s: float) -> None:
        """Wait at most `limit_s` until the id is free; `claim` shows whether it is."""
        freed = self._session_ids.get(session_id)
        if freed is not None:
            await asyncio.wait({freed}, timeout=limit_s)

    def check_worker(self, peer: Peer, headers: Mapping[str, str]) -> None:
        """Check that a worker has the shared secret. Without a secret, workers must be programs of
        this server's user on this machine.

        Raises:
            Unauthorized: otherwise, and always for pages.
        """
        if "origin" in headers:
            raise errors.Unauthorized("Browsers may not connect as workers.")
        secret = self._security.worker_secret
        if secret:
            if not hmac.compare_digest(headers.get(SECRET_HEADER, "").encode(), secret.encode()):
                raise errors.Unauthorized("The worker secret does not match.")
        elif not peer.is_own_program:
            raise errors.Unauthorized("Workers of other hosts or users need a shared secret.")

    def check_worker_url(self, url: str) -> None:
        """Without a shared secret, only workers on this machine receive sessions."""
        if not self._security.worker_secret and not names_loopback(url):
            raise errors.Unauthorized("Workers on other hosts need a shared secret.")


def _place(url: str) -> tuple[str, int | None] | None:
    """Host and port of an origin; None if it has no host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port or PORTS.get(parts.scheme)) if host else None


def names_loopback(url: str) -> bool:
    return is_this_machine(host_name(url))


def _last_entry(headers: Mapping[str, str], name: str) -> str:
    """The last entry of a list header. A proxy may add its own line below the client's; lines with
    the same name form one list, in order (RFC 9110, 5.3)."""
    lines = headers.getlist(name) if isinstance(headers, Headers) else [headers.get(name, "")]
    return lines[-1].rpartition(",")[2].strip() if lines else ""
