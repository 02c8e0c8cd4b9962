"""The known fields of OpenAI Realtime's objects; an unknown field is named instead of ignored.

Source: openai-python 3.57 `types/realtime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from parley.errors import InvalidRequest

TOLERATED: Final = frozenset(
    {
        *("object", "id", "model", "expires_at", "resume", "client_secret", "reasoning"),
        *("parallel_tool_calls", "safety_identifier"),
    }
)
"""Fields of a session that clients send back, or that change nothing here."""
FIELDS: Final = TOLERATED | {
    *("type", "output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens"),
    *("tracing", "truncation", "prompt", "include", "audio"),
}
TRANSCRIPTION_FIELDS: Final = TOLERATED | {"type", "include", "audio"}
"""Of a session that only transcribes."""
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
"""Fields of the parts of a message, by their type; the last two are names of the beta."""
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
"""Fields of the beta's sessions, and what they are called now."""


def check_names(given: dict[str, Any], fields: frozenset[str], where: str) -> None:
    """Refuse a field that does not exist; one that is null changes nothing.

    Raises:
        InvalidRequest: names the first of them; for a field of the beta, with its new name.
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
    """The error for a value that is not what its field must be."""
    return InvalidRequest(f"{where} must be {expected}, got {shown(value)}.", field=where)


def shown(value: Any) -> str:
    """A client's value for an error: JSON, at most 40 characters."""
    return msgspec.json.encode(value).decode(errors="replace")[:40]
