"""Who counts as admin on the REST side."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from parley import logs
from parley.gateway.house import House

log = logs.get(__name__)


def admin_only(house: House) -> Callable[[Request], None]:
    """A dependency that refuses everybody else and notes who did what."""

    def check(request: Request) -> None:
        peer = request.client.host if request.client else None
        house.door.check_admin(peer, request.headers)
        log.info("admin", method=request.method, path=request.url.path, address=peer)

    return check
