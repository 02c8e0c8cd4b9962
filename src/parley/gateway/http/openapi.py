"""`/openapi.json`: FastAPI's document, completed with what applies to every operation.

Examples are written once, at the fields of the models; here they are put together, so that every
body and every answer is shown whole. Errors that come from the middlewares in front of the
routes are added here, because no route knows of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from parley.gateway.http.auth import is_open
from parley.gateway.http.bodies import JSON, components
from parley.gateway.http.errors import (
    OPENAI_PREFIX,
    RETRY_AFTER_S,
    ErrorDetail,
    OpenAIError,
    openai_type,
)
from parley.gateway.http.routing import LateRoute
from parley.gateway.http.schemes import BEARER, CALLERS

PATH: Final = "/openapi.json"
PROBLEM: Final = {"$ref": "#/components/schemas/ErrorDetail"}
OPENAI_PROBLEM: Final = {"$ref": "#/components/schemas/OpenAIError"}


ALWAYS: Final = {
    "401": "A key or token is missing or invalid.",
    "429": "The key's limit per minute, or a limit of concurrent requests, is reached.",
}
WITH_BODY: Final = {"413": "The body is too large."}

MEANINGS: Final = {
    "400": "The request is malformed, or contradicts itself.",
    "403": "Not allowed with this origin, this link, or these settings.",
    "404": "It does not exist, or no longer.",
    "409": "Not possible in its present state.",
    "422": "A field is missing or has a wrong value.",
    "502": "The worker failed or was lost.",
    "503": "Not possible at present; try again later.",
    "504": "No answer in time.",
    "507": "The disk of the server is full.",
    **ALWAYS,
    **WITH_BODY,
}

PROBLEMS: Final[dict[str, tuple[str, str]]] = {
    "400": ("invalid_request", "The message is not valid JSON text."),
    "401": ("unauthorized", "A key is required."),
    "403": ("forbidden", "Pages from this origin may not open sessions on this server."),
    "404": ("not_found", "There is no such recording."),
    "409": ("conflict", "The session still runs."),
    "413": ("too_large", "The body may have 1048576 bytes."),
    "422": ("invalid_request", "comment: Field required"),
    "429": ("rate_limited", "This key allows 60 requests per minute."),
    "502": ("worker_lost", "The worker was lost."),
    "503": ("service_unavailable", "No worker is available."),
    "504": ("timeout", "No answer in time."),
    "507": ("insufficient_storage", "The server's disk is full; nothing was changed."),
}
"""A code and a sentence for each status; other codes may come with the same one."""

RETRY_AFTER: Final = {
    "description": "Seconds after which trying again makes sense.",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}


class NoExample(ValueError):
    """A field that nothing can be shown for."""


def install(
    app: FastAPI,
    *,
    structs: Collection[type[msgspec.Struct]],
    needs_key: bool,
    has_admin_token: bool,
) -> None:
    """Serve the completed document of a server that is protected like this.

    It is made when it is first asked for, which takes a third of a second of processor time: in
    steps and in a thread, because sessions continue meanwhile.

    Args:
        structs: those that routes name as their bodies.
    """
    making = asyncio.Lock()

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                ),
                components({ErrorDetail, OpenAIError, *structs, *_structs_of(app)}),
            )
            secure(app.openapi_schema, needs_key=needs_key, has_admin_token=has_admin_token)
        return app.openapi_schema

    made: list[bytes] = []

    async def served(request: Request) -> Response:
        async with making:
            if not made:
                for route in app.routes:
                    if isinstance(route, LateRoute):
                        route.examine()
                        await asyncio.sleep(0)
                made.append(await asyncio.to_thread(lambda: bytes(JSONResponse(document()).body)))
        return Response(made[0], media_type=JSON)

    app.openapi = document  # type: ignore[method-assign]
    app.add_route(PATH, served, include_in_schema=False)


def _structs_of(app: FastAPI) -> Iterator[type[msgspec.Struct]]:
    for route in app.routes:
        if isinstance(route, LateRoute):
            route.examine()
            yield from route.structs


def complete(document: dict[str, Any], structs: Mapping[str, Any]) -> dict[str, Any]:
    """Add schemas of structs, examples, common errors and our error shape, in place."""
    schemas = document["components"]["schemas"] = dict(sorted(structs.items()))
    for path, operation in operations(document):
        answers = operation["responses"]
        common = {**ALWAYS, **(WITH_BODY if "requestBody" in operation else {})}
        for status in common:
            answers.setdefault(status, {})
        if "security" in operation:
            # For admins or operators: a key of another role is valid, and opens nothing here.
            answers.setdefault("403", {})
        if path.startswith(OPENAI_PREFIX):
            answers.pop("422", None)
            answers.setdefault("400", {})
        if "422" in answers and "requestBody" in operation:
            # A body that is not text is refused before fields are checked.
            answers.setdefault("400", {})
        for status, answer in answers.items():
            if status in PROBLEMS and not _has_own_schema(answer):
                _describe_problem(path, status, answer)
        for content in _contents(operation):
            if "example" not in content and "schema" in content:
                # A field without an example is found by a test; readers still get the rest.
                with contextlib.suppress(NoExample):
                    content["example"] = example_of(content["schema"], schemas)
        operation["responses"] = dict(sorted(answers.items()))
    return document


def secure(document: dict[str, Any], *, needs_key: bool, has_admin_token: bool) -> None:
    """Add to every operation who may call it, in place; `{}`: any client. Those for
    admins have said it themselves."""
    schemes = document["components"].setdefault("securitySchemes", {})
    schemes.update(CALLERS)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if "security" in operation:
                is_free = not has_admin_token
            else:
                is_free = is_open(path) or not needs_key
                operation["security"] = [{name: []} for name in (BEARER.scheme_name, *CALLERS)]
            if is_free:
                operation["security"].insert(0, {})


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operation of a document, with its path."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """An example of a schema, made of those of its parts.

    Raises:
        NoExample: some part has none.
    """
    if "$ref" in schema:
        target = schema["$ref"].rsplit("/", 1)[1]
        return example_of(schemas[target], schemas, target)
    match schema:
        case {"example": shown} | {"examples": [shown, *_]}:
            return shown
        case {"properties": properties}:
            return {
                key: example_of(one, schemas, f"{name}.{key}") for key, one in properties.items()
            }
        case {"default": shown} if shown is not None:
            return shown
        case {"const": shown} | {"enum": [shown, *_]}:
            return shown
        case {"anyOf": [{"type": "integer" | "number"}, {"type": "null"}], "default": None}:
            return None
        case {"anyOf": [first, *_]}:
            # Something or null: the something says more where it can be shown.
            try:
                return example_of(first, schemas, name)
            except NoExample:
                if {"type": "null"} in schema["anyOf"]:
                    return None
                raise
        case {"type": "array", "items": items}:
            return [example_of(items, schemas, f"{name}[]")]
        case {"type": "boolean"}:
            return True
        case {"type": "integer" | "number"}:
            return schema.get("minimum", 1)
    raise NoExample(f"{name} has no example")


def _has_own_schema(answer: Mapping[str, Any]) -> bool:
    """True if a route has described such an answer, as `/ready` does its 503."""
    schema = answer.get("content", {}).get(JSON, {}).get("schema", {})
    return "$ref" in schema and not schema["$ref"].endswith("/HTTPValidationError")


def _describe_problem(path: str, status: str, answer: dict[str, Any]) -> None:
    code, detail = PROBLEMS[status]
    answer["description"] = MEANINGS[status]
    if int(status) in RETRY_AFTER_S:
        answer["headers"] = {"Retry-After": RETRY_AFTER}
    if path.startswith(OPENAI_PREFIX):
        error = {"message": detail, "type": openai_type(int(status)), "param": None, "code": code}
        answer["content"] = {JSON: {"schema": OPENAI_PROBLEM, "example": {"error": error}}}
        return
    answer["content"] = {JSON: {"schema": PROBLEM, "example": {"detail": detail, "code": code}}}


def _contents(operation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = part.get("content", {}).get(JSON)
        if content is not None:
            yield content
