"""The requests around conversations: health, status, the queue, stopping from outside."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Any, Literal, Self, Unpack
from urllib.parse import quote

import httpx

from parley.client.connection import Access, AccessOptions, Unreachable, as_error


class Server:
    """A server as an operator sees it. Use as `async with Server(url) as server`."""

    def __init__(self, url: str, **access: Unpack[AccessOptions]) -> None:
        self._access = Access(url, **access)
        address = self._access.http_url("/")
        self._http = httpx.AsyncClient(
            base_url=address,
            headers=self._access.headers(),
            timeout=self._access.open_timeout_s,
            verify=self._access.verify() if address.startswith("https:") else True,
            # A proxy from the environment cannot know this machine's own addresses.
            trust_env=not self._access.is_loopback(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections; safe to repeat."""
        await self._http.aclose()

    async def health(self) -> dict[str, Any]:
        """Whether it answers at all."""
        return await self._ask("GET", "/health")

    async def status(self) -> dict[str, Any]:
        """Workers and queue in numbers."""
        return await self._ask("GET", "/status")

    async def queue(self) -> dict[str, Any]:
        """Who waits, and what runs."""
        return await self._ask("GET", "/api/queue")

    async def cancel(self, ticket_id: str) -> bool:
        """Take a waiting ticket out of the queue; False when it was not waiting."""
        answer = await self._ask("DELETE", f"/api/queue/{quote(ticket_id, safe='')}")
        return bool(answer.get("success"))

    async def stop_half_duplex(
        self, session_id: str, scope: Literal["session", "turn"] = "session"
    ) -> bool:
        """Stop a half-duplex session, or its present turn; False when there is none."""
        body = {"session_id": session_id, "scope": scope}
        answer = await self._ask("POST", "/api/half_duplex/stop", body, accept=(404,))
        return bool(answer.get("success"))

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        accept: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        try:
            reply = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Unreachable(self._access.http_url(path), f"{why}.") from None
        except ssl.SSLError as error:
            raise Unreachable(self._access.http_url(path), f"{error}.") from None
        try:
            content = reply.json()
        except ValueError:
            content = None
        fields: dict[str, Any] = content if isinstance(content, dict) else {}
        if reply.is_success or reply.status_code in accept:
            return fields
        sentence = fields.get("detail")
        raise as_error(
            str(fields.get("code", "")),
            sentence if isinstance(sentence, str) else f"The server answered {reply.status_code}.",
        )
