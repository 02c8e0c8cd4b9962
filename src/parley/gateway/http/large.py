"""Bodies of JSON: bounded while they come, read in a thread when they are large."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import WrapValidator
from starlette.exceptions import HTTPException

from parley.errors import BadInput, InvalidRequest
from parley.gateway.http.routing import LateRoute
from parley.gateway.large_json import read_aside
from parley.protocol import codec
from parley.protocol.long_base64 import LongBase64
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
    """A route whose JSON body is read in a thread when it is large, its long base64 piece by piece
    (`Base64Text`)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_LargeJsonRequest(request.scope, request.receive))

        return handle


class _LargeJsonRequest(Request):
    # FastAPI answers other errors than these in words of its own.

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            try:
                self._body = bytes(await read_body(self))
            except InvalidRequest as error:
                raise HTTPException(error.http_status, str(error)) from error
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        try:
            return await read_aside(len(body), lambda: codec.parse(body))
        except BadInput as error:
            raise HTTPException(error.http_status, str(error)) from error


def _as_it_is(value: Any, read: Callable[[Any], str]) -> str:
    return value if isinstance(value, LongBase64) else read(value)


Base64Text = Annotated[str, WrapValidator(_as_it_is)]
"""A field of a body that may be long base64, for `codec.from_base64`. Of a `str` pydantic makes a
copy, which would be the beginning of a `LongBase64` only."""
