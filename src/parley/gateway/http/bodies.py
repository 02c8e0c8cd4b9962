"""Request bodies and answers in `/openapi.json` that FastAPI cannot see. Their routes read the body
themselves, into a msgspec struct; the schema is made of that struct.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import cleandoc
from typing import Any, Final

import msgspec

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


def json_body(
    struct: type[msgspec.Struct] | None, example: Mapping[str, Any], *, description: str = ""
) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads `struct`; None: any object. The application names
    its structs in `openapi.install`."""
    schema = {"type": "object", "description": description}
    if struct is not None:
        schema = {"$ref": REFERENCE.format(name=struct.__name__)}
    return _body(JSON, {"schema": schema, "example": example})


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


def _body(media_type: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: content}}}
