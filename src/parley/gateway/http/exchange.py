"""The application in front of the routes, which handles every HTTP exchange and every WebSocket.

An exchange has an id, a caller checked by `auth.py`, a body of bounded size within the memory for
bodies, and a response with the header fields that protect pages and control caching. Errors of
routes become responses here (`errors.py`). WebSockets are checked before a route receives them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from parley import logs
from parley.errors import OriginForbidden, ParleyError, ServiceUnavailable
from parley.gateway.admission import Admission
from parley.gateway.http import absent, auth
from parley.gateway.http.errors import OPENAI_PREFIX, REQUEST_ID, Failures
from parley.gateway.http.requester import RequestHeaders
from parley.gateway.http.routing import DEFAULT_BODY_BYTES, Route, RouteTable
from parley.gateway.runtime import GatewayRuntime

ANSWER_HEAD: Final = ("/static/", "/api/sessions/")
"""Routes that answer HEAD themselves, without reading the file."""
_ids: Final = random.Random()
"""Ids of requests must differ; they need not be secret."""


class Exchanges:
    """ASGI application in front of the routes.

    Args:
        failures: creates the responses to requests that fail.
    """

    def __init__(
        self,
        routes: RouteTable,
        runtime: GatewayRuntime,
        failures: Failures,
    ) -> None:
        self._routes = routes
        self._runtime = runtime
        self._failures = failures
        self._logs_access = runtime.settings.log.access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, runtime=self._runtime)
        with logs.bind_request(exchange.id):
            try:
                await self._serve(exchange)
            finally:
                await exchange.end()
                if self._logs_access and scope["path"] not in auth.QUIET_PATHS:
                    status, access = exchange.status or 500, self._runtime.access
                    auth.log_access(scope, access, status, exchange.took_s)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            auth.check_socket(scope, self._runtime.access)
        except ParleyError as error:
            # The published realtime dialect is also below `/v1/`, so the refusal has
            # our format there.
            await self._failures.refusal("", error)(scope, receive, send)
            return
        await self._routes.serve(self._routes.find(scope), scope, receive, send)

    async def _serve(self, exchange: _Exchange) -> None:
        scope, route = exchange.scope, None
        try:
            asked = preflight(scope, exchange.headers, self._runtime.access.admission)
            if asked is not None:
                await asked(scope, exchange.receive, exchange.send)
                return
            route = self._routes.find(scope)
            exchange.check_body(route)
            auth.check(scope, self._runtime.access)
            await self._routes.serve(route, scope, exchange.receive, exchange.send)
        except Exception as error:
            request = Request(scope, exchange.receive)
            if exchange.status:
                self._failures.report(request, error)
                raise  # uvicorn closes the connection: a response that was started cannot change
            answer = self._failures.answer(request, error, is_there=route is not None)
            await answer(scope, exchange.receive, exchange.send)


class _Exchange:
    """One request and its response.

    Attributes:
        scope: of the request, with `state`: `headers`, `request_id` and, for routes that allocate
            memory, `claim`.
        status: of the response; 0 until it starts.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, runtime: GatewayRuntime
    ) -> None:
        # Not from the system: reading its random numbers releases the interpreter lock.
        self.id = f"req_{_ids.getrandbits(128):032x}"
        self._runtime = runtime
        self.status = 0
        self._began_s = runtime.clock.monotonic()
        self._receive, self._send = receive, send
        self._budget = runtime.links.budget
        self._received = self._claimed = self._more = 0
        self._owner = ""
        self._limit, self._is_held = DEFAULT_BODY_BYTES, True
        self.headers = RequestHeaders(scope)
        scope["state"] |= {"request_id": self.id, "headers": self.headers, "claim": self.claim}
        if scope["method"] == "HEAD" and not scope["path"].startswith(ANSWER_HEAD):
            # The routes respond as to GET; uvicorn, which has the original scope, sends no body
            # (RFC 9110, 9.3.2).
            scope = {**scope, "method": "GET"}
        self.scope = scope

    @property
    def took_s(self) -> float:
        return self._runtime.clock.monotonic() - self._began_s

    def check_body(self, route: BaseRoute | None) -> None:
        """Refuse a body whose announced size is too large.

        Raises:
            HTTPException: 413, or 404 if the path is one of OpenAI's API that takes such bodies.
        """
        length = self.headers.get("content-length", "0").strip()
        if length == "0" and "transfer-encoding" not in self.headers:
            return
        if isinstance(route, Route):
            self._limit, self._is_held = route.body_bytes, not route.spools
        if length.isdigit() and int(length) <= self._limit:
            return
        if absent.has_hint(self.scope["path"]):
            raise HTTPException(404)
        raise HTTPException(413, _too_large(self._limit))

    def claim(self, size_bytes: int) -> None:
        """Count data that is loaded for this request as memory of its client.

        Raises:
            ServiceUnavailable: there is not enough memory.
        """
        self._take(size_bytes)
        self._more += size_bytes

    def _take(self, size_bytes: int) -> None:
        if not self._owner:
            peer = auth.peer_of(self.scope)
            self._owner = self._runtime.access.admission.owner_of(peer, self.headers)
        if not self._budget.take(size_bytes, self._owner):
            raise ServiceUnavailable("Other large requests use all memory: try again later.")

    async def receive(self) -> Message:
        """The next piece of the body, which is counted.

        Raises:
            HTTPException: 413.
            ServiceUnavailable: there is no memory for it.
        """
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._limit:
            raise HTTPException(413, _too_large(self._limit))
        unclaimed = self._received - self._claimed
        if self._is_held and unclaimed > DEFAULT_BODY_BYTES:
            self._take(unclaimed)
            self._claimed += unclaimed
        return message

    async def send(self, message: Message) -> None:
        """Send a piece of the response, with a completed head."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        await self._send(message)

    async def _begin(self, message: Message) -> None:
        self.status = message["status"]
        path: str = self.scope["path"]
        more = [(REQUEST_ID, self.id.encode())]
        if path.startswith(OPENAI_PREFIX):
            more.append((b"openai-processing-ms", b"%d" % round(1000 * self.took_s)))
        message["headers"] = completed(path, message["headers"], more)
        if path.startswith(READABLE):
            answer = MutableHeaders(raw=message["headers"])
            let_pages_read(answer, self.headers.get("origin"), self._runtime.access.admission)
        # First, so that a client that has its response finds the entry in the audit log.
        await auth.note(self.scope, self._runtime, self.status)

    async def end(self) -> None:
        """Release all resources; a response that was never started counts as failed."""
        if not self.status:
            await auth.note(self.scope, self._runtime, 500)
        if self._claimed or self._more:
            self._budget.give(self._claimed + self._more, self._owner)


def _too_large(limit: int) -> str:
    unit, name = (1 << 20, "MiB") if limit >= 1 << 20 else (1 << 10, "KiB")
    return f"Request body exceeds {limit / unit:.3g} {name}."


Field = tuple[bytes, bytes]

PAGE_POLICY: Final = (
    b"default-src 'self'; connect-src 'self' ws: wss:; media-src 'self' blob: data:; "
    b"img-src 'self' blob: data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    b"form-action 'self'; frame-ancestors 'none'"
)
ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
DATA: Final = ("/api/", "/v1/")
"""Responses here belong to one client (recordings, tokens, voices); caches must not store them."""


def completed(path: str, own: Iterable[Field], more: Iterable[Field]) -> list[Field]:
    """The header fields of a response: its own, and the others that it lacks.

    Args:
        path: of the request.
        own: names are lower case.
        more: of this exchange.
    """
    fields = list(own)
    present = dict(fields)
    is_page = present.get(b"content-type", b"").startswith(b"text/html")
    others = [*more, *ALWAYS]
    if is_page:
        others.append((b"content-security-policy", PAGE_POLICY))
    if is_page or path.startswith("/static/"):
        # Browsers check if it has changed; otherwise, after an update, pages would use old scripts.
        others.append((b"cache-control", b"no-cache"))
    elif path.startswith(DATA):
        others.append((b"cache-control", b"no-store"))
    fields += [field for field in others if field[0] not in present]
    return fields


READABLE: Final = ("/static/", "/v1/")
"""Paths that pages of allowed origins (`security.allowed_origins`) may read, so that they can run
the JavaScript client, and OpenAI's."""
PREFLIGHT_S: Final = 600


def let_pages_read(answer: MutableHeaders, origin: str | None, admission: Admission) -> None:
    """Allow the requesting page to read a response below `READABLE`."""
    if origin is None or not admission.lists_origin(origin):
        return
    answer["access-control-allow-origin"] = origin
    answer["access-control-expose-headers"] = "x-request-id, retry-after"
    answer.add_vary_header("origin")


def preflight(scope: Scope, headers: Headers, admission: Admission) -> Response | None:
    """The response to a CORS preflight request; None for any other request.

    Raises:
        OriginForbidden: the page's origin is not on the list. The page cannot read this, but the
            developer's tools of its browser show it.
    """
    method = headers.get("access-control-request-method")
    if method is None or scope["method"] != "OPTIONS" or not scope["path"].startswith(READABLE):
        return None
    origin = headers.get("origin", "")
    if not admission.lists_origin(origin):
        raise OriginForbidden(origin)
    allowed = {
        "access-control-allow-methods": method,
        "access-control-allow-headers": headers.get("access-control-request-headers", ""),
        "access-control-max-age": str(PREFLIGHT_S),
    }
    return Response(status_code=204, headers=allowed)
