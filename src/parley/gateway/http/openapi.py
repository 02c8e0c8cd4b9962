"""`/openapi.json`: the declarations of the routes, completed with what applies to every operation.

Examples are defined once, at the fields of the structs; here they are combined, so that every body
and every response has a complete example. Errors of the application in front of the routes are
added here, because the routes do not declare them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from inspect import getdoc
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from parley import __version__
from parley.gateway.authenticator import COOKIE, KEY_PREFIX, SESSION_PREFIX
from parley.gateway.http.auth import is_open
from parley.gateway.http.bodies import JSON, schemas
from parley.gateway.http.errors import (
    OPENAI_PREFIX,
    RETRY_AFTER_S,
    ErrorDetail,
    OpenAIError,
    openai_error,
)
from parley.gateway.http.routing import Route, Router
from parley.gateway.runtime import GatewayRuntime
from parley.settings import SecuritySettings

PATH: Final = "/openapi.json"
PROBLEM: Final = {"$ref": "#/components/schemas/ErrorDetail"}
OPENAI_PROBLEM: Final = {"$ref": "#/components/schemas/OpenAIError"}
VERSION: Final = "3.1.0"
INFO: Final = {
    "title": "parley",
    "version": __version__,
    "description": """Voice and video conversation with one model.

Conversations use WebSockets (`/ws/chat`, `/ws/half_duplex/{session_id}`,
`/ws/duplex/{session_id}`, `/v1/realtime`); this is the HTTP interface next to them. OpenAI's
interfaces are below `/v1/`.""",
}

ADMINS: Final[dict[str, dict[str, Any]]] = {
    "adminToken": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Admin-Token",
        "description": "The admin token. Without one, programs on the server's machine are admins.",
    },
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": f"A key (`{KEY_PREFIX}…`), the token of a browser (`{SESSION_PREFIX}…`), "
        "or the admin token.",
    },
}
CALLERS: Final[dict[str, dict[str, Any]]] = {
    "bearer": ADMINS["bearer"],
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Api-Key",
        "description": f"A key (`{KEY_PREFIX}…`).",
    },
    "queryToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "A key or the token of a browser, never the admin's: addresses are logged.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"The token of a browser (`{SESSION_PREFIX}…`), set by `POST /api/token`.",
    },
}
"""Security schemes of operations for admins and of other operations; `authenticator.py` and
`admission.py` define what is accepted."""

ALWAYS: Final = ("401", "429")
"""Statuses of errors of all operations."""

MEANINGS: Final = {
    "400": "The request is malformed, or contradicts itself.",
    "401": "A key or token is missing or invalid.",
    "403": "Not allowed with this origin, this link, or these settings.",
    "404": "It does not exist, or no longer.",
    "409": "Not possible in its present state.",
    "413": "The body is too large.",
    "422": "A field is missing or has a wrong value.",
    "429": "The key's limit per minute, or a limit of concurrent requests, is reached.",
    "502": "The worker failed or was lost.",
    "503": "Not possible at present; try again later.",
    "504": "No answer in time.",
    "507": "The disk of the server is full.",
}

PROBLEMS: Final[dict[str, tuple[str, str]]] = {
    "400": ("invalid_request", "The message is not valid JSON text."),
    "401": ("unauthorized", "A key is required."),
    "403": ("forbidden", "This key may not do this."),
    "404": ("not_found", "There is no such recording."),
    "409": ("still_recording", "This session is still being recorded."),
    "413": ("too_large", "Request body exceeds 64 KiB."),
    "422": ("invalid_request", "comment is required."),
    "429": ("rate_limited", "This key allows 60 requests per minute."),
    "502": (
        "worker_lost",
        "The worker running this session was lost, with what it was doing. Ask again.",
    ),
    "503": ("service_unavailable", "No worker is available."),
    "504": ("timeout", "The answer took longer than 300 s."),
    "507": ("insufficient_storage", "The server's disk is full; nothing was changed."),
}
"""A code and a sentence for each status, which may also have other codes."""

RETRY_AFTER: Final = {
    "description": "Seconds after which trying again makes sense.",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}


class NoExample(ValueError):
    """A field has no example."""


def routes(described: Sequence[Route], runtime: GatewayRuntime) -> Router:
    """The route of the document, which is made in a thread when it is first requested, and again
    after a change of what it says about security."""
    router = Router(is_documented=False)
    making = asyncio.Lock()
    made: tuple[SecuritySettings, bytes] | None = None

    def make(security: SecuritySettings) -> bytes:
        document = document_of([route for route in described if route.include_in_schema])
        secure(document, security)
        return msgspec.json.encode(document)

    @router.get(PATH)
    async def document(request: Request) -> Response:
        nonlocal made
        security = runtime.settings.security
        async with making:
            if made is None or made[0] != security:
                made = security, await asyncio.to_thread(make, security)
        return Response(made[1], media_type=JSON)

    return router


def document_of(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of these routes; `secure` adds the security schemes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path_format, {})[route.method.lower()] = _operation(route)
    document = {"openapi": VERSION, "info": INFO, "paths": paths}
    contents = [one for _, operation in operations(document) for one in _contents(operation)]
    structs = _name_types([one for one in contents if not isinstance(one["schema"], dict)])
    for path, operation in operations(document):
        _complete(path, operation)
    for content in contents:
        if "example" not in content:
            # A test finds fields without examples; readers still get the rest.
            with contextlib.suppress(NoExample):
                content["example"] = example_of(content["schema"], structs)
    return document | {"components": {"schemas": structs}}


def _operation(route: Route) -> dict[str, Any]:
    """The declaration of a route, in which schemas are still types."""
    name = re.sub(r"\W", "_", f"{route.name}{route.path_format}")
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": route.name.replace("_", " ").title(),
        "description": getdoc(route.endpoint),
        "operationId": f"{name}_{route.method.lower()}",
        "responses": {
            str(status): _answer(status, declared, is_success=status == route.status)
            for status, declared in route.answers.items()
        },
    }
    if route.role is not None:
        operation["security"] = [{name: []} for name in ADMINS]
    if route.parameters is not None:
        operation["parameters"] = _parameters(route, route.parameters)
    if route.body is not None:
        operation["requestBody"] = route.body
    # A copy, because it is completed in place, and other gateways of this process share the
    # original.
    return copy.deepcopy(operation)


def _answer(status: int, declared: Any, *, is_success: bool) -> dict[str, Any]:
    response = {"description": "Successful Response" if is_success else HTTPStatus(status).phrase}
    if isinstance(declared, dict):
        return response | declared
    if isinstance(declared, type) and issubclass(declared, Response):
        return response
    return response | {"content": {JSON: {"schema": declared}}}


def _parameters(route: Route, struct: type[msgspec.Struct]) -> list[dict[str, Any]]:
    fields = schemas([struct])[1][struct.__name__]
    return [
        {
            "name": name,
            "in": "path" if name in route.param_convertors else "query",
            "required": name in fields["required"],
            "schema": schema,
        }
        for name, schema in fields["properties"].items()
    ]


def _name_types(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Replace types by their schemas, in place; returns the schemas of structs by name."""
    found, structs = schemas([ErrorDetail, OpenAIError, *(one["schema"] for one in contents)])
    for content, schema in zip(contents, found[2:], strict=True):
        content["schema"] = schema
    return dict(sorted(structs.items()))


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add common errors and the format of errors, in place."""
    answers = operation["responses"]
    for status in (*ALWAYS, *(("413",) if "requestBody" in operation else ())):
        answers.setdefault(status, {})
    if "security" in operation:
        # For admins or operators: a key with another role is valid, but not sufficient.
        answers.setdefault("403", {})
    if path.startswith(OPENAI_PREFIX):
        answers.pop("422", None)
        answers.setdefault("400", {})
    if "422" in answers and "requestBody" in operation:
        # A body that is not text is refused before its fields are checked.
        answers.setdefault("400", {})
    for status, answer in answers.items():
        if status in PROBLEMS and "content" not in answer:
            _describe_problem(path, status, answer)
    operation["responses"] = dict(sorted(answers.items()))


def secure(document: dict[str, Any], security: SecuritySettings) -> None:
    """Add the security schemes to every operation, in place; `{}`: any client. Operations for
    admins declare theirs."""
    document["components"]["securitySchemes"] = {**ADMINS, **CALLERS}
    for path, operation in operations(document):
        if "security" in operation:
            is_free = not security.admin_token
        else:
            is_free = is_open(path) or not security.needs_key
            operation["security"] = [{name: []} for name in CALLERS]
        if is_free:
            operation["security"].insert(0, {})


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All operations of a document, with their paths."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """An example of a schema, built from the examples of its parts.

    Raises:
        NoExample: a part has none.
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
            # A value or null: show the value if there is an example.
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


def _describe_problem(path: str, status: str, answer: dict[str, Any]) -> None:
    code, detail = PROBLEMS[status]
    answer["description"] = MEANINGS[status]
    if int(status) in RETRY_AFTER_S:
        answer["headers"] = {"Retry-After": RETRY_AFTER}
    if path.startswith(OPENAI_PREFIX):
        error = openai_error(int(status), detail, code)
        answer["content"] = {JSON: {"schema": OPENAI_PROBLEM, "example": error}}
        return
    answer["content"] = {JSON: {"schema": PROBLEM, "example": {"detail": detail, "code": code}}}


def _contents(operation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = part.get("content", {}).get(JSON)
        if content is not None:
            yield content
