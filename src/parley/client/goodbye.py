"""The goodbye of a client whose connection is gone. Without it the session would keep its slot to
the end of the resume window."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import httpx

from parley.client.access import Access
from parley.errors import ParleyError

LIMIT_S: Final = 2.0
"""How long it is tried: a gateway that is restarting may be there again."""
PAUSE_S: Final = 0.25
ATTEMPTS: Final = 5


async def end_session(access: Access, session_id: str) -> bool:
    """Ask the server by HTTP to end a session that was started with `resume`; whether it did so
    within `LIMIT_S`. Never fails: what is not ended ends by itself when the window is over."""
    address = access.http_url(f"/api/sessions/{session_id}/end")
    transport = access.transport.requests(access) if access.transport else None
    with contextlib.suppress(TimeoutError, ParleyError):
        async with (
            asyncio.timeout(LIMIT_S),
            httpx.AsyncClient(
                headers=access.headers(),
                transport=transport,
                verify=access.verify() if address.startswith("https:") else True,
                trust_env=not access.is_loopback(),
            ) as http,
        ):
            for _ in range(ATTEMPTS):
                try:
                    answer = await http.post(address)
                except httpx.TransportError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if answer.status_code == 200:
                    return True
                if answer.status_code not in (404, 503):
                    break
                # A gateway that has just started learns of its sessions from its workers.
                await asyncio.sleep(PAUSE_S)
    return False
