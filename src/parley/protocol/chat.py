"""The chat dialect: one request per connection, answered whole or as a stream.

    client                         server
    request (no `type`)     ─▶     queued, queue_update*, queue_done   only after a real wait
                            ◀─     prefill_done
                            ◀─     chunk*                              only when streaming
    stop (optional)         ─▶     done | error                        then close

Source: chat_api.txt; service.md 4.2 and 4.7 rows 5, 10, 11, 12.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from parley.errors import (
    BadInput,
    ContextFull,
    InvalidRequest,
    ParleyError,
    WrongPhase,
)
from parley.protocol import codec, legacy
from parley.protocol.legacy import CloseReason, Error, Queued, QueueDone, QueueUpdate, Stopped
from parley.protocol.values import (
    PART_ALIASES,
    Answer,
    ChatGeneration,
    ChatTts,
    ImageOptions,
    Message,
    VideoPart,
)

PATH: Final = "/ws/chat"

# ---- client → server -----------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The whole conversation so far, and how to answer it. Sent once, right after connecting.

    An absent `tts` object means text only; an empty one means speech with the defaults.
    """

    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    streaming: bool = True
    generation: ChatGeneration = ChatGeneration()
    tts: ChatTts | None = None
    image: ImageOptions = ImageOptions()
    omni_mode: bool = False
    enable_thinking: bool = False
    use_tts_template: bool = False
    record: bool = True

    @property
    def wants_speech(self) -> bool:
        """Whether the answer is to be spoken."""
        return self.tts is not None and self.tts.enabled

    @property
    def is_omni(self) -> bool:
        """Whether sound and images are interleaved: as asked, and always with a clip."""
        return self.omni_mode or any(
            isinstance(part, VideoPart) for message in self.messages for part in message.parts
        )


class Stop(msgspec.Struct, tag="stop", frozen=True, kw_only=True):
    """Stop generating; the answer so far comes in `done` with `stopped` true."""


ClientMessage = Request | Stop


# ---- server → client -----------------------------------------------------------------------


class PrefillDone(msgspec.Struct, tag="prefill_done", frozen=True, kw_only=True):
    """The request is in the context; generation starts."""

    input_tokens: int = 0


class Chunk(msgspec.Struct, tag="chunk", frozen=True, kw_only=True):
    """The next piece of a streamed answer; either part may be null."""

    text_delta: str | None = None
    audio_data: Annotated[str, Meta(description="base64 float32 PCM, 24 kHz mono")] | None = None


class Done(msgspec.Struct, tag="done", frozen=True, kw_only=True):
    """The answer is complete. `audio_data`: the whole sound when not streaming, else null."""

    text: str
    generated_tokens: int = 0
    input_tokens: int = 0
    audio_data: Annotated[str, Meta(description="base64 float32 PCM, 24 kHz mono")] | None = None
    stopped: bool = False
    recording_session_id: str | UnsetType = UNSET


ServerMessage = Queued | QueueUpdate | QueueDone | PrefillDone | Chunk | Done | Stopped | Error


# ---- phases --------------------------------------------------------------------------------

Phase = Literal["opened", "waiting", "prefill", "generating", "closed"]

ACCEPTS: Final[dict[Phase, frozenset[str]]] = {
    "opened": frozenset({"request"}),
    "waiting": frozenset({"stop"}),
    "prefill": frozenset({"stop"}),
    "generating": frozenset({"stop"}),
    "closed": frozenset(),
}
"""What each phase acts on. `request` stands for the one message without a type. Frames that a phase
does not accept are ignored after the request (service.md 4.2), so only `opened` refuses."""


def check(phase: Phase, type_name: str) -> None:
    """Refuse what `phase` does not accept.

    Raises:
        InvalidRequest: the first message is not a request.
        WrongPhase: anything else; this dialect ignores it.
    """
    if type_name in ACCEPTS[phase]:
        return
    if phase == "opened":
        raise InvalidRequest("The first message must be a chat request.")
    raise WrongPhase(type_name, phase)


# ---- bytes ---------------------------------------------------------------------------------


def _refused(sentence: str, where: str) -> BadInput:
    return InvalidRequest(sentence, field=where)


def _absent(where: str) -> BadInput:
    return InvalidRequest(f"{where} field is required", field=where)


def _adjust(value: dict[str, Any]) -> None:
    messages = value.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "audio":
                codec.rename(part, PART_ALIASES)


REQUEST: Final = codec.Shape(Request, adjust=_adjust, failed=_refused, absent=_absent)


def request_from(value: Any) -> Request:
    """A parsed request, e.g. the body of `POST /api/chat`.

    Raises:
        InvalidRequest: structure or a value is wrong; `field` says where.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("A chat request is a JSON object.")
    request: Request = codec.read(value, REQUEST)
    return request


def decode_client(raw: bytes | str) -> ClientMessage:
    """Read one frame of a client.

    Raises:
        InvalidJson: not JSON.
        InvalidRequest: not a valid request.
    """
    value = codec.parse(raw)
    if isinstance(value, dict) and value.get("type") == "stop":
        return Stop()
    return request_from(value)


_server = msgspec.json.Decoder(ServerMessage)


def decode_server(raw: bytes | str) -> ServerMessage:
    """Read one frame of a server. Raises UnknownEvent for types of later versions."""
    message: ServerMessage = codec.decode_with(_server, raw)
    return message


encode = codec.encode


# ---- phrases -------------------------------------------------------------------------------


def error(failure: ParleyError) -> Error:
    """An error as a message."""
    return legacy.error(failure)


def answer(failure: ParleyError) -> Answer:
    """What happens after `failure`: the error, then always the end."""
    code = 1008 if isinstance(failure, ContextFull) else failure.close_code
    return Answer((error(failure),), code)


def closed(reason: CloseReason, *, session_id: str = "", elapsed_s: float = 0.0) -> Answer:
    """The end of a connection for `reason`."""
    match reason:
        case "stopped":
            return Answer((Stopped(session_id=session_id),), 1000)
        case "timeout":
            return Answer(
                (legacy.phrase(f"No request within {elapsed_s:g} seconds.", "timeout"),), 1008
            )
        case "context_full":
            return Answer((legacy.phrase("The context is full.", "context_full"),), 1008)
        case "server_shutdown":
            return Answer(
                (legacy.phrase("The server is shutting down.", "service_unavailable"),), 1001
            )
        case "error":
            return Answer((legacy.phrase("The request failed.", "inference_error"),), 1011)
