"""Routes, each declared once by its function, and a table that finds them.

The parameters of a route's function define what it gets from a request: the `Request` itself, its
`Requester`, a struct (the JSON body), and by name parts of the path and of the query, which msgspec
checks. It returns a response, or a value that is sent as JSON. `/openapi.json` is generated from
the same declarations (`openapi.py`).

Starlette compares a path with each route in turn, twice for a path that does not exist: a
millisecond of processor time for a stranger's 404. `RouteTable` looks up the path instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, get_type_hints
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from parley import logs
from parley.gateway.http.bodies import JSON, json_body, parameter_reader, reader, struct_in
from parley.gateway.http.requester import Requester
from parley.gateway.state import Role

log = logs.get(__name__)

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BODY_BYTES: Final = 64 << 10
"""Size up to which bodies are parsed on the event loop and not counted as memory."""

GIVEN: Final[dict[Any, Callable[[Request], Any]]] = {
    Request: lambda request: request,
    Requester: lambda request: request.scope["state"]["requester"],
}
"""Types of parameters that are not parts of the path or the query."""


class Route(StarletteRoute):
    """One operation.

    Args:
        name: its name in `/openapi.json`; default: the function's.
        role: the role that callers need; such requests are audited.
        status: of returned values that are not responses.
        answer: the content, if the function returns a response: a type, or the description of the
            response.
        errors: statuses of errors in the common format. `openapi.py` adds those of all operations,
            and of operations with a body or a query.
        others: responses in other formats, by status.
        body: description of a body that the function reads itself.
        body_bytes: maximum size of the body.
        spools: True if the body is written to the disk while it is read, and not held in memory.
    """

    def __init__(
        self,
        method: str,
        path: str,
        function: Callable[..., Any],
        *,
        tag: str = "",
        name: str | None = None,
        role: Role | None = None,
        status: int = 200,
        answer: Any = None,
        errors: Iterable[int] = (),
        others: Mapping[int, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        body_bytes: int = DEFAULT_BODY_BYTES,
        spools: bool = False,
        is_documented: bool = True,
    ) -> None:
        super().__init__(path, function, name=name, include_in_schema=is_documented)
        self.methods = {method}
        self.method, self.tag, self.role, self.status = method, tag, role, status
        self.body, self.body_bytes, self.spools = body, body_bytes, spools
        self.parameters: type[msgspec.Struct] | None = None
        self._read_signature(function)
        if answer is not None:
            self.answers[status] = answer
        self.answers |= {**{each: {} for each in errors}, **(others or {})}

    def _read_signature(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function, include_extras=True)
        self.answers: dict[int, Any] = {self.status: hints["return"]}
        self._given: dict[str, Callable[[Request], Any]] = {}
        self._read_parameters: Callable[[Request], dict[str, Any]] | None = None
        self._read_body: Callable[[Request], Any] | None = None
        fields: list[Any] = []
        for name, one in inspect.signature(function).parameters.items():
            kind, is_optional = hints[name], one.default is not one.empty
            if isinstance(kind, type) and kind in GIVEN:
                self._given[name] = GIVEN[kind]
            elif struct := struct_in(kind):
                self.body = json_body(struct, is_required=not is_optional)
                self._body_name, self._read_body = name, reader(struct, is_optional=is_optional)
            else:
                fields.append((name, kind, one.default) if is_optional else (name, kind))
        if fields:
            self.parameters = msgspec.defstruct(self.name, fields, kw_only=True)
            self._read_parameters = parameter_reader(self.parameters, self.param_convertors)
        if self._read_body or any(name not in self.param_convertors for name, *_ in fields):
            self.answers[422] = {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive, send))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self.role is not None:
            _admit(request, self.role)
        given = {name: read(request) for name, read in self._given.items()}
        if self._read_parameters is not None:
            given |= self._read_parameters(request)
        if self._read_body is not None:
            given[self._body_name] = await self._read_body(request)
        answer = await self.endpoint(**given)
        if isinstance(answer, Response):
            return answer
        return Response(msgspec.json.encode(answer), self.status, media_type=JSON)


def _admit(request: Request, role: Role) -> None:
    """Refuse callers without the role; `auth.note` writes the audit entry with the response's
    status."""
    requester: Requester = request.state.requester
    requester.check_role(role)
    request.state.is_audited = True
    log.info("admin", method=request.method, path=request.url.path, address=requester.peer.address)


class Router:
    """Routes with common options of `Route` and a common start of their paths."""

    def __init__(self, prefix: str = "", **common: Any) -> None:
        self.routes: list[Route] = []
        self._prefix, self._common = prefix, common

    def add(self, method: str, path: str, **options: Any) -> Callable[[F], F]:
        """Decorator: the function serves the path. Options: those of `Route`; errors are added to
        the common ones."""
        errors = (*self._common.get("errors", ()), *options.get("errors", ()))
        options = {**self._common, **options, "errors": errors}

        def added(function: F) -> F:
            self.routes.append(Route(method, self._prefix + path, function, **options))
            return function

        return added

    def get(self, path: str, **options: Any) -> Callable[[F], F]:
        return self.add("GET", path, **options)

    def post(self, path: str, **options: Any) -> Callable[[F], F]:
        return self.add("POST", path, **options)

    def put(self, path: str, **options: Any) -> Callable[[F], F]:
        return self.add("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> Callable[[F], F]:
        return self.add("DELETE", path, **options)


class RouteTable:
    """Finds the route of a request among those whose path can match, and calls it.

    Args:
        default: serves all other paths.
    """

    def __init__(self, routes: Iterable[BaseRoute], default: ASGIApp) -> None:
        self._default = default
        self._exact: dict[str, list[BaseRoute]] = {}
        self._open: dict[str, list[BaseRoute]] = {}
        """Routes with parameters, by the first part of their path, which is never a parameter."""
        for route in routes:
            path: str = getattr(route, "path_format", "")
            kept, key = (self._open, _first(path)) if "{" in path else (self._exact, path)
            kept.setdefault(key, []).append(route)

    async def serve(
        self, route: BaseRoute | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        if route is not None:
            if isinstance(route, Route) and route.method != scope["method"]:
                methods = (one.method for one in self._of_path(scope) if isinstance(one, Route))
                raise HTTPException(405, headers={"allow": ", ".join(methods)})
            await route.handle(scope, receive, send)
            return
        bare = path.rstrip("/")
        is_other = bare != path and scope["type"] == "http"
        if is_other and self.find({**scope, "path": bare}) is not None:
            # Relative, because a proxy may use TLS and another path.
            target = "../" * (len(path) - len(bare)) + quote(bare.rpartition("/")[2])
            query = scope["query_string"].decode("latin-1")
            await RedirectResponse(f"{target}?{query}" if query else target)(scope, receive, send)
        else:
            await self._default(scope, receive, send)

    def find(self, scope: Scope) -> BaseRoute | None:
        """The first route that matches, or else the first one of the path, with another method."""
        partial = None
        for route in self._candidates(scope):
            match, found = route.matches(scope)
            if isinstance(route, Route) and "" in found.get("path_params", {}).values():
                continue  # `/v1/models/` is `/v1/models`, not the model "".
            if match is Match.FULL:
                scope.update(found)
                return route
            if match is Match.PARTIAL:
                partial = partial or route
        return partial

    def _candidates(self, scope: Scope) -> list[BaseRoute]:
        path: str = scope["path"]
        return [*self._exact.get(path, ()), *self._open.get(_first(path), ())]

    def _of_path(self, scope: Scope) -> list[BaseRoute]:
        """All routes of the path, for any method."""
        candidates = self._candidates(scope)
        return [route for route in candidates if route.matches(scope)[0] is not Match.NONE]


def _first(path: str) -> str:
    return path[1:].partition("/")[0]
