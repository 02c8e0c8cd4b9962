"""The client that sent an HTTP request; `auth.check` identifies it before any route runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from parley.errors import Forbidden, Unauthorized
from parley.gateway.authenticator import Caller, caller_word
from parley.gateway.parts import AccessControl
from parley.gateway.state import Key, Role
from parley.library.voices import VoiceUser
from parley.protocol.networks import network_of
from parley.transport.peer import Peer


class RequestHeaders(Headers):
    """Headers of a request for about a dozen look-ups: decoded once, while Starlette's class
    compares the name with every line each time. If several lines have the same name, the first
    counts."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        self._first: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in reversed(scope["headers"])
        }

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def __contains__(self, key: Any) -> bool:
        return key.lower() in self._first

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)


@dataclass(frozen=True, slots=True)
class Requester:
    """A client, identified by its tokens and its address.

    Args:
        address: of the client, even behind a proxy.
        peer: the other end of the connection.
    """

    caller: Caller
    address: str
    peer: Peer
    headers: Mapping[str, str]
    access: AccessControl

    @property
    def key(self) -> Key | None:
        return self.caller.key

    @property
    def key_id(self) -> str | None:
        return None if self.caller.key is None else self.caller.key.id

    @property
    def is_anonymous(self) -> bool:
        """True if it has no token; on this machine it may be an admin nevertheless."""
        return self.caller.kind == "anonymous"

    @property
    def role(self) -> Role:
        return self.access.authenticator.role_of(self.peer, self.headers)

    @property
    def is_admin(self) -> bool:
        return self.caller.kind == "admin" or self.role == "admin"

    @property
    def is_operator(self) -> bool:
        """True for operators and admins."""
        return self.role != "talk"

    @property
    def network(self) -> str:
        """The address, or the /64 of an IPv6 address, for which limits are counted."""
        return network_of(self.address)

    @property
    def owner(self) -> str:
        """Its key or, without one, its network: keys of one address do not limit one another."""
        return self.key_id or self.network

    @property
    def pseudonym(self) -> str:
        """Pseudonym for the network in stored data."""
        return self.access.authenticator.pseudonym(self.network)

    @property
    def word(self) -> str:
        """Its description for workers."""
        return caller_word(self.caller, is_admin=self.is_admin)

    @property
    def voice_user(self) -> VoiceUser:
        return VoiceUser(is_admin=self.is_admin, key_id=self.key_id, client=self.pseudonym)

    def check_role(self, needed: Role) -> None:
        """Refuse a client without a role; admins have all of them.

        Raises:
            Unauthorized: it has no token.
            Forbidden: its token has another role.
        """
        if self.role in ("admin", needed):
            return
        if self.is_anonymous:
            raise Unauthorized(self.access.authenticator.admin_requirement)
        raise Forbidden(f"This request needs a key with the role '{needed}' in a header.")
