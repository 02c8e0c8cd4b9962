"""Who may come in: origins, addresses, session ids, tokens.

Checks only, no sockets. Whatever is refused here costs nothing else. Source: service.md 8.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from parley.errors import OriginForbidden, SessionIdInUse, TooManySessions, Unauthorized
from parley.protocol.control import SECRET_HEADER
from parley.settings import SecuritySettings

FORWARDED_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip")


class Door:
    """The rules, and who is inside."""

    def __init__(self, security: SecuritySettings, *, sessions_per_client: int) -> None:
        self._security = security
        self._sessions_per_client = sessions_per_client
        self._inside: Counter[str] = Counter()
        self._session_ids: set[str] = set()

    @property
    def sessions_by_address(self) -> Mapping[str, int]:
        return self._inside

    def address_of(self, peer: str | None, headers: Mapping[str, str]) -> str:
        """The client's address: the peer's, or the proxy's word for it if proxies are trusted."""
        if self._security.trust_proxy:
            # The last entry is the one our own proxy wrote; those before it are the client's words.
            last = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
            if last:
                return last
        return peer or "unknown"

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Browsers say which page asks; programs say nothing and may pass.

        Raises:
            OriginForbidden: a page of another host that is not on the list.
        """
        origin = headers.get("origin")
        if origin is None:
            return
        allowed = self._security.allowed_origins
        if "*" in allowed or origin.rstrip("/") in {one.rstrip("/") for one in allowed}:
            return
        page = _hostname(origin)
        if page is None or page != _hostname(f"//{headers.get('host', '')}"):
            raise OriginForbidden(origin)

    @contextmanager
    def visit(self, address: str, *, limit: int | None = None) -> Iterator[None]:
        """Count a session of `address` (or of whoever else is counted) while the block runs.

        Raises:
            TooManySessions: it has as many as one address may have.
        """
        held, limit = self._inside[address], limit or self._sessions_per_client
        if held >= limit:
            raise TooManySessions(held, limit)
        self._inside[address] += 1
        try:
            yield
        finally:
            self._inside[address] -= 1
            if not self._inside[address]:
                del self._inside[address]

    @contextmanager
    def claim(self, session_id: str) -> Iterator[None]:
        """Own a session id while the block runs.

        Raises:
            SessionIdInUse: a live connection has it.
        """
        if session_id in self._session_ids:
            raise SessionIdInUse(session_id)
        self._session_ids.add(session_id)
        try:
            yield
        finally:
            self._session_ids.discard(session_id)

    def is_claimed(self, session_id: str) -> bool:
        return session_id in self._session_ids

    def is_admin(self, peer: str | None, headers: Mapping[str, str]) -> bool:
        """With a token: who shows it. Without: who sits at this machine, and no page of another
        site or request passed on by a proxy."""
        token = self._security.admin_token
        if token:
            shown = headers.get("x-admin-token") or _bearer(headers.get("authorization", ""))
            return hmac.compare_digest(shown.encode(), token.encode())
        if self._security.trust_proxy or any(name in headers for name in FORWARDED_HEADERS):
            return False
        # The Host header is checked too: a site may point its own name at 127.0.0.1.
        if not is_loopback(peer) or not _names_loopback(_hostname(f"//{headers.get('host', '')}")):
            return False
        origin = headers.get("origin")
        return origin is None or _names_loopback(_hostname(origin))

    def check_admin(self, peer: str | None, headers: Mapping[str, str]) -> None:
        """Raise `Unauthorized` unless `is_admin`."""
        if not self.is_admin(peer, headers):
            raise Unauthorized(
                "An admin token is required."
                if self._security.admin_token
                else "Admin routes answer on this machine only, until an admin token is set."
            )

    def check_worker(self, peer: str | None, headers: Mapping[str, str]) -> None:
        """A worker shows the shared secret; without one it must be on this machine.

        Raises:
            Unauthorized: otherwise, and always for pages.
        """
        if "origin" in headers:
            raise Unauthorized("Pages are no workers.")
        secret = self._security.worker_secret
        if secret:
            if not hmac.compare_digest(headers.get(SECRET_HEADER, "").encode(), secret.encode()):
                raise Unauthorized("The worker secret does not match.")
        elif not is_loopback(peer) or any(name in headers for name in FORWARDED_HEADERS):
            raise Unauthorized("Workers on other hosts need a shared secret.")

    def check_worker_url(self, url: str) -> None:
        """Without a shared secret sessions are sent to this machine only."""
        if not self._security.worker_secret and not _names_loopback(_hostname(url)):
            raise Unauthorized("Workers on other hosts need a shared secret.")


def is_loopback(address: str | None) -> bool:
    """Whether a peer address is this machine's loopback."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def _names_loopback(hostname: str | None) -> bool:
    return hostname == "localhost" or is_loopback(hostname)


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
