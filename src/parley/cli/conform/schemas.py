"""Checks that an event has the fields that its protocol defines.

OpenAI's events are compared with the types of the `openai` package if that is installed, else with
our own structs; all others with our structs, without additional fields.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

import msgspec
from pydantic import TypeAdapter, ValidationError

from parley.protocol import (
    chat,
    duplex,
    half_duplex,
    minicpmo_v2,
    openai_live,
    openai_realtime,
    realtime,
)
from parley.protocol.openai import OpenAIServerEvent

Check = Callable[[str], str | None]
"""Returns the problem of a message, or None."""

_V2: Final = (
    realtime.SessionQueued,
    realtime.SessionQueueUpdate,
    realtime.SessionQueueDone,
    minicpmo_v2.Created,
    minicpmo_v2.Delta,
    minicpmo_v2.ChatResponseDone,
    minicpmo_v2.Closed,
    minicpmo_v2.ErrorMessage,
)


def _events_of(module: Any) -> tuple[type[msgspec.Struct], ...]:
    return tuple(
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, OpenAIServerEvent)
        and each.__struct_config__.tag is not None
    )


STRUCTS: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "chat": get_args(chat.ServerMessage),
    "half_duplex": get_args(half_duplex.ServerMessage),
    "duplex": get_args(duplex.ServerMessage),
    "realtime": get_args(realtime.ServerMessage),
    "minicpmo_v2": _V2,
    "openai_realtime": _events_of(openai_realtime),
    "openai_live": _events_of(openai_live),
}
PUBLISHED: Final = {
    "openai_realtime": ("openai.types.realtime", "RealtimeServerEvent"),
    "openai_live": ("openai.types.live", "ServerEvent"),
}


def check_of(dialect: str) -> tuple[Check, str]:
    """The check for events of a dialect, and the name of the schema that it uses."""
    if dialect in PUBLISHED:
        module, name = PUBLISHED[dialect]
        try:
            return _published(module, name), f"{module}.{name}"
        except ImportError:
            pass
    return _structs(STRUCTS[dialect]), "parley's own types"


def _published(module: str, name: str) -> Check:
    adapter: TypeAdapter[Any] = TypeAdapter(getattr(importlib.import_module(module), name))

    def check(text: str) -> str | None:
        told = json.loads(text)
        try:
            event = adapter.validate_json(text, strict=True)
        except ValidationError as error:
            return f"it is not an event of {name}: {_reason(error, told.get('type'))}"
        known = getattr(event, "type", None)
        return None if known == told.get("type") else f"it was taken for '{known}'"

    return check


def _reason(error: Any, type_name: Any) -> str:
    """The error for the event's own type; validating a union reports errors for all types."""
    found: list[Any] = error.errors()
    others = {each["loc"][0] for each in found if each["loc"][-1] == "type"}
    own = [each for each in found if each["loc"][0] not in others] or found
    told = (f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in own[:3])
    return f"{type_name} {'; '.join(told)}"


def _structs(types: Iterable[type[msgspec.Struct]]) -> Check:
    by_type = {str(each.__struct_config__.tag): msgspec.json.Decoder(each) for each in types}

    def check(text: str) -> str | None:
        told = json.loads(text)
        decoder = by_type.get(str(told.get("type")))
        if decoder is None:
            return "there is no such event"
        fields = {field.encode_name for field in msgspec.structs.fields(decoder.type)}
        beyond = sorted(told.keys() - fields - {"type"})
        if beyond:
            return f"it has fields that are not its own: {', '.join(beyond)}"
        try:
            decoder.decode(text)
        except msgspec.ValidationError as error:
            return str(error)
        return None

    return check
