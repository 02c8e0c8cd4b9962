"""Users that a proxy in front of the gateway has signed in (OIDC, SAML, LDAP …), read from the
headers it adds.

oauth2-proxy, Authelia, authentik and similar proxies ask the identity provider and put the user's
name into a header. The header is trusted only if it comes from the proxy's address, and is ignored
otherwise. It is also ignored in requests that a page of another site makes the browser send with
the proxy's cookie.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Mapping, Set
from typing import Final

from starlette.datastructures import Headers

from parley.errors import OriginForbidden, SetupError
from parley.gateway.admission import Admission
from parley.gateway.state import Key, Role
from parley.settings import ForwardAuthSettings

USER_PREFIX: Final = "u_"
"""Prefix of a user's name where it takes the place of a key's id."""
USERS_KEPT: Final = 10_000
NAME_CHARS: Final = 254
"""Maximum length of an e-mail address. Source: RFC 5321."""
_PLAIN: Final = re.compile(r"(?![0-9a-f]{24}$)[A-Za-z0-9._@+-]{1,60}")
"""Names that need not be shortened. A name that looks like a shortened one is shortened too, or it
would have another user's id."""


class ForwardAuth:
    """Users as keys: each has a role, limits, usage and voices of its own.

    Args:
        admission: decides which pages may send requests.

    Raises:
        SetupError: the address of a proxy is invalid.
    """

    def __init__(self, settings: ForwardAuthSettings, admission: Admission) -> None:
        self._settings = settings
        self._admission = admission
        self._users: OrderedDict[str, Key] = OrderedDict()
        try:
            self._proxies = [ipaddress.ip_network(one, strict=False) for one in settings.proxies]
        except ValueError as error:
            raise SetupError(
                f"forward_auth.proxies: {error}.",
                hint="Name addresses or networks: 127.0.0.1,10.0.0.0/8",
            ) from error

    def user(self, peer: str | None, headers: Mapping[str, str]) -> Key | None:
        """The user that the proxy names, if any.

        Args:
            peer: address of the connection, not what its headers say.
        """
        name = self._header(headers, self._settings.user_header)
        if not name or len(name) > NAME_CHARS or not self._is_proxy(peer):
            return None
        try:
            self._admission.check_origin(headers)
        except OriginForbidden:
            return None
        groups = self._header(headers, self._settings.groups_header)
        members = {one.strip() for one in groups.split(",")} - {""}
        key = self._key(USER_PREFIX + _short(name), name, members)
        self._users[key.id] = key
        self._users.move_to_end(key.id)
        if len(self._users) > USERS_KEPT:
            self._users.popitem(last=False)
        return key

    def find(self, key_id: str) -> Key | None:
        """A user by the id that `user` returned, here or, without groups, at another gateway."""
        short = key_id.removeprefix(USER_PREFIX)
        return self._users.get(key_id) or (None if short == key_id else self._key(key_id, short))

    def _key(self, key_id: str, name: str, groups: Set[str] = frozenset()) -> Key:
        settings = self._settings
        role: Role = "talk"
        if groups & set(settings.admin_groups):
            role = "admin"
        elif groups & set(settings.operate_groups):
            role = "operate"
        return Key(
            id=key_id,
            name=name,
            hash="",
            created_s=0.0,
            last_used_s=None,
            revoked_s=None,
            max_sessions=settings.max_sessions,
            per_minute=settings.per_minute,
            role=role,
            minutes_per_day=settings.minutes_per_day,
            tokens_per_day=settings.tokens_per_day,
        )

    def _is_proxy(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._proxies)

    @staticmethod
    def _header(headers: Mapping[str, str], name: str | None) -> str:
        """The only value of a header; "" if there are several, because one of them is then the
        client's, which the proxy passed on."""
        if name is None:
            return ""
        values = headers.getlist(name) if isinstance(headers, Headers) else [headers.get(name, "")]
        return values[0].strip() if len(values) == 1 else ""


def _short(name: str) -> str:
    """A name shortened for headers, logs and tables."""
    if _PLAIN.fullmatch(name):
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
