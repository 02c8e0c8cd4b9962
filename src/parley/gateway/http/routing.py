"""Routes that FastAPI examines when they are first asked for.

What it does for each (its function's signature, a schema of every documented answer) would be most
of what the start of a gateway takes, and few of its routes are ever used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import compile_path

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

    def examine(self) -> None:
        """Do what was put off; a second time does nothing."""
        declared, self._declared = self._declared, None
        if declared is not None:
            # Of each field FastAPI asks whether it is a model of pydantic's first version;
            # importing that version takes longer than everything else here.
            with without("pydantic.v1"):
                super().__init__(endpoint=self.endpoint, methods=self.methods, **declared)

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
