"""Request bodies, parameters and responses: reads and describes msgspec structs, and limits
concurrent transfers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from inspect import cleandoc
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import Meta
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

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

EVENT_CONTENT: Final[dict[str, Any]] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "One event; its data is JSON, or `[DONE]`.",
            "required": ["data"],
            "properties": {"data": {"type": "string"}},
        }
    }
}
"""Content of a response with server-sent events."""


class WrongField(BadInput):
    """A JSON body, or a part of the path or the query, is invalid for its route."""

    http_status = 422


def _wrong(sentence: str, field: str) -> WrongField:
    return WrongField(sentence, field=field)


def _missing(field: str) -> WrongField:
    return WrongField(f"{field} is required.", field=field)


async def read_body(request: Request) -> bytearray:
    """Read a JSON body, with only one copy in memory.

    Raises:
        InvalidRequest: it has too many items.
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


@asynccontextmanager
async def read_form(request: Request, *, fields_most: int) -> AsyncIterator[FormData]:
    """Read a form with at most one file.

    Raises:
        InvalidRequest: it is not such a form.
        ClientDisconnect: the client left, or was too slow.
    """
    try:
        form = await request.form(max_files=1, max_fields=fields_most)
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message.rstrip('.')}.") from None
    try:
        yield form
    finally:
        await form.close()


def reader(struct: type[T], *, is_optional: bool) -> Callable[[Request], Awaitable[T | None]]:
    """Reads the JSON body of a request, which is parsed in a thread if it is large; None for an
    empty one that is optional. Raises BadInput for an invalid body."""
    shape = codec.Shape(struct, failed=_wrong, absent=_missing)

    async def read(request: Request) -> T | None:
        raw = bytes(await read_body(request))
        if is_optional and not raw:
            return None
        # Pages of other sites can send other types without a preflight request.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))
        if raw and not is_json:
            raise WrongField(f"The content-type must be {JSON}, got {kind[:100] or 'none'}.")
        value = await read_aside(len(raw), lambda: codec.parse(raw))
        body: T = codec.converted(value, shape)
        return body

    return read


def parameter_reader(
    struct: type[msgspec.Struct], in_path: Collection[str]
) -> Callable[[Request], dict[str, Any]]:
    """Reads the fields of `struct` from the path and the query of a request. Raises BadInput for
    invalid ones."""
    shape = codec.Shape(struct, is_text=True, failed=_wrong, absent=_missing)
    in_query = [name for name in struct.__struct_fields__ if name not in in_path]

    def read(request: Request) -> dict[str, Any]:
        asked = request.query_params
        given = {name: asked[name] for name in in_query if name in asked}
        return msgspec.structs.asdict(codec.converted(request.path_params | given, shape))

    return read


class Success(msgspec.Struct, kw_only=True):
    """`success`: true if it was done."""

    success: bool = True


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a parameter's type names: itself, or in a union with None."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one
    return None


def filled(kind: type[T], source: object, /, **others: Any) -> T:
    """A response whose fields are the attributes of `source` with the same names, and `others`."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{name: getattr(source, name) for name in names}, **others)


class Transfers:
    """Uploads or downloads in progress, limited for all clients together and for each owner.

    There is no queue: a client beyond the limits is refused and tries again.
    """

    def __init__(self, name: str, limit: int, *, each: int) -> None:
        self._name = name
        self._limit = limit
        self._each = each
        self._held: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def one(self, owner: str) -> AsyncIterator[None]:
        """Count one of `owner` (see `Requester`) while the block runs.

        Raises:
            HTTPException: 429 when the owner has enough of them, 503 when all together have.
        """
        if self._held[owner] >= self._each:
            raise HTTPException(429, f"This key or address has {self._each} {self._name} already.")
        if self._held.total() >= self._limit:
            raise HTTPException(503, f"The server has {self._limit} {self._name} already.")
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]


# ---- descriptions for `/openapi.json`; a schema may be named by its type --------------------


def json_body(
    struct: type[msgspec.Struct] | None,
    example: Mapping[str, Any] | None = None,
    *,
    description: str = "",
    is_required: bool = True,
) -> dict[str, Any]:
    """A JSON body; `struct` None: any object."""
    schema = struct or {"type": "object", "description": description}
    content = {"schema": schema} | ({} if example is None else {"example": example})
    return {"required": is_required, "content": {JSON: content}}


def file_body(description: str, struct: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """A form: the field `file`, and those of `struct`."""
    file = {"type": "string", "format": "binary", "description": description}
    form: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    if struct is not None:
        form |= schemas([struct])[1][struct.__name__]
    form["properties"] = {"file": file, **form["properties"]}
    form["required"] = ["file", *form["required"]]
    return {"required": True, "content": {"multipart/form-data": {"schema": form}}}


def described(
    description: str,
    example: Mapping[str, Any] | None = None,
    *,
    content: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A response that is not described by a type.

    Args:
        example: of the JSON response; its fields are always present.
        content: of other media types.
    """
    media = dict(content or {})
    if example is not None:
        schema = {"type": "object", "required": list(example)}
        media[JSON] = {"schema": schema, "example": example}
    return {"description": description, "content": media}


def shown(example: Any, kind: Any = dict[str, Any]) -> dict[str, Any]:
    """A JSON response, described by an example."""
    return {"content": {JSON: {"schema": kind, "example": example}}}


def schemas(kinds: Iterable[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Schemas of types, and the schemas of their structs by name."""
    found, structs = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    for schema in structs.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    return found, structs
