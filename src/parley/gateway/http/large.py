"""Bodies of JSON: bounded while they come, read in a thread when they are large."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from parley.errors import InvalidRequest
from parley.gateway.http.routing import LateRoute
from parley.gateway.large_json import read_aside
from parley.transport import ITEMS_LIMIT


async def read_body(request: Request) -> bytearray:
    """A JSON body, held once.

    Raises:
        InvalidRequest: it has more items than any request needs.
        ClientDisconnect: the client left, or was too slow.
    """
    body = bytearray()
    items = 0
    async for piece in request.stream():
        items += piece.count(b",")
        if items > ITEMS_LIMIT:
            raise InvalidRequest(f"The request exceeds {ITEMS_LIMIT} items.")
        body += piece
    return body


class LargeJsonRoute(LateRoute):
    """A route whose JSON body is read in a thread when it is large."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_LargeJsonRequest(request.scope, request.receive))

        return handle


class _LargeJsonRequest(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = bytes(await read_body(self))
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        return await read_aside(len(body), lambda: json.loads(body))
