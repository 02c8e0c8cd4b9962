"""Parts of an OpenAI Realtime session that this server only sends back, as a client may write them.
A client's library must be able to parse its own session.

Source: openai-python 3.54 `types/realtime`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from parley.dialects.openai_fields import check_names
from parley.errors import InvalidRequest
from parley.protocol.codec import Converter


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


def told(value: Any, name: str, where: str) -> Any:
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
