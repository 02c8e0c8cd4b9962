"""Identifies callers: an anonymous client, the holder of a key, or an admin; and their role.

A token may come as `Authorization: Bearer`, `Api-Key`, `X-Api-Key`, `X-Admin-Token`, `?token=` or a
WebSocket subprotocol (sockets of browsers cannot send headers), or the cookie that `POST
/api/token` sets. An invalid token of ours is refused on every route and socket; only a stale cookie
is ignored, because its owner did not choose to send it. Clients of other services always send some
key: if the server needs none, a key in another format is ignored. Keys are random, so storing a
plain hash of them is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cryptography.fernet import Fernet, InvalidToken

from parley.clock import Clock
from parley.errors import Forbidden, OriginForbidden, RateLimited, Unauthorized
from parley.gateway.admission import Admission
from parley.gateway.forward_auth import ForwardAuth
from parley.gateway.state import Key, Role
from parley.protocol.networks import host_name, is_loopback, is_this_machine, network_of
from parley.settings import SecuritySettings
from parley.transport import RateLimit
from parley.transport.peer import Peer

KEY_PREFIX: Final = "pk_"
SESSION_PREFIX: Final = "st_"
SHARE_PREFIX: Final = "sh_"
OPEN_PREFIX: Final = "ek_"
"""Prefix of client secrets on servers without keys: such secrets carry settings but grant no
access."""
TOKEN_CHARS: Final = 8000
"""Maximum length of a token, which must fit into one header."""
COOKIE: Final = "parley_token"
_OWN_COOKIE: Final = re.compile(
    rf'(?:^|;)[ \t]*{COOKIE}="?([A-Za-z0-9_=-]{{1,1000}})"?[ \t]*(?:;|$)'
)
NOT_VALID: Final = (
    "This key or token is unknown, revoked or expired: the server's operator issues keys."
)
TOKEN_HEADERS: Final = (
    "authorization",
    "api-key",
    "x-api-key",
    "x-admin-token",
    "sec-websocket-protocol",
)
KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""Prefix of the key in a WebSocket subprotocol. Source: OpenAI Realtime, browsers."""

SESSION_S: Final = 900.0
"""Time for which a browser's token can open sessions; running sessions continue after it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client, and its `key` if it sent one, directly or through a session token
    (`is_session`).

    Args:
        only_talks: its token opens realtime sessions and nothing else.
    """

    kind: Literal["anonymous", "key", "admin"] = "anonymous"
    key: Key | None = None
    is_session: bool = False
    only_talks: bool = False


ANONYMOUS: Final = Caller()


class Authenticator:
    """Checks tokens. Belongs to the event loop. Keys are loaded once the state is open.

    Args:
        admission: decides which pages belong to this server.
        users: users signed in by a proxy; None if no proxy does that.
    """

    def __init__(
        self,
        security: SecuritySettings,
        clock: Clock,
        admission: Admission,
        *,
        users: ForwardAuth | None = None,
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._anonymous: RateLimit | None = None
        self.change(security)
        self.used_s: dict[str, float] = {}
        """Time of last use by key, since this was last cleared."""
        self._keys: dict[str, Key] = {}
        self._by_hash: dict[str, Key] = {}
        self._seal = Fernet(Fernet.generate_key())
        self._pepper = secrets.token_bytes(32)
        self._users = users
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)

    def change(self, security: SecuritySettings) -> None:
        """Apply rules to later requests."""
        self.needs_key = security.needs_key
        self._admin_token = security.admin_token
        self._trusts_proxy = security.trust_proxy
        before, per_minute = self._anonymous, security.anonymous_per_minute
        if per_minute <= 0:
            self._anonymous = None
        elif before is None or before.burst != per_minute:
            self._anonymous = RateLimit(per_minute, 60.0, self._clock.monotonic)

    @property
    def _admin_giver(self) -> str:
        """What tokens that an admin made have in place of a key's id; a new admin token ends
        them."""
        return f"admin {hash_key(self._admin_token or '')}"

    @property
    def keys(self) -> int:
        """Number of valid keys."""
        return sum(self._works(key) for key in self._keys.values())

    def fill(self, keys: list[Key], seal: bytes) -> None:
        """Load the stored keys and the secret that signs tokens."""
        self._keys = {key.id: key for key in keys}
        self._by_hash = {key.old_hash: key for key in keys if key.old_hash is not None}
        self._by_hash |= {key.hash: key for key in keys}
        self._seal = Fernet(seal)
        self._pepper = seal

    def pseudonym(self, address: str) -> str:
        """Replacement for an address in places where the address must not be stored."""
        return hashlib.blake2b(address.encode(), key=self._pepper[:64], digest_size=12).hexdigest()

    def identify(
        self, headers: Mapping[str, str], token: str | None = None, *, peer: str | None = None
    ) -> Caller:
        """Find the caller by its tokens.

        Args:
            token: from the query.
            peer: address of the connection, which may be a proxy that has signed the user in.

        Raises:
            Unauthorized: a token is not valid.
        """
        if token is None and not any(name in headers for name in TOKEN_HEADERS):
            return self._unshown(headers, peer)
        offered = _openai_tokens(headers)
        shown = [one for one in offered if one and (self.needs_key or not self._is_foreign(one))]
        shown += [
            one for one in (headers.get("x-api-key", ""), headers.get("x-admin-token", "")) if one
        ]
        callers = [self._admin(one) or self._holder(one) for one in shown]
        if token:
            # URLs end up in logs and histories: an admin token must not be in one.
            callers.append(self._holder(token))
        if any(caller is None for caller in callers):
            raise Unauthorized(NOT_VALID)
        found = [caller for caller in callers if caller is not None]
        if not found:
            return self._unshown(headers, peer)
        return next((caller for caller in found if caller.kind == "admin"), found[0])

    def _unshown(self, headers: Mapping[str, str], peer: str | None) -> Caller:
        """A caller without a token: its proxy or its cookie may identify it."""
        user = None if self._users is None else self._users.user(peer, headers)
        if user is not None:
            return Caller("key", user)
        stored = _cookie(headers.get("cookie", ""))
        caller = self._holder(stored) if stored else None
        return caller or ANONYMOUS

    def count(self, caller: Caller, address: str | None = None) -> None:
        """Count one request of a key, or of an address if the caller is anonymous or has a token
        that an admin issued. Addresses of this machine are not counted: behind a proxy that is not
        trusted, all clients seem to be on it.

        Args:
            address: the caller's; None if it is not counted.

        Raises:
            RateLimited: it has used up its requests of this minute.
        """
        key = caller.key
        if key is None:
            limit = self._anonymous
            if caller.kind == "admin" or limit is None or not address or is_loopback(address):
                return
            if not limit.take(network_of(address)):
                wait_s = limit.wait_s(network_of(address))
                raise RateLimited(limit.burst, has_key=False, retry_after_s=wait_s)
            return
        now_s = self._clock.monotonic()
        recent = self._recent[key.id]
        while recent and recent[0] <= now_s - 60:
            recent.popleft()
        if len(recent) >= key.per_minute:
            wait_s = max(1, math.ceil(recent[0] + 60 - now_s))
            raise RateLimited(key.per_minute, retry_after_s=wait_s)
        recent.append(now_s)
        self.used_s[key.id] = self._clock.time()

    def session_token(
        self, caller: Caller, lasts_s: float = SESSION_S, *, settings: str | None = None
    ) -> str:
        """A short-lived token with the rights of a key (never an admin's).

        Args:
            settings: initial settings of its sessions, see `settings_of`; None: the token is for
                our own pages and opens everything that the key opens.

        Raises:
            Forbidden: the caller itself has only such a token, which it could renew for ever.
        """
        if caller.is_session:
            raise Forbidden("A key is required: a session token cannot create another one.")
        until = self._clock.time() + lasts_s
        facts: dict[str, object] = {"until": until, "settings": settings}
        if caller.kind == "anonymous":
            return OPEN_PREFIX + self._sealed(facts)
        giver = caller.key.id if caller.key else self._admin_giver
        facts |= {"key": giver, "hash": caller.key.hash if caller.key else ""}
        return SESSION_PREFIX + self._sealed(facts)

    def settings_of(self, headers: Mapping[str, str], token: str | None = None) -> str:
        """Initial settings of sessions opened with a token; "": none.

        Args:
            token: from the query.

        Raises:
            Unauthorized: it was issued here for a caller without a key, and has expired.
        """
        for one in (*_openai_tokens(headers), token or ""):
            prefix = next((p for p in (OPEN_PREFIX, SESSION_PREFIX) if one.startswith(p)), None)
            facts = self._opened(one, prefix) if prefix else None
            if facts is not None:
                return str(facts.get("settings") or "")
            if prefix == OPEN_PREFIX and self._opened(one, prefix, at_any_time=True) is not None:
                raise Unauthorized("This client secret has expired.")
        return ""

    def share_token(self, recording_id: str, lasts_s: float | None) -> str:
        """Token of a share link: gives read access to one recording and hides its id."""
        until = None if lasts_s is None else self._clock.time() + lasts_s
        return SHARE_PREFIX + self._sealed({"recording": recording_id, "until": until})

    def shared(self, token: str) -> str | None:
        """The recording that a share token opens; None if the token is invalid or expired."""
        facts = self._opened(token, SHARE_PREFIX)
        recording_id = facts.get("recording") if facts else None
        return recording_id if isinstance(recording_id, str) else None

    def _is_foreign(self, token: str) -> bool:
        """True if a token is neither the admin token nor of this server's format."""
        return not token.startswith((KEY_PREFIX, SESSION_PREFIX, SHARE_PREFIX)) and (
            self._admin(token) is None
        )

    def _admin(self, token: str) -> Caller | None:
        expected = self._admin_token
        if expected and hmac.compare_digest(token.encode(), expected.encode()):
            return Caller("admin")
        return None

    def _holder(self, token: str) -> Caller | None:
        if token.startswith(KEY_PREFIX):
            key = self._shown_key(token)
            return Caller("key", key) if key else None
        facts = self._opened(token, SESSION_PREFIX)
        # Share tokens and client secrets have the same seal, and no key.
        if facts is None or "key" not in facts:
            return None
        given_by_admin = facts["key"] == self._admin_giver
        key = None if given_by_admin else self.find_key(str(facts["key"]))
        # It ends with the key that it was made with, which may have leaked.
        if not given_by_admin and (key is None or not self._opens(key, facts.get("hash"))):
            return None
        only_talks = facts.get("settings") is not None
        return Caller("key", key, is_session=True, only_talks=only_talks)

    def find_key(self, key_id: str) -> Key | None:
        key = self._keys.get(key_id)
        if key is None:
            return None if self._users is None else self._users.find(key_id)
        return key if self._works(key) else None

    def role_of(self, peer: Peer, headers: Mapping[str, str]) -> Role:
        """`admin` for a holder of that role or of the admin token. If no admin token is set, also
        for programs of the server's user on this machine, except pages of other sites and proxies.
        A session token, which a browser stores, always has the role `talk`."""
        user = None if self._users is None else self._users.user(peer.address, headers)
        names = ("x-api-key", "x-admin-token")
        shown = (bearer_token(headers), *(headers.get(name, "") for name in names))
        keys = [user, *(self._shown_key(one) for one in shown if one.startswith(KEY_PREFIX))]
        roles = {key.role for key in keys if key is not None}
        if "admin" in roles or self._is_trusted(peer, headers, is_user=user is not None):
            return "admin"
        return "operate" if "operate" in roles else "talk"

    @property
    def admin_requirement(self) -> str:
        """The error for a client without this role."""
        if self._admin_token:
            return "An admin token is required."
        return (
            "Admin routes answer programs of the server's user on its machine only, until "
            "security.admin_token is set."
        )

    def _is_trusted(self, peer: Peer, headers: Mapping[str, str], *, is_user: bool) -> bool:
        """True for a holder of the admin token or, if none is set, for a program or page of the
        server's user on this machine."""
        if self._admin_token:
            return self._admin(headers.get("x-admin-token") or bearer_token(headers)) is not None
        if is_user:
            return False  # a proxy on this machine, for a user who is not an admin
        # Also check the Host header: a site may point its own name at 127.0.0.1.
        if self._trusts_proxy or not is_this_machine(host_name(f"//{headers.get('host', '')}")):
            return False
        if not peer.is_own_program:
            return False
        origin = headers.get("origin")
        if origin is None:
            return True
        try:
            self._admission.check_origin(headers)
        except OriginForbidden:
            return False
        return is_this_machine(host_name(origin))

    def _shown_key(self, token: str) -> Key | None:
        shown = hash_key(token)
        key = self._by_hash.get(shown)
        return key if key and self._works(key) and self._opens(key, shown) else None

    def _opens(self, key: Key, shown: object) -> bool:
        """True if `shown` is the hash of the key, or of the previous one while that works."""
        is_old = key.old_until_s is not None and self._clock.time() < key.old_until_s
        return shown == key.hash or (is_old and shown == key.old_hash)

    def _works(self, key: Key) -> bool:
        is_expired = key.expires_s is not None and key.expires_s <= self._clock.time()
        return key.revoked_s is None and not is_expired

    def _sealed(self, facts: Mapping[str, object]) -> str:
        return self._seal.encrypt(json.dumps(facts).encode()).decode().rstrip("=")

    def _opened(
        self, token: str, prefix: str, *, at_any_time: bool = False
    ) -> dict[str, object] | None:
        if not token.startswith(prefix) or len(token) > TOKEN_CHARS:
            return None
        sealed = token.removeprefix(prefix)
        try:
            facts = json.loads(self._seal.decrypt(sealed + "=" * (-len(sealed) % 4)))
        except (InvalidToken, ValueError, TypeError):
            return None
        until = facts.get("until")
        is_over = until is not None and until < self._clock.time()
        return None if is_over and not at_any_time else dict(facts)


def caller_word(caller: Caller, *, is_admin: bool) -> str:
    """A caller as it is described to workers; see `CALLER_HEADER`.

    Args:
        is_admin: True if it is an admin because it is on this machine.
    """
    if is_admin or caller.kind == "admin":
        return "admin"
    return f"key:{caller.key.id}" if caller.key is not None else ""


def who(caller: Caller) -> str:
    """Name of an admin or operator in the audit log."""
    if caller.key is not None:
        return caller.key.id
    return "local" if caller.kind == "anonymous" else "admin"


def make_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _openai_tokens(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Tokens in the places where OpenAI's clients send a key."""
    return (
        bearer_token(headers),
        headers.get("api-key", ""),
        _from_subprotocol(headers.get("sec-websocket-protocol", "")),
    )


def bearer_token(headers: Mapping[str, str]) -> str:
    """The token of the `Authorization` header; "" if there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _from_subprotocol(header: str) -> str:
    """The key among the subprotocols that OpenAI's browser client offers."""
    offered = (one.strip() for one in header.split(","))
    return next(
        (one.removeprefix(KEY_SUBPROTOCOL) for one in offered if one.startswith(KEY_SUBPROTOCOL)),
        "",
    )


def _cookie(header: str) -> str:
    # Parsed by hand: the standard library's parser takes seconds for one long quoted value
    # (CVE-2024-7592), and our tokens are never quoted.
    found = _OWN_COOKIE.search(header)
    return found[1] if found else ""
