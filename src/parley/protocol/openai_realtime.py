"""The messages of OpenAI Realtime (GA), `/v1/realtime?model=…`.

    client                              server
                                   ◀─   session.created                   once there is a place
    session.update                 ─▶   session.updated
    input_audio_buffer.append      ─▶   …speech_started, speech_stopped, committed; item added, done
    conversation.item.create       ─▶   conversation.item.added, done
    response.create                ─▶   response.created … response.done, rate_limits.updated

Sessions, items, responses and errors are plain objects here: they are told as they are, and what a
client does not know it skips. Every event of the server has an id, which `encode` makes.
Source: OpenAI API reference, Realtime; openai-python 3.54 `types/realtime`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from parley.protocol import codec
from parley.protocol.values import Text, make_id

PATH: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
RATE_HZ: Final = 24_000
"""Of sound in both directions."""

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Json = dict[str, Any]


# ---- client → server -----------------------------------------------------------------------


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every message of a client may carry."""

    event_id: Annotated[str, Meta(max_length=512)] | None = None


class SessionUpdate(ClientEvent, tag="session.update", frozen=True, kw_only=True):
    """Change what is named, keep the rest."""

    session: Json


class AudioAppend(ClientEvent, tag="input_audio_buffer.append", frozen=True, kw_only=True):
    """Sound: base64 of 16-bit samples, 24 kHz."""

    audio: str


class AudioCommit(ClientEvent, tag="input_audio_buffer.commit", frozen=True, kw_only=True):
    """The sound so far is a turn."""


class AudioClear(ClientEvent, tag="input_audio_buffer.clear", frozen=True, kw_only=True):
    """The sound so far is nothing."""


class ItemCreate(ClientEvent, tag="conversation.item.create", frozen=True, kw_only=True):
    """A message joins the conversation."""

    item: Json
    previous_item_id: Id | None = None


class ItemRetrieve(ClientEvent, tag="conversation.item.retrieve", frozen=True, kw_only=True):
    """Tell what an item is."""

    item_id: Id


class ItemDelete(ClientEvent, tag="conversation.item.delete", frozen=True, kw_only=True):
    """An item leaves the conversation."""

    item_id: Id


class ItemTruncate(ClientEvent, tag="conversation.item.truncate", frozen=True, kw_only=True):
    """Only so much of an answer was heard."""

    item_id: Id
    content_index: int = 0
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(ClientEvent, tag="response.create", frozen=True, kw_only=True):
    """Answer now."""

    response: Json = {}


class ResponseCancel(ClientEvent, tag="response.cancel", frozen=True, kw_only=True):
    """Say no more."""

    response_id: Id | None = None


ClientMessage = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)
CLIENT_TYPES: Final[tuple[type[ClientEvent], ...]] = (
    SessionUpdate,
    AudioAppend,
    AudioCommit,
    AudioClear,
    ItemCreate,
    ItemRetrieve,
    ItemDelete,
    ItemTruncate,
    ResponseCreate,
    ResponseCancel,
)
SHAPES: Final = {str(each.__struct_config__.tag): codec.Shape(each) for each in CLIENT_TYPES}


class MessageContent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message, of either side."""

    type: str
    text: Text = ""
    audio: str = ""
    transcript: Text = ""
    image_url: str = ""


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a client brings."""

    type: str = "message"
    role: str = ""
    id: Id | None = None
    content: Annotated[tuple[MessageContent, ...], Meta(max_length=64)] = ()


ITEM: Final = codec.Shape(MessageItem)


# ---- server → client -----------------------------------------------------------------------


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event of the server carries."""

    event_id: str = ""


class SessionCreated(ServerEvent, tag="session.created", frozen=True, kw_only=True):
    """The session as it begins."""

    session: Json


class SessionUpdated(ServerEvent, tag="session.updated", frozen=True, kw_only=True):
    """The session as it is now."""

    session: Json


class ErrorEvent(ServerEvent, tag="error", frozen=True, kw_only=True):
    """Something went wrong; the connection stays open where that makes sense."""

    error: Json


class BufferCommitted(ServerEvent, tag="input_audio_buffer.committed", frozen=True, kw_only=True):
    """Sound became an item."""

    item_id: str
    previous_item_id: str | None


class BufferCleared(ServerEvent, tag="input_audio_buffer.cleared", frozen=True, kw_only=True):
    """The sound so far is forgotten."""


class UserSpeechStarted(
    ServerEvent, tag="input_audio_buffer.speech_started", frozen=True, kw_only=True
):
    """Somebody speaks."""

    audio_start_ms: int
    item_id: str


class UserSpeechStopped(
    ServerEvent, tag="input_audio_buffer.speech_stopped", frozen=True, kw_only=True
):
    """Silence again."""

    audio_end_ms: int
    item_id: str


class ItemAdded(ServerEvent, tag="conversation.item.added", frozen=True, kw_only=True):
    """An item joined the conversation."""

    item: Json
    previous_item_id: str | None


class ItemDone(ServerEvent, tag="conversation.item.done", frozen=True, kw_only=True):
    """An item is complete."""

    item: Json
    previous_item_id: str | None


class ItemRetrieved(ServerEvent, tag="conversation.item.retrieved", frozen=True, kw_only=True):
    """An item, as asked for."""

    item: Json


class ItemGone(ServerEvent, tag="conversation.item.deleted", frozen=True, kw_only=True):
    """An item left the conversation."""

    item_id: str


class ItemCut(ServerEvent, tag="conversation.item.truncated", frozen=True, kw_only=True):
    """An answer ends earlier than it was said."""

    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionCompleted(
    ServerEvent,
    tag="conversation.item.input_audio_transcription.completed",
    frozen=True,
    kw_only=True,
):
    """The words of a user's turn."""

    item_id: str
    content_index: int
    transcript: str
    usage: Json


class TranscriptionFailed(
    ServerEvent,
    tag="conversation.item.input_audio_transcription.failed",
    frozen=True,
    kw_only=True,
):
    """There are no words of a user's turn."""

    item_id: str
    content_index: int
    error: Json


class ResponseCreated(ServerEvent, tag="response.created", frozen=True, kw_only=True):
    """An answer begins."""

    response: Json


class ResponseDone(ServerEvent, tag="response.done", frozen=True, kw_only=True):
    """An answer is over."""

    response: Json


class OutputItemAdded(ServerEvent, tag="response.output_item.added", frozen=True, kw_only=True):
    """An answer's item begins."""

    response_id: str
    output_index: int
    item: Json


class OutputItemDone(ServerEvent, tag="response.output_item.done", frozen=True, kw_only=True):
    """An answer's item is complete."""

    response_id: str
    output_index: int
    item: Json


class PartEvent(ServerEvent, frozen=True, kw_only=True):
    """What says where in an answer something belongs."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class ContentPartAdded(PartEvent, tag="response.content_part.added", frozen=True, kw_only=True):
    """A part of an answer begins."""

    part: Json


class ContentPartDone(PartEvent, tag="response.content_part.done", frozen=True, kw_only=True):
    """A part of an answer is complete."""

    part: Json


class AudioDelta(PartEvent, tag="response.output_audio.delta", frozen=True, kw_only=True):
    """Sound: base64 of 16-bit samples, 24 kHz."""

    delta: str


class AudioDone(PartEvent, tag="response.output_audio.done", frozen=True, kw_only=True):
    """All sound was sent."""


class TranscriptDelta(
    PartEvent, tag="response.output_audio_transcript.delta", frozen=True, kw_only=True
):
    """Words of the sound."""

    delta: str


class TranscriptDone(
    PartEvent, tag="response.output_audio_transcript.done", frozen=True, kw_only=True
):
    """All words of the sound."""

    transcript: str


class TextDelta(PartEvent, tag="response.output_text.delta", frozen=True, kw_only=True):
    """Words."""

    delta: str


class TextDone(PartEvent, tag="response.output_text.done", frozen=True, kw_only=True):
    """All words."""

    text: str


class RateLimitsUpdated(ServerEvent, tag="rate_limits.updated", frozen=True, kw_only=True):
    """What is left of the limits; there are none of this kind here."""

    rate_limits: tuple[Json, ...] = ()


def encode(message: msgspec.Struct) -> str:
    """A message as the text of one frame, with an id of its own."""
    if isinstance(message, ServerEvent) and not message.event_id:
        message = msgspec.structs.replace(message, event_id=make_id("event"))
    return codec.encode(message)
