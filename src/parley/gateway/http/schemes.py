"""How callers may authenticate, for `/openapi.json`. Other modules decide what is accepted:
`authenticator.py` reads tokens, `admission.py` knows admins.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi.security import APIKeyHeader, HTTPBearer

from parley.gateway.authenticator import COOKIE, KEY_PREFIX, SESSION_PREFIX

BEARER: Final = HTTPBearer(
    scheme_name="bearer",
    description=f"A key (`{KEY_PREFIX}…`), the token of a browser (`{SESSION_PREFIX}…`), or the "
    "admin token.",
    auto_error=False,
)
ADMIN_TOKEN: Final = APIKeyHeader(
    name="X-Admin-Token",
    scheme_name="adminToken",
    description="The admin token. Until the server has one, admins are those who sit at it.",
    auto_error=False,
)

CALLERS: Final[dict[str, dict[str, Any]]] = {
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Api-Key",
        "description": f"A key (`{KEY_PREFIX}…`).",
    },
    "queryToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "A key or the token of a browser, never the admin's: addresses are logged.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"The token of a browser (`{SESSION_PREFIX}…`), set by `POST /api/token`.",
    },
}
"""Ways to show a key for operations that are not for admins, next to the bearer token."""
