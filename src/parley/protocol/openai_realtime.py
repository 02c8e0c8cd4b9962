"""The messages of OpenAI Realtime (GA), `/v1/realtime?model=…`.

    client                              server
                                   ◀─   session.created                   once there is a place
    session.update                 ─▶   session.updated
    input_audio_buffer.append      ─▶   …speech_started, speech_stopped, committed; item added, done
    conversation.item.create       ─▶   conversation.item.added, done
    response.create                ─▶   response.created … response.done, rate_limits.updated

Source: OpenAI API reference, Realtime; openai-python 3.54 `types/realtime`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from parley.protocol import codec
from parley.protocol.openai import Json, OpenAIClientEvent, OpenAIServerEvent
from parley.protocol.values import Text

PATH: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."

Id = Annotated[str, Meta(min_length=1, max_length=128)]


# ---- client → server -----------------------------------------------------------------------


class SessionUpdateEvent(OpenAIClientEvent, tag="session.update", frozen=True, kw_only=True):
    """Change what is named, keep the rest."""

    session: Json


class AudioAppend(OpenAIClientEvent, tag="input_audio_buffer.append", frozen=True, kw_only=True):
    """Sound: base64 of 16-bit samples, 24 kHz."""

    audio: str


class AudioCommit(OpenAIClientEvent, tag="input_audio_buffer.commit", frozen=True, kw_only=True):
    """The sound so far is a turn."""


class AudioClear(OpenAIClientEvent, tag="input_audio_buffer.clear", frozen=True, kw_only=True):
    """The sound so far is nothing."""


class ItemCreate(OpenAIClientEvent, tag="conversation.item.create", frozen=True, kw_only=True):
    """A message joins the conversation."""

    item: Json
    previous_item_id: Id | None = None


class ItemRetrieve(OpenAIClientEvent, tag="conversation.item.retrieve", frozen=True, kw_only=True):
    """Tell what an item is."""

    item_id: Id


class ItemDelete(OpenAIClientEvent, tag="conversation.item.delete", frozen=True, kw_only=True):
    """An item leaves the conversation."""

    item_id: Id


class ItemTruncate(OpenAIClientEvent, tag="conversation.item.truncate", frozen=True, kw_only=True):
    """Only so much of an answer was heard."""

    item_id: Id
    content_index: int = 0
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(OpenAIClientEvent, tag="response.create", frozen=True, kw_only=True):
    """Answer now."""

    response: Json = msgspec.field(default_factory=dict)


class ResponseCancel(OpenAIClientEvent, tag="response.cancel", frozen=True, kw_only=True):
    """Say no more."""

    response_id: Id | None = None


ClientMessage = (
    SessionUpdateEvent
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
SHAPES: Final = codec.shapes_of(ClientMessage, as_is=("session", "item", "response"))
"""In a session `null` means something: it switches off."""
MESSAGES: Final[codec.Messages[ClientMessage, ClientMessage]] = codec.Messages(
    SHAPES, ClientMessage
)
"""Clients of this dialect are not ours: the messages of the server are only written."""


class MessageContent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message, of either side."""

    type: str
    text: Text = ""
    audio: str = ""
    transcript: Text = ""
    image_url: str = ""


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a client brings: a message, or a call with its result."""

    type: str = "message"
    role: str = ""
    id: Id | None = None
    content: Annotated[tuple[MessageContent, ...], Meta(max_length=64)] = ()
    call_id: Id | None = None
    name: Annotated[str, Meta(max_length=128)] = ""
    arguments: Text = ""
    output: Text = ""


ITEM: Final = codec.Shape(MessageItem)


# ---- server → client -----------------------------------------------------------------------


class SessionCreatedEvent(OpenAIServerEvent, tag="session.created", frozen=True, kw_only=True):
    """The session as it begins."""

    session: Json


class SessionUpdated(OpenAIServerEvent, tag="session.updated", frozen=True, kw_only=True):
    """The session as it is now."""

    session: Json


class ErrorEvent(OpenAIServerEvent, tag="error", frozen=True, kw_only=True):
    """Something went wrong; the connection stays open where that makes sense."""

    error: Json


class BufferCommitted(
    OpenAIServerEvent, tag="input_audio_buffer.committed", frozen=True, kw_only=True
):
    """Sound became an item."""

    item_id: str
    previous_item_id: str | None


class BufferCleared(OpenAIServerEvent, tag="input_audio_buffer.cleared", frozen=True, kw_only=True):
    """The sound so far is forgotten."""


class UserSpeechStarted(
    OpenAIServerEvent, tag="input_audio_buffer.speech_started", frozen=True, kw_only=True
):
    """Somebody speaks."""

    audio_start_ms: int
    item_id: str


class UserSpeechStopped(
    OpenAIServerEvent, tag="input_audio_buffer.speech_stopped", frozen=True, kw_only=True
):
    """Silence again."""

    audio_end_ms: int
    item_id: str


class ItemEvent(OpenAIServerEvent, frozen=True, kw_only=True):
    """An item, and the previous one."""

    item: Json
    previous_item_id: str | None


class ItemAdded(ItemEvent, tag="conversation.item.added", frozen=True, kw_only=True):
    """An item joined the conversation."""


class ItemDone(ItemEvent, tag="conversation.item.done", frozen=True, kw_only=True):
    """An item is complete."""


class ItemRetrieved(
    OpenAIServerEvent, tag="conversation.item.retrieved", frozen=True, kw_only=True
):
    """An item, as asked for."""

    item: Json


class ItemGone(OpenAIServerEvent, tag="conversation.item.deleted", frozen=True, kw_only=True):
    """An item left the conversation."""

    item_id: str


class ItemCut(OpenAIServerEvent, tag="conversation.item.truncated", frozen=True, kw_only=True):
    """An answer ends earlier than it was said."""

    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionCompleted(
    OpenAIServerEvent,
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
    OpenAIServerEvent,
    tag="conversation.item.input_audio_transcription.failed",
    frozen=True,
    kw_only=True,
):
    """There are no words of a user's turn."""

    item_id: str
    content_index: int
    error: Json


class ResponseCreated(OpenAIServerEvent, tag="response.created", frozen=True, kw_only=True):
    """An answer begins."""

    response: Json


class ResponseDone(OpenAIServerEvent, tag="response.done", frozen=True, kw_only=True):
    """An answer is over."""

    response: Json


class OutputItemEvent(OpenAIServerEvent, frozen=True, kw_only=True):
    """An item of an answer."""

    response_id: str
    output_index: int
    item: Json


class OutputItemAdded(OutputItemEvent, tag="response.output_item.added", frozen=True, kw_only=True):
    """An answer's item begins."""


class OutputItemDone(OutputItemEvent, tag="response.output_item.done", frozen=True, kw_only=True):
    """An answer's item is complete."""


class PartEvent(OpenAIServerEvent, frozen=True, kw_only=True):
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


class ResponseAudioDelta(PartEvent, tag="response.output_audio.delta", frozen=True, kw_only=True):
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


class CallEvent(OpenAIServerEvent, frozen=True, kw_only=True):
    """What says which call of an answer something belongs to."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str


class CallArgumentsDelta(
    CallEvent, tag="response.function_call_arguments.delta", frozen=True, kw_only=True
):
    """More of a call's arguments."""

    delta: str


class CallArgumentsDone(
    CallEvent, tag="response.function_call_arguments.done", frozen=True, kw_only=True
):
    """All of a call's arguments."""

    name: str
    arguments: str


class RateLimitsUpdated(OpenAIServerEvent, tag="rate_limits.updated", frozen=True, kw_only=True):
    """What is left of the limits; there are none of this kind here."""

    rate_limits: tuple[Json, ...] = ()
