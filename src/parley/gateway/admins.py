"""Who may administer or operate the server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from parley.errors import OriginForbidden, Unauthorized
from parley.gateway.admission import FORWARDED_HEADERS, Admission, is_loopback, is_this_machine
from parley.gateway.authenticator import Authenticator, bearer_token
from parley.gateway.forward_auth import ForwardAuth
from parley.protocol.networks import host_name
from parley.settings import SecuritySettings


class Admins:
    """Admins show the admin token, or a key or a proxy's user with the role; without an admin token
    they are on this machine.

    Args:
        users: those that a proxy signs in; None: no proxy does.
    """

    def __init__(
        self,
        security: SecuritySettings,
        *,
        admission: Admission,
        authenticator: Authenticator,
        users: ForwardAuth | None = None,
    ) -> None:
        self._admission = admission
        self._authenticator = authenticator
        self._users = users
        self.change(security)

    def change(self, security: SecuritySettings) -> None:
        """Apply rules to later requests."""
        self._security = security

    def is_admin(self, peer: str | None, headers: Mapping[str, str]) -> bool:
        """True for a holder of the role `admin` or of the admin token. Without such a token, also
        for requests from this machine, except those of other sites' pages and of proxies."""
        return self._is_admin(peer, headers, self._user_role(peer, headers), self._roles(headers))

    def _is_admin(
        self,
        peer: str | None,
        headers: Mapping[str, str],
        user_role: str | None,
        roles: set[str],
    ) -> bool:
        if user_role == "admin" or "admin" in roles:
            return True
        token = self._security.admin_token
        if token:
            shown = headers.get("x-admin-token") or bearer_token(headers)
            return hmac.compare_digest(shown.encode(), token.encode())
        if user_role is not None:
            return False  # a proxy on this machine, for a user who is not an admin
        if self._security.trust_proxy or any(name in headers for name in FORWARDED_HEADERS):
            return False
        # The Host header is checked too: a site may point its own name at 127.0.0.1.
        if not is_loopback(peer) or not is_this_machine(host_name(f"//{headers.get('host', '')}")):
            return False
        origin = headers.get("origin")
        if origin is None:
            return True
        try:
            self._admission.check_origin(headers)
        except OriginForbidden:
            return False
        return is_this_machine(host_name(origin))

    def is_operator(self, peer: str | None, headers: Mapping[str, str]) -> bool:
        """True for admins and for holders of the role `operate`."""
        user_role, roles = self._user_role(peer, headers), self._roles(headers)
        if user_role == "operate" or "operate" in roles:
            return True
        return self._is_admin(peer, headers, user_role, roles)

    def check_operator(self, peer: str | None, headers: Mapping[str, str]) -> None:
        if not self.is_operator(peer, headers):
            self.check_admin(peer, headers)

    def check_admin(self, peer: str | None, headers: Mapping[str, str]) -> None:
        if not self.is_admin(peer, headers):
            raise Unauthorized(
                "An admin token is required."
                if self._security.admin_token
                else "Admin routes answer on this machine only, until an admin token is set."
            )

    def _user_role(self, peer: str | None, headers: Mapping[str, str]) -> str | None:
        user = None if self._users is None else self._users.user(peer, headers)
        return None if user is None else user.role

    def _roles(self, headers: Mapping[str, str]) -> set[str]:
        names = ("x-api-key", "x-admin-token")
        shown = (bearer_token(headers), *(headers.get(name, "") for name in names))
        return {role for token in shown if token and (role := self._authenticator.role_of(token))}
