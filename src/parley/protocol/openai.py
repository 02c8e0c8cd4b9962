"""Shared parts of the messages of OpenAI Realtime and OpenAI Live: ids, encoding.

Sessions, items, responses and errors are plain objects in both; clients ignore fields that they do
not know. Source: openai-python 3.54 `types/realtime`, `types/live`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from parley.protocol import codec
from parley.protocol.values import make_id
from parley.protocol.wire import Wire

RATE_HZ: Final = 24_000
"""Sample rate of audio in both directions."""
CANNOT_TRANSCRIBE: Final = "The loaded model cannot transcribe audio."
BUILT_IN_VOICES: Final = frozenset(
    (
        *("alloy", "ash", "ballad", "beacon", "bossa", "cedar", "cinder", "coral", "delta"),
        *("echo", "fable", "gleam", "marin", "meridian", "nova", "onyx", "quartz", "ripple"),
        *("sage", "shida", "shimmer", "stone", "tempo", "verse", "vesper", "willow"),
    )
)
"""Voices of OpenAI, which clients name by default; the server's own voice is used for each."""
CODES: Final = {
    "context_full": "context_length_exceeded",
    "missing_field": "missing_required_parameter",
    "quota_exceeded": "insufficient_quota",
    "unauthorized": "invalid_api_key",
}
"""Our error codes that OpenAI's clients know by another name. LangChain, LiteLLM, pydantic-ai,
LiveKit and the AI SDK check these to decide if they shorten the request, stop or retry."""
Json = dict[str, Any]


def code_of(code: str) -> str:
    """OpenAI's name for an error code."""
    return CODES.get(code, code)


class OpenAIClientEvent(Wire):
    """Fields of every client message."""

    event_id: Annotated[str, Meta(max_length=512)] | None = None


class _Named(msgspec.Struct):
    event_id: Any = None


_named = msgspec.json.Decoder(_Named)


def event_id_of(raw: bytes | str) -> str | None:
    """The id that a client gave to a frame, without decoding the rest; None if there is none."""
    try:
        event_id = _named.decode(raw).event_id
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return event_id if isinstance(event_id, str) else None


class OpenAIServerEvent(Wire):
    """Fields of every event of the server."""

    event_id: str = ""


def encode(message: msgspec.Struct) -> str:
    """A message as the text of one frame, with a new id."""
    if isinstance(message, OpenAIServerEvent) and not message.event_id:
        message = msgspec.structs.replace(message, event_id=make_id("event"))
    return codec.encode(message)
