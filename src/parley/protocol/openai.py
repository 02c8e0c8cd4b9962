"""What the messages of OpenAI Realtime and OpenAI Live have in common: ids, how they are written.

Sessions, items, responses and errors are plain objects in both: they are told as they are, and what
a client does not know it skips. Source: openai-python 3.54 `types/realtime`, `types/live`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from parley.protocol import codec
from parley.protocol.values import make_id

RATE_HZ: Final = 24_000
"""Of sound in both directions."""
Json = dict[str, Any]


class OpenAIClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every message of a client may carry."""

    event_id: Annotated[str, Meta(max_length=512)] | None = None


class OpenAIServerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event of the server carries."""

    event_id: str = ""


def encode(message: msgspec.Struct) -> str:
    """A message as the text of one frame, with an id of its own."""
    if isinstance(message, OpenAIServerEvent) and not message.event_id:
        message = msgspec.structs.replace(message, event_id=make_id("event"))
    return codec.encode(message)
