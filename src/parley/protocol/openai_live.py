"""The messages of OpenAI Live, `/v1/live/sessions`: no turns, both may speak.

    client                            server
    session.start               ─▶    session.started
    session.input_audio.append  ─▶    (nothing)
                                ◀─    session.output_transcript.delta, session.output_audio.delta
    session.close               ─▶    session.closed                      then close

Our additions: `session.input_image.append{image, t_ms}`, a picture for the next unit, and
`session.interruption`, for clients with extensions whose `session.start` has `interruption`.
Source: openai-python 3.54 `types/live`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from parley.protocol import codec
from parley.protocol.openai import Json, OpenAIClientEvent, OpenAIServerEvent
from parley.protocol.values import InterruptionState, Text

PATH: Final = "/v1/live/sessions"


# ---- client → server -----------------------------------------------------------------------


class SessionStart(OpenAIClientEvent, tag="session.start"):
    session: Json


class SessionChange(OpenAIClientEvent, tag="session.update"):
    session: Json


class LiveInputAudio(OpenAIClientEvent, tag="session.input_audio.append"):
    """Audio: base64 of 16-bit samples, 24 kHz, of any length."""

    audio: str


class LiveInputImage(OpenAIClientEvent, tag="session.input_image.append"):
    """A picture: base64 of a JPEG, PNG or WebP file, or a data URL. Ours."""

    image: str
    t_ms: int | None = None


class Mute(OpenAIClientEvent, tag="session.input_audio.mute"):
    """Mute: from now on the model receives silence."""


class Unmute(OpenAIClientEvent, tag="session.input_audio.unmute"):
    """The model hears again."""


class InstructionsAppend(OpenAIClientEvent, tag="session.instructions.append"):
    content: Annotated[Text, Meta(min_length=1)]


class ThinkingAppend(OpenAIClientEvent, tag="session.thinking.append"):
    """Context for the model during the session."""

    content: Annotated[Text, Meta(min_length=1)]


class CommentaryAppend(OpenAIClientEvent, tag="session.commentary.append"):
    """Context that the model may also say."""

    content: Annotated[Text, Meta(min_length=1)]


class LiveClose(OpenAIClientEvent, tag="session.close"):
    """End the session."""


LiveMessage = (
    SessionStart
    | SessionChange
    | LiveInputAudio
    | LiveInputImage
    | Mute
    | Unmute
    | InstructionsAppend
    | ThinkingAppend
    | CommentaryAppend
    | LiveClose
)
SHAPES: Final = codec.shapes_of(LiveMessage, as_is=["session"])
MESSAGES: Final[codec.Messages[LiveMessage, LiveMessage]] = codec.Messages(SHAPES, LiveMessage)
"""We have no client for this dialect: server messages are only encoded."""


# ---- server → client -----------------------------------------------------------------------


class LiveServerEvent(OpenAIServerEvent):
    """Fields of every event of the server, including the id of the client's event that it
    answers."""

    client_event_id: str | UnsetType = UNSET


class Started(LiveServerEvent, tag="session.started"):
    session: Json


class Changed(LiveServerEvent, tag="session.updated"):
    session: Json


class Muted(LiveServerEvent, tag="session.input_audio.muted"):
    """The input is muted."""


class Unmuted(LiveServerEvent, tag="session.input_audio.unmuted"):
    """The model hears again."""


class Appended(LiveServerEvent):
    """Text was sent to the model; times are milliseconds of session time."""

    start_ms: int
    end_ms: int


class InstructionsAppended(Appended, tag="session.instructions.appended"):
    """Instructions for the model."""


class ThinkingAppended(Appended, tag="session.thinking.appended"):
    """Context for the model."""


class CommentaryAppended(Appended, tag="session.commentary.appended"):
    """Context that the model may also say."""


class OutputAudio(LiveServerEvent, tag="session.output_audio.delta"):
    """Sound: base64 of 16-bit samples, 24 kHz."""

    delta: str
    start_ms: int
    end_ms: int


class OutputTranscript(LiveServerEvent, tag="session.output_transcript.delta"):
    delta: str
    start_ms: int
    end_ms: int


class LiveInputTranscript(LiveServerEvent, tag="session.input_transcript.delta"):
    delta: str
    start_ms: int
    end_ms: int


class SessionInterruption(LiveServerEvent, tag="session.interruption"):
    """As `legacy.InterruptionMessage`; only if the client requested `interruption`. Our
    addition."""

    state: InterruptionState
    index: int = 0
    heard_ms: int = 0
    text: str = ""


class UsageUpdated(LiveServerEvent, tag="session.usage.updated"):
    """Length of the session's audio so far, in seconds."""

    usage: Json


class LiveClosed(LiveServerEvent, tag="session.closed"):
    reason: str
    session: Json
    usage: Json


class LiveError(LiveServerEvent, tag="error"):
    error: Json
