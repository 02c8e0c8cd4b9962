"""Request bodies and answers: msgspec structs, read, written and described in `/openapi.json`.

FastAPI knows pydantic's models only. `routing.LateRoute` gives it plain functions instead, whose
bodies are read by `reader` and whose answers are encoded already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from inspect import cleandoc
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from fastapi import Request
from msgspec import Meta

from parley.errors import BadInput, InvalidRequest
from parley.gateway.large_json import read_aside
from parley.protocol import codec
from parley.transport import ITEMS_LIMIT

T = TypeVar("T", bound=msgspec.Struct)

Time = Annotated[str, Meta(examples=["2026-11-20T17:43:12.000+00:00"])]
WorkerId = Annotated[str, Meta(examples=["w0"])]
RecordingId = Annotated[str, Meta(examples=["20261120_174312_omni_0123456789abcdef01234567"])]

JSON: Final = "application/json"
REFERENCE: Final = "#/components/schemas/{name}"

EVENTS: Final[dict[str, Any]] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "One event; its data is JSON, or `[DONE]`.",
            "required": ["data"],
            "properties": {"data": {"type": "string"}},
        }
    }
}
"""Content of an answer that comes as server-sent events."""


class WrongBody(BadInput):
    """A JSON body that is not what its route takes."""

    http_status = 422


def _missing(field: str) -> WrongBody:
    return WrongBody(f"{field} is required.", field=field)


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


def reader(struct: type[T], *, is_optional: bool) -> Callable[[Request], Awaitable[T | None]]:
    """A dependency: the JSON body of a request, parsed in a thread if it is large; None for an
    empty one that is optional. It raises BadInput for what is not such a body."""
    shape = codec.Shape(
        struct, failed=lambda sentence, field: WrongBody(sentence, field=field), absent=_missing
    )

    async def read(request: Request) -> T | None:
        raw = bytes(await read_body(request))
        if is_optional and not raw:
            return None
        # Other types are those that pages of other sites can send without being asked first.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
            raise WrongBody(f"The content-type must be {JSON}, got {kind[:100] or 'none'}.")
        value = await read_aside(len(raw), lambda: codec.parse(raw))
        body: T = codec.converted(value, shape)
        return body

    return read


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a type names: itself, or in its arguments."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from structs_in(part)


def filled(kind: type[T], source: object, /, **others: Any) -> T:
    """An answer whose fields are the attributes of `source` of the same names, and `others`."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{name: getattr(source, name) for name in names}, **others)


def json_content(kind: Any) -> dict[str, Any]:
    """The `content` of JSON of this type."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    return {JSON: {"schema": schema}}


def json_body(
    struct: type[msgspec.Struct] | None,
    example: Mapping[str, Any] | None = None,
    *,
    description: str = "",
    is_required: bool = True,
) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads `struct`; None: any object. Structs that no route
    takes as a parameter are named in `openapi.install`."""
    schema = {"type": "object", "description": description}
    if struct is not None:
        schema = {"$ref": REFERENCE.format(name=struct.__name__)}
    content = {"schema": schema} | ({} if example is None else {"example": example})
    return _body(JSON, content, is_required=is_required)


def file_body(description: str, struct: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads a form: the field `file`, and those of `struct`."""
    file = {"type": "string", "format": "binary", "description": description}
    form: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    if struct is not None:
        form |= components([struct])[struct.__name__]
    form["properties"] = {"file": file, **form["properties"]}
    form["required"] = ["file", *form["required"]]
    return _body("multipart/form-data", {"schema": form})


def answer(
    description: str,
    example: Mapping[str, Any] | None = None,
    *,
    content: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An answer that no model describes.

    Args:
        example: of the JSON answer; its fields are always there.
        content: of other media types.
    """
    told = dict(content or {})
    if example is not None:
        schema = {"type": "object", "required": list(example)}
        told[JSON] = {"schema": schema, "example": example}
    return {"description": description, "content": told}


def components(structs: Collection[type[msgspec.Struct]]) -> dict[str, Any]:
    """Schemas of structs, and of those inside them, by name."""
    _, schemas = msgspec.json.schema_components(structs, ref_template=REFERENCE)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    return schemas


def _body(
    media_type: str, content: Mapping[str, Any], *, is_required: bool = True
) -> dict[str, Any]:
    return {"requestBody": {"required": is_required, "content": {media_type: content}}}
