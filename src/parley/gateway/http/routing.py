"""Routes that FastAPI analyses at their first request, and a table that finds them.

Examining a route (its function's signature, a schema of every documented answer) would take most of
a gateway's start, and few routes are ever used. Starlette's search compares a path with each route
in turn, twice for a path that does not exist: a millisecond of processor for a stranger's 404.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_type_hints

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from starlette.datastructures import URL
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Receive, Scope, Send

from parley.gateway.http.bodies import JSON, json_body, json_content, reader, structs_in
from parley.importing import without


class LateRoute(APIRoute):
    """A route of which only path and methods are known until its first request, or until another
    attribute is read. A wrong declaration shows only then."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        # What `matches` reads.
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.endpoint = endpoint
        self.methods = {method.upper() for method in methods or ["GET"]}
        self._declared: dict[str, Any] | None = {"path": path, **options}
        self.structs: set[type[msgspec.Struct]] = set()
        """Structs that its description names, once it is examined."""

    def examine(self) -> None:
        """Do what was put off; a second time does nothing."""
        declared, self._declared = self._declared, None
        if declared is not None:
            # Of each field FastAPI asks whether it is a model of pydantic's first version;
            # importing that version takes longer than everything else here.
            with without("pydantic.v1"):
                endpoint = self._without_structs(declared)
                super().__init__(endpoint=endpoint, methods=self.methods, **declared)

    def _without_structs(self, declared: dict[str, Any]) -> Callable[..., Any]:
        """The route's function as FastAPI can call it, which knows no structs; `declared` gets what
        it would say of them."""
        endpoint, signature = self.endpoint, inspect.signature(self.endpoint)
        hints = get_type_hints(endpoint, include_extras=True)
        responses = declared["responses"] = dict(declared.get("responses") or {})
        parameters = [
            one.replace(annotation=self._injected(one, hints.get(one.name), declared))
            for one in signature.parameters.values()
        ]
        status = declared.get("status_code") or 200
        answer = declared.get("response_model")
        if isinstance(answer, DefaultPlaceholder):
            answer = hints.get("return")
        is_struct = any(structs_in(answer))
        if is_struct:
            declared["response_model"] = None
            responses[status] = {"model": answer} | responses.get(status, {})
        for code, response in responses.items():
            responses[code] = self._described(response)

        @functools.wraps(endpoint)
        async def encoded(*args: Any, **named: Any) -> Any:
            answer = await endpoint(*args, **named)
            if not is_struct or isinstance(answer, Response):
                return answer
            return Response(msgspec.json.encode(answer), status, media_type=JSON)

        encoded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return encoded

    def _injected(self, parameter: inspect.Parameter, kind: Any, declared: dict[str, Any]) -> Any:
        """A parameter's type; a struct is read from the body by a dependency."""
        for body in structs_in(kind):
            is_optional = parameter.default is not parameter.empty
            self.structs.add(body)
            declared["openapi_extra"] = json_body(body, is_required=not is_optional)
            declared["responses"].setdefault(422, {})
            return Annotated[kind, Depends(reader(body, is_optional=is_optional))]
        return kind

    def _described(self, response: dict[str, Any]) -> dict[str, Any]:
        """A declared answer with the content that its struct describes."""
        response = dict(response)
        if found := set(structs_in(response.get("model"))):
            self.structs |= found
            content = json_content(response.pop("model"))
            response["content"] = content | response.get("content", {})
        return response

    def __getattr__(self, name: str) -> Any:
        """An attribute that is not there yet, as none of FastAPI's other ones is."""
        if self.__dict__.get("_declared") is None:
            raise AttributeError(name=name, obj=self)
        self.examine()
        return getattr(self, name)


class Router(APIRouter):
    """FastAPI's, with routes that are examined late."""

    def __init__(self, *, route_class: type[LateRoute] = LateRoute, **options: Any) -> None:
        super().__init__(route_class=route_class, **options)


class QuickRoute(LateRoute):
    """A route for frequent requests. Its function receives the request only and returns the
    finished response, which saves half of what FastAPI costs; FastAPI still documents it."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class RouteTable:
    """ASGI application in front of a router: tries only routes whose path can match."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        self._quick: dict[str, QuickRoute] = {}
        """Routes that are the only one of their path."""
        self._exact: dict[str, list[tuple[int, BaseRoute]]] = {}
        self._open: dict[str, list[tuple[int, BaseRoute]]] = {}
        """Routes with parameters, by the first part of their path, which never is one."""
        for order, route in enumerate(router.routes):
            path: str = getattr(route, "path_format", "") or getattr(route, "path", "")
            kept, key = (self._open, _first(path)) if "{" in path else (self._exact, path)
            kept.setdefault(key, []).append((order, route))
        for path, routes in self._exact.items():
            others: list[Any] = [route for _, route in self._open.get(_first(path), ())]
            is_only = not any(other.path_regex.match(path) for other in others)
            match routes:
                case [(_, QuickRoute() as only)] if is_only:
                    self._quick[path] = only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        quick = self._quick.get(scope["path"])
        if quick is not None and scope["type"] == "http":
            await quick.handle(scope, receive, send)
            return
        if scope["type"] == "lifespan":
            await self._router.app(scope, receive, send)
            return
        scope.setdefault("router", self._router)
        route = self._find(scope)
        if route is not None:
            # FastAPI closes the files of a form with it.
            await AsyncExitStackMiddleware(route.handle)(scope, receive, send)
            return
        path = scope["path"]
        other = {**scope, "path": path.rstrip("/") if path.endswith("/") else f"{path}/"}
        if scope["type"] == "http" and self._find(other) is not None:
            await RedirectResponse(str(URL(scope=other)))(scope, receive, send)
        else:
            await self._router.default(scope, receive, send)

    def _find(self, scope: Scope) -> BaseRoute | None:
        """The first route that matches, or else the first one of the path, which refuses the
        method."""
        partial: tuple[BaseRoute, Scope] | None = None
        for route in self._candidates(scope):
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return route
            if match is Match.PARTIAL and partial is None:
                partial = route, found
        if partial is None:
            return None
        scope.update(partial[1])
        return partial[0]

    def _candidates(self, scope: Scope) -> list[BaseRoute]:
        """Routes that may match, in their order."""
        path, root = scope["path"], scope.get("root_path", "")
        path = path[len(root) :] if path.startswith(f"{root}/") else path
        found = [*self._open.get(_first(path), ()), *self._exact.get(path, ())]
        return [route for _, route in sorted(found, key=lambda one: one[0])]


def _first(path: str) -> str:
    return path[1:].partition("/")[0]
