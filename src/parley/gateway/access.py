"""Who is calling: nobody in particular, the holder of a key, or an admin.

A token may come as `Authorization: Bearer`, `X-Api-Key`, `X-Admin-Token`, `?token=` (sockets of
browsers cannot send headers) or the cookie that `POST /api/token` sets. One that is shown and not
valid is refused everywhere, on every route and socket; only a stale cookie counts as none, because
its owner did not choose to send it. Keys are random, so a plain hash of them is enough to keep.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final, Literal

from cryptography.fernet import Fernet, InvalidToken

from parley.clock import Clock
from parley.errors import Refused, Unauthorized
from parley.gateway.state import Key

KEY_PREFIX: Final = "pk_"
SESSION_PREFIX: Final = "st_"
SHARE_PREFIX: Final = "sh_"
COOKIE: Final = "parley_token"

SESSION_S: Final = 900.0
"""How long a browser's token opens sessions; one that runs is not ended."""


class TooManyRequests(Refused):
    """A key was used more often than it may be."""

    code = "rate_limited"
    close_code = 1008
    http_status = 429

    def __init__(self, per_minute: int) -> None:
        super().__init__(f"This key may be used {per_minute} times a minute.")
        self.per_minute = per_minute


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever calls; `key` when it showed one, itself or by a session token."""

    kind: Literal["anonymous", "key", "admin"] = "anonymous"
    key: Key | None = None


class Access:
    """Checks tokens. Belongs to the event loop; the keys are filled in when the state is open.

    Args:
        admin_token: as set; None where admins are known by their address.
        needs_key: whether conversations and data are for callers with a token only.
    """

    def __init__(self, *, admin_token: str | None, needs_key: bool, clock: Clock) -> None:
        self.needs_key = needs_key
        self.used_s: dict[str, float] = {}
        """When keys were last used, since this was last cleared."""
        self._admin_token = admin_token
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._by_hash: dict[str, Key] = {}
        self._seal = Fernet(Fernet.generate_key())
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)

    def fill(self, keys: list[Key], seal: bytes) -> None:
        """Take over the stored keys and the secret that seals tokens."""
        self._keys = {key.id: key for key in keys}
        self._by_hash = {key.hash: key for key in keys if key.revoked_s is None}
        self._seal = Fernet(seal)

    def identify(self, headers: Mapping[str, str], token: str | None = None) -> Caller:
        """Who shows what.

        Args:
            token: from the query.

        Raises:
            Unauthorized: a token that opens nothing.
        """
        shown = [
            one
            for one in (
                _bearer(headers.get("authorization", "")),
                headers.get("x-api-key", ""),
                headers.get("x-admin-token", ""),
            )
            if one
        ]
        callers = [self._admin(one) or self._holder(one) for one in shown]
        if token:
            # Addresses end up in logs and histories: an admin token has no place there.
            callers.append(self._holder(token))
        if any(caller is None for caller in callers):
            raise Unauthorized("This token is not valid.")
        found = [caller for caller in callers if caller is not None]
        if not found:
            stored = _cookie(headers.get("cookie", ""))
            caller = self._holder(stored) if stored else None
            return caller or Caller()
        return next((caller for caller in found if caller.kind == "admin"), found[0])

    def count(self, caller: Caller) -> None:
        """One use of a key.

        Raises:
            TooManyRequests: its minute is full.
        """
        key = caller.key
        if key is None:
            return
        now_s = self._clock.monotonic()
        recent = self._recent[key.id]
        while recent and recent[0] <= now_s - 60:
            recent.popleft()
        if len(recent) >= key.per_minute:
            raise TooManyRequests(key.per_minute)
        recent.append(now_s)
        self.used_s[key.id] = self._clock.time()

    def session_token(self, caller: Caller) -> tuple[str, float]:
        """A short-lived token with the rights of a key (never an admin's), and its seconds."""
        facts = {"key": caller.key.id if caller.key else None, "until": self._until(SESSION_S)}
        return SESSION_PREFIX + self._sealed(facts), SESSION_S

    def share_token(self, recording_id: str, lasts_s: float | None) -> str:
        """A link's token: opens one recording for looking, and hides its id."""
        until = None if lasts_s is None else self._until(lasts_s)
        return SHARE_PREFIX + self._sealed({"recording": recording_id, "until": until})

    def shared(self, token: str) -> str | None:
        """The recording that a share token opens; None when it opens nothing (any more)."""
        facts = self._opened(token, SHARE_PREFIX)
        recording_id = facts.get("recording") if facts else None
        return recording_id if isinstance(recording_id, str) else None

    def _admin(self, token: str) -> Caller | None:
        expected = self._admin_token
        if expected and hmac.compare_digest(token.encode(), expected.encode()):
            return Caller("admin")
        return None

    def _holder(self, token: str) -> Caller | None:
        if token.startswith(KEY_PREFIX):
            key = self._by_hash.get(hash_key(token))
            return Caller("key", key) if key else None
        facts = self._opened(token, SESSION_PREFIX)
        if facts is None:
            return None
        if facts.get("key") is None:
            return Caller("key")  # given out by an admin
        key = self._keys.get(str(facts["key"]))
        return Caller("key", key) if key is not None and key.revoked_s is None else None

    def _until(self, lasts_s: float) -> float:
        return self._clock.time() + lasts_s

    def _sealed(self, facts: Mapping[str, object]) -> str:
        return self._seal.encrypt(json.dumps(facts).encode()).decode().rstrip("=")

    def _opened(self, token: str, prefix: str) -> dict[str, object] | None:
        if not token.startswith(prefix) or len(token) > 1000:
            return None
        sealed = token.removeprefix(prefix)
        try:
            facts = json.loads(self._seal.decrypt(sealed + "=" * (-len(sealed) % 4)))
        except (InvalidToken, ValueError, TypeError):
            return None
        until = facts.get("until")
        if until is not None and until < self._clock.time():
            return None
        return dict(facts)


def make_key() -> str:
    """A new key, shown once."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _cookie(header: str) -> str:
    try:
        cookie = SimpleCookie(header)
    except CookieError:
        return ""
    return cookie[COOKIE].value if COOKIE in cookie else ""
