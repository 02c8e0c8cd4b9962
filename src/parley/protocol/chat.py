"""The chat dialect: one request per connection, answered as a whole or as a stream.

    client                         server
    request (no `type`)     ─▶     queued, queue_update*, queue_done   only after a real wait
                            ◀─     prefill_done
                            ◀─     chunk*                              only when streaming
    stop (optional)         ─▶     done | error                        then close

Source: service.md 4.2 and 4.7 rows 5, 10, 11, 12.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from parley.errors import InvalidRequest
from parley.protocol import codec, legacy, values
from parley.protocol.codec import EXTENSION
from parley.protocol.legacy import Stop
from parley.protocol.wire import Wire

PATH: Final = "/ws/chat"

# ---- client → server -----------------------------------------------------------------------


Seed = Annotated[int, Meta(ge=0, le=2**63 - 1, description="Makes sampling repeatable.")]


class Request(Wire):
    """The whole conversation so far, and how to answer it. Sent once, right after connecting.

    An absent `tts` object means text only; an empty one means speech with the defaults.
    """

    messages: Annotated[tuple[values.Message, ...], Meta(min_length=1)]
    streaming: bool = True
    generation: values.ChatGeneration = values.ChatGeneration()
    tts: values.ChatTts | None = None
    image: values.ImageOptions = values.ImageOptions()
    omni_mode: bool = False
    enable_thinking: bool = False
    use_tts_template: bool = False
    record: bool = True
    extensions: bool = False
    seed: Seed | None = None
    say: Annotated[values.Text, Meta(min_length=1)] | None = None
    """A given answer, which is only spoken, if the model supports that."""
    tools: values.Tools = ()
    """Functions that the model may call; refused if it cannot."""
    truncation: values.Truncation = "disabled"

    @property
    def wants_speech(self) -> bool:
        """True if the answer is to be spoken."""
        return self.tts is not None and self.tts.enabled

    @property
    def is_omni(self) -> bool:
        """True if audio and images are interleaved: if requested, and always with a clip."""
        return self.omni_mode or any(
            isinstance(part, values.Base64Video)
            for message in self.messages
            for part in message.parts
        )


ClientMessage = Request | Stop


# ---- server → client -----------------------------------------------------------------------


class PrefillDone(Wire, tag="prefill_done"):
    """The request is in the context; generation starts."""

    input_tokens: int = 0


class Chunk(Wire, tag="chunk"):
    """The next piece of a streamed answer; either part may be null."""

    text_delta: str | None = None
    audio_data: Annotated[str, Meta(description="base64 float32 PCM, 24 kHz mono")] | None = None
    logprobs: Annotated[
        tuple[values.TokenLogprob, ...] | UnsetType,
        EXTENSION,
        Meta(description="of the tokens up to here, where the request has `top_logprobs`"),
    ] = UNSET


class ToolCall(Wire, tag="tool_call"):
    """A function call: first its `name`, then its arguments in pieces, the last one with
    `is_final`. Only if the request has `tools`.

    A call that is missing in `done` was not a call after all: its text is part of the answer.
    """

    index: int
    id: str
    name: str | None = None
    arguments_delta: str = ""
    is_final: bool = False


EarlyEnding = Literal["limit", "cancelled"]
"""Why an answer did not end by itself: `max_new_tokens`, the context, or a stop."""


class Done(Wire, tag="done"):
    """The answer is complete. `audio_data`: the whole audio if not streaming, else null."""

    text: str
    generated_tokens: int = 0
    input_tokens: int = 0
    audio_data: Annotated[str, Meta(description="base64 float32 PCM, 24 kHz mono")] | None = None
    stopped: Annotated[bool, EXTENSION] = False
    ending: Annotated[EarlyEnding | UnsetType, EXTENSION] = UNSET
    heard: Annotated[
        str | UnsetType,
        EXTENSION,
        Meta(description="the words of the request's sound, where the model makes any"),
    ] = UNSET
    words: Annotated[
        tuple[values.WordTime, ...] | UnsetType,
        EXTENSION,
        Meta(description="those of `heard`, where the model knows when each was said"),
    ] = UNSET
    tool_calls: Annotated[
        tuple[values.ToolCallPart, ...] | UnsetType,
        Meta(description="where the request has `tools`"),
    ] = UNSET
    recording_session_id: str | UnsetType = UNSET


ServerMessage = legacy.QueueMessage | PrefillDone | Chunk | ToolCall | Done | legacy.EndMessage


# ---- other spellings -----------------------------------------------------------------------


def _adjust(value: dict[str, Any]) -> None:
    messages = value.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "audio":
                codec.rename(part, values.PART_ALIASES)


REQUEST: Final = codec.Shape(
    Request,
    adjust=_adjust,
    failed=lambda sentence, where: InvalidRequest(sentence, field=where),
    absent=lambda where: InvalidRequest(f"{where} field is required", field=where),
)


def request_from(value: Any) -> Request:
    """A parsed request, e.g. the body of `POST /api/chat`.

    Raises:
        InvalidRequest: its structure or a value is wrong; `field` is its path.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("The request must be a JSON object.")
    request: Request = codec.read(value, REQUEST)
    return request


def decode_client(raw: bytes | bytearray | str) -> ClientMessage:
    """Read one frame of a client.

    Raises:
        InvalidJson: not JSON.
        InvalidRequest: not a valid request.
    """
    value = codec.parse(raw)
    if isinstance(value, dict) and value.get("type") == "stop":
        return Stop()
    return request_from(value)


MESSAGES: Final[codec.Messages[ClientMessage, ServerMessage]] = codec.Messages({}, ServerMessage)
decode_server = MESSAGES.decode_server
