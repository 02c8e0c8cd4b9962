"""The known fields of OpenAI Realtime's objects; unknown fields are reported, not ignored.

Parts of a session that this server only returns are checked too, because the client's library must
be able to parse its own session.

Source: openai-python 3.57 `types/realtime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from parley.errors import InvalidRequest
from parley.protocol import codec
from parley.protocol.codec import Converter

TOLERATED: Final = frozenset(
    {
        *("object", "id", "model", "expires_at", "resume", "client_secret", "reasoning"),
        *("parallel_tool_calls", "safety_identifier"),
    }
)
"""Fields of a session that clients return unchanged, or that have no effect here."""
FIELDS: Final = TOLERATED | {
    *("type", "output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens"),
    *("tracing", "truncation", "prompt", "include", "audio", "store"),
}
TRANSCRIPTION_FIELDS: Final = TOLERATED | {"type", "include", "audio", "store"}
"""Fields of a session that only transcribes."""
INPUT_FIELDS: Final = frozenset({"format", "transcription", "noise_reduction", "turn_detection"})
OUTPUT_FIELDS: Final = frozenset({"format", "voice", "speed"})
RESPONSE_FIELDS: Final = TOLERATED | {
    *("output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens", "prompt"),
    *("conversation", "metadata", "input", "audio"),
}
ITEM_FIELDS: Final = frozenset({"id", "object", "type", "status"})
ITEM_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "message": ITEM_FIELDS | {"role", "content", "phase"},
    "function_call": ITEM_FIELDS | {"call_id", "name", "arguments"},
    "function_call_output": ITEM_FIELDS | {"call_id", "output"},
}
"""Fields of items, by their type."""
PART_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "input_text": frozenset({"type", "text"}),
    "input_audio": frozenset({"type", "audio", "transcript"}),
    "input_image": frozenset({"type", "image_url", "detail"}),
    "output_text": frozenset({"type", "text"}),
    "output_audio": frozenset({"type", "audio", "transcript"}),
    "text": frozenset({"type", "text"}),
    "audio": frozenset({"type", "audio", "transcript"}),
}
"""Fields of the parts of a message, by type; the last two are names of the beta."""
TOOL_FIELDS: Final = frozenset({"type", "name", "description", "parameters"})
BETA: Final = {
    "modalities": "output_modalities",
    "voice": "audio.output.voice",
    "input_audio_format": "audio.input.format",
    "output_audio_format": "audio.output.format",
    "input_audio_transcription": "audio.input.transcription",
    "input_audio_noise_reduction": "audio.input.noise_reduction",
    "turn_detection": "audio.input.turn_detection",
    "max_response_output_tokens": "max_output_tokens",
    "speed": "audio.output.speed",
}
"""Fields of the beta's sessions, with their current names."""


def check_names(given: dict[str, Any], fields: frozenset[str], where: str) -> None:
    """Refuse fields that do not exist; null fields are ignored.

    Raises:
        InvalidRequest: names the first of them; for a field of the beta, also its new name.
    """
    for name, value in given.items():
        if value is None or name in fields:
            continue
        instead = BETA.get(name) if where in ("session", "response") else None
        hint = (
            f"use {where}.{instead}"
            if instead
            else f"the fields are {', '.join(sorted(fields - TOLERATED))}"
        )
        raise InvalidRequest(
            f"{where}.{name[:80]} is not a field of {where}: {hint}.", field=f"{where}.{name[:80]}"
        )


def object_of(value: Any, where: str) -> dict[str, Any]:
    """A value that must be an object; None becomes an empty one.

    Raises:
        InvalidRequest: it is not an object.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refusal(where, "an object", value)
    return value


def refusal(where: str, expected: str, value: Any) -> InvalidRequest:
    """The error for a value that does not have the type or range of its field."""
    return InvalidRequest(f"{where} must be {expected}, got {shown(value)}.", field=where)


def shown(value: Any) -> str:
    """A client's value in an error: JSON, at most 40 characters."""
    return codec.encode(value)[:40]


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """Options of input transcription."""

    model: str | UnsetType | None = UNSET
    language: str | UnsetType | None = UNSET
    prompt: str | UnsetType | None = UNSET
    languages: list[str] | UnsetType | None = UNSET
    keywords: list[str] | UnsetType | None = UNSET
    delay: str | UnsetType | None = UNSET


class NoiseReduction(msgspec.Struct, frozen=True, kw_only=True):
    """Distance of the microphone, for noise reduction."""

    type: Literal["near_field", "far_field"] | UnsetType | None = UNSET


class TracingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's options for tracing the session."""

    group_id: str | UnsetType | None = UNSET
    workflow_name: str | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Part of `Truncation`."""

    post_instructions: int | UnsetType | None = UNSET


class Truncation(
    msgspec.Struct, tag="retention_ratio", tag_field="type", frozen=True, kw_only=True
):
    """How a full context is truncated."""

    retention_ratio: float
    token_limits: TokenLimits | UnsetType | None = UNSET


class ServerVad(msgspec.Struct, tag="server_vad", tag_field="type", frozen=True, kw_only=True):
    """Turns end with silence."""

    threshold: float | None = 0.5
    prefix_padding_ms: int | None = 300
    silence_duration_ms: int | None = 500
    idle_timeout_ms: int | None = None
    create_response: bool | None = True
    interrupt_response: bool | None = True


class SemanticVad(msgspec.Struct, tag="semantic_vad", tag_field="type", frozen=True, kw_only=True):
    """Turns end with what is said."""

    eagerness: Literal["low", "medium", "high", "auto"] | None = "auto"
    create_response: bool | None = True
    interrupt_response: bool | None = True


class ToolChoice(msgspec.Struct, tag="function", tag_field="type", frozen=True, kw_only=True):
    """The one that is to be called."""

    name: str


_SHAPES: Final[dict[str, Any]] = {
    "transcription": Transcription | None,
    "noise_reduction": NoiseReduction | None,
    "turn_detection": ServerVad | SemanticVad,
    "tracing": Literal["auto"] | TracingOptions | None,
    "truncation": Literal["auto", "disabled"] | Truncation | None,
    "include": list[Literal["item.input_audio_transcription.logprobs"]] | None,
    "tool_choice": Literal["none", "auto", "required"] | ToolChoice,
    "metadata": Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
    | None,
}
_FIELDS: Final = {
    "transcription": frozenset(Transcription.__struct_fields__),
    "noise_reduction": frozenset(NoiseReduction.__struct_fields__),
    "tracing": frozenset(TracingOptions.__struct_fields__),
    "truncation": frozenset({"type", *Truncation.__struct_fields__}),
    "tool_choice": frozenset({"type", *ToolChoice.__struct_fields__}),
}
_CONVERTERS: Final = {name: Converter(kind) for name, kind in _SHAPES.items()}


def checked_part(value: Any, name: str, where: str) -> Any:
    """A part as the session repeats it.

    Raises:
        InvalidRequest: it is not that part, or has a field that does not exist.
    """
    if isinstance(value, dict) and name in _FIELDS:
        check_names(value, _FIELDS[name], where)
    try:
        return msgspec.to_builtins(_CONVERTERS[name].convert(value))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name} cannot be read: {error}.", field=where) from None
