"""The messages of OpenAI Realtime (GA), `/v1/realtime?model=…`.

    client                              server
                                   ◀─ session.created once there is a slot session.update ─▶
    session.updated input_audio_buffer.append ─▶ …speech_started, speech_stopped, committed; item
    added, done conversation.item.create ─▶ conversation.item.added, done response.create ─▶
    response.created … response.done, rate_limits.updated

Source: OpenAI API reference, Realtime; openai-python 3.54 `types/realtime`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from parley.protocol import codec
from parley.protocol.openai import Json, OpenAIClientEvent, OpenAIServerEvent
from parley.protocol.values import Text
from parley.protocol.wire import Wire

PATH: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"

Id = Annotated[str, Meta(min_length=1, max_length=128)]


# ---- client → server -----------------------------------------------------------------------


class SessionUpdateEvent(OpenAIClientEvent, tag="session.update"):
    """Change the given settings, keep the others."""

    session: Json


class AudioAppend(OpenAIClientEvent, tag="input_audio_buffer.append"):
    """Sound: base64 of 16-bit samples, 24 kHz."""

    audio: str


class AudioCommit(OpenAIClientEvent, tag="input_audio_buffer.commit"):
    """Commit the audio so far as a turn."""


class AudioClear(OpenAIClientEvent, tag="input_audio_buffer.clear"):
    """Discard the audio so far."""


class ItemCreate(OpenAIClientEvent, tag="conversation.item.create"):
    item: Json
    previous_item_id: Id | None = None


class ItemRetrieve(OpenAIClientEvent, tag="conversation.item.retrieve"):
    item_id: Id


class ItemDelete(OpenAIClientEvent, tag="conversation.item.delete"):
    item_id: Id


class ItemTruncate(OpenAIClientEvent, tag="conversation.item.truncate"):
    """Truncate an answer to the part that was heard."""

    item_id: Id
    content_index: int = 0
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(OpenAIClientEvent, tag="response.create"):
    response: Json = msgspec.field(default_factory=dict)


class ResponseCancel(OpenAIClientEvent, tag="response.cancel"):
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
"""In a session, `null` has a meaning: it switches a feature off."""
MESSAGES: Final[codec.Messages[ClientMessage, ClientMessage]] = codec.Messages(
    SHAPES, ClientMessage
)
"""We have no client for this dialect: server messages are only encoded."""


class MessageContent(Wire):
    """A part of a message of either side."""

    type: str
    text: Text = ""
    audio: str = ""
    transcript: Text = ""
    image_url: str = ""


class MessageItem(Wire):
    """An item that a client adds: a message, a function call, or a call's result."""

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


class SessionCreatedEvent(OpenAIServerEvent, tag="session.created"):
    session: Json


class SessionUpdated(OpenAIServerEvent, tag="session.updated"):
    session: Json


class ErrorEvent(OpenAIServerEvent, tag="error"):
    error: Json


class BufferCommitted(OpenAIServerEvent, tag="input_audio_buffer.committed"):
    item_id: str
    previous_item_id: str | None


class BufferCleared(OpenAIServerEvent, tag="input_audio_buffer.cleared"):
    """The audio so far was discarded."""


class UserSpeechStarted(OpenAIServerEvent, tag="input_audio_buffer.speech_started"):
    audio_start_ms: int
    item_id: str


class UserSpeechStopped(OpenAIServerEvent, tag="input_audio_buffer.speech_stopped"):
    audio_end_ms: int
    item_id: str


class ItemEvent(OpenAIServerEvent):
    """An item, and the id of the previous one."""

    item: Json
    previous_item_id: str | None


class ItemAdded(ItemEvent, tag="conversation.item.added"):
    """An item was added to the conversation."""


class ItemDone(ItemEvent, tag="conversation.item.done"):
    """An item is complete."""


class ItemRetrieved(OpenAIServerEvent, tag="conversation.item.retrieved"):
    item: Json


class ItemGone(OpenAIServerEvent, tag="conversation.item.deleted"):
    item_id: str


class ItemCut(OpenAIServerEvent, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(
    OpenAIServerEvent, tag="conversation.item.input_audio_transcription.delta"
):
    """More words of a user's turn."""

    item_id: str
    content_index: int
    delta: str


class TranscriptionCompleted(
    OpenAIServerEvent, tag="conversation.item.input_audio_transcription.completed"
):
    item_id: str
    content_index: int
    transcript: str
    usage: Json


class TranscriptionFailed(
    OpenAIServerEvent, tag="conversation.item.input_audio_transcription.failed"
):
    item_id: str
    content_index: int
    error: Json


class ResponseCreated(OpenAIServerEvent, tag="response.created"):
    response: Json


class ResponseDone(OpenAIServerEvent, tag="response.done"):
    response: Json


class OutputItemEvent(OpenAIServerEvent):
    """An item of an answer."""

    response_id: str
    output_index: int
    item: Json


class OutputItemAdded(OutputItemEvent, tag="response.output_item.added"):
    """An item of an answer has started."""


class OutputItemDone(OutputItemEvent, tag="response.output_item.done"):
    """An answer's item is complete."""


class PartEvent(OpenAIServerEvent):
    """Indices of a part within an answer."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class ContentPartAdded(PartEvent, tag="response.content_part.added"):
    part: Json


class ContentPartDone(PartEvent, tag="response.content_part.done"):
    part: Json


class ResponseAudioDelta(PartEvent, tag="response.output_audio.delta"):
    """Sound: base64 of 16-bit samples, 24 kHz."""

    delta: str


class AudioDone(PartEvent, tag="response.output_audio.done"):
    """All audio was sent."""


class TranscriptDelta(PartEvent, tag="response.output_audio_transcript.delta"):
    delta: str


class TranscriptDone(PartEvent, tag="response.output_audio_transcript.done"):
    transcript: str


class TextDelta(PartEvent, tag="response.output_text.delta"):
    delta: str


class TextDone(PartEvent, tag="response.output_text.done"):
    text: str


class CallEvent(OpenAIServerEvent):
    """Indices of a function call within an answer."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str


class CallArgumentsDelta(CallEvent, tag="response.function_call_arguments.delta"):
    delta: str


class CallArgumentsDone(CallEvent, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class RateLimitsUpdated(OpenAIServerEvent, tag="rate_limits.updated"):
    """Remaining rate limits; this server has none of this kind."""

    rate_limits: tuple[Json, ...] = ()
