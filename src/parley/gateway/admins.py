"""Who may administer or operate the server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from parley.errors import OriginForbidden
from parley.gateway.admission import FORWARDED_HEADERS, Admission, is_loopback, is_this_machine
from parley.gateway.authenticator import Authenticator, bearer_token
from parley.gateway.forward_auth import ForwardAuth
from parley.gateway.state import Role
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

    def role_of(self, peer: str | None, headers: Mapping[str, str]) -> Role:
        """`admin` for a holder of that role or of the admin token. Without such a token, also for
        requests from this machine, except those of other sites' pages and of proxies."""
        user = None if self._users is None else self._users.user(peer, headers)
        names = ("x-api-key", "x-admin-token")
        shown = (bearer_token(headers), *(headers.get(name, "") for name in names))
        roles = {self._authenticator.role_of(token) for token in shown if token}
        if user is not None:
            roles.add(user.role)
        if "admin" in roles or self._is_trusted(peer, headers, is_user=user is not None):
            return "admin"
        return "operate" if "operate" in roles else "talk"

    @property
    def requirement(self) -> str:
        """What a client without the role needs."""
        if self._security.admin_token:
            return "An admin token is required."
        return "Admin routes answer on this machine only, until an admin token is set."

    def _is_trusted(self, peer: str | None, headers: Mapping[str, str], *, is_user: bool) -> bool:
        """True for a holder of the admin token, or where there is none for a program or page of
        this machine."""
        token = self._security.admin_token
        if token:
            shown = headers.get("x-admin-token") or bearer_token(headers)
            return hmac.compare_digest(shown.encode(), token.encode())
        if is_user:
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
