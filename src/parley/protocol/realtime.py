"""The realtime dialect: full duplex on one connection, with sound alone or with video frames.

    client                              server
    (connect ?mode=video|audio)  ─▶     session.queued, session.queue_update*   only when waiting
                                 ◀─     session.queue_done                      always
    session.update               ─▶     session.created
    input_audio_buffer.append …  ─▶     response.listen | response.output_audio.delta
    session.close                ─▶     session.closed                          then close

Client errors leave the connection open. `session.closed` comes exactly once and last.
Source: realtime_video_protocol.txt; service.md 4.5-4.7.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from parley.errors import (
    BadInput,
    BadSessionId,
    ContextFull,
    InferenceFailed,
    InvalidConfig,
    InvalidJson,
    InvalidPayload,
    InvalidRequest,
    NotReady,
    ParleyError,
    Refused,
    SeatLost,
    SlowClient,
    TooLarge,
    WrongPhase,
)
from parley.protocol import codec
from parley.protocol.legacy import CLOSE_CODES, CloseReason
from parley.protocol.values import (
    VOICE_LIMIT_BYTES,
    Answer,
    DuplexConfig,
    Frames,
    Place,
    Slices,
    check_length,
    frame_files,
)

PATH: Final = "/v1/realtime"

Mode = Literal["video", "audio"]

APPEND_LEAST_SAMPLES: Final = 4_000
"""250 ms at 16 kHz. Source: realtime_video_protocol.txt, `audio`."""
APPEND_MOST_SAMPLES: Final = 160_000
"""10 s; appends longer than a unit are split by the session. Source: service.md 4.5 (REC)."""
PROMPT_ROOM_TOKENS: Final = 1_024
"""A prompt must leave at least this much of the context. Source: service.md 4.5 (REC)."""

# ---- client → server -----------------------------------------------------------------------


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt, voices and options of a session."""

    instructions: Annotated[str, Meta(min_length=1, max_length=65_536)]
    max_slice_nums: Slices = 1
    ref_audio: str | None = None
    tts_ref_audio: str | None = None
    voice_config: DuplexConfig = DuplexConfig()
    record: bool = True

    def voice_bytes(self) -> bytes | None:
        """What the language model hears as its voice: raw 16 kHz samples or a WAV file."""
        return _voice(self.ref_audio, "session.ref_audio")

    def tts_voice_bytes(self) -> bytes | None:
        """What the vocoder imitates; falls back to `voice_bytes`."""
        if self.tts_ref_audio is None:
            return self.voice_bytes()
        return _voice(self.tts_ref_audio, "session.tts_ref_audio")


class SessionUpdate(msgspec.Struct, tag="session.update", frozen=True, kw_only=True):
    """Configure the session; once, after `session.queue_done`."""

    session: SessionOptions


class Append(msgspec.Struct, tag="input_audio_buffer.append", frozen=True, kw_only=True):
    """One second of sound (base64 float32 PCM, 16 kHz mono; at least 250 ms) and usually one
    frame."""

    audio: str
    video_frames: Frames = ()
    force_listen: bool = False
    max_slice_nums: Slices | None = None

    def audio_bytes(self) -> bytes:
        """Raw float32 samples, 250 ms to 10 s."""
        return check_length(
            codec.pcm_bytes(self.audio, field="audio"),
            field="audio",
            least=APPEND_LEAST_SAMPLES,
            most=APPEND_MOST_SAMPLES,
        )

    def frame_bytes(self) -> tuple[bytes, ...]:
        """The frames as image files."""
        return frame_files(self.video_frames, field="video_frames")


class SessionClose(msgspec.Struct, tag="session.close", frozen=True, kw_only=True):
    """End the session; answered by `session.closed` with reason `stopped`."""

    reason: Annotated[str, Meta(max_length=200)] | None = None


ClientMessage = SessionUpdate | Append | SessionClose


# ---- server → client -----------------------------------------------------------------------


class SessionQueued(msgspec.Struct, tag="session.queued", frozen=True, kw_only=True):
    """The client has to wait. Both names of the estimate carry the same value; null: unknown."""

    position: int
    estimated_wait_s: float | None = None
    eta_seconds: float | None = None
    ticket_id: str = ""
    queue_length: int = 0


class SessionQueueUpdate(msgspec.Struct, tag="session.queue_update", frozen=True, kw_only=True):
    """The client still waits."""

    position: int
    estimated_wait_s: float | None = None
    eta_seconds: float | None = None
    ticket_id: str = ""
    queue_length: int = 0


class SessionQueueDone(msgspec.Struct, tag="session.queue_done", frozen=True, kw_only=True):
    """The wait is over (or there was none): send `session.update`."""


class SessionCreated(msgspec.Struct, tag="session.created", frozen=True, kw_only=True):
    """Ready: send sound. `prompt_length` in tokens."""

    session_id: str
    prompt_length: int = 0
    recording_session_id: str | UnsetType = UNSET


class AudioDelta(msgspec.Struct, tag="response.output_audio.delta", frozen=True, kw_only=True):
    """The model speaks. `audio` (base64 float32 PCM, 24 kHz mono) may be empty while text runs
    ahead."""

    text: str
    audio: str
    end_of_turn: bool
    kv_cache_length: int


class Listen(msgspec.Struct, tag="response.listen", frozen=True, kw_only=True):
    """The model listens."""

    kv_cache_length: int


class SessionClosed(msgspec.Struct, tag="session.closed", frozen=True, kw_only=True):
    """The end; nothing follows."""

    reason: CloseReason


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; `code` is stable, `message` is for people."""

    code: str
    message: str = ""
    type: Literal["client_error", "server_error"] = "server_error"


class Error(msgspec.Struct, tag="error", frozen=True, kw_only=True):
    """Something went wrong."""

    error: ErrorBody


ServerMessage = (
    SessionQueued
    | SessionQueueUpdate
    | SessionQueueDone
    | SessionCreated
    | AudioDelta
    | Listen
    | SessionClosed
    | Error
)


# ---- phases --------------------------------------------------------------------------------

Phase = Literal["queued", "connected", "active", "closed"]

ACCEPTS: Final[dict[Phase, frozenset[str]]] = {
    "queued": frozenset({"session.update", "session.close"}),
    "connected": frozenset({"session.update", "session.close"}),
    "active": frozenset({"input_audio_buffer.append", "session.close"}),
    "closed": frozenset(),
}
"""A `session.update` that comes while queued is kept and applied after `session.queue_done`.
`connected` lasts until `session.created` is sent; a failed update leaves it there."""


def check(phase: Phase, type_name: str) -> None:
    """Refuse what `phase` does not accept. The connection stays open after either error.

    Raises:
        NotReady: sound before `session.created`.
        WrongPhase: any other known message in the wrong phase.
    """
    if type_name in ACCEPTS[phase]:
        return
    if phase in ("queued", "connected") and type_name == "input_audio_buffer.append":
        raise NotReady(type_name, phase)
    raise WrongPhase(type_name, phase)


# ---- bytes ---------------------------------------------------------------------------------


def _voice(text: str | None, field: str) -> bytes | None:
    if text is None:
        return None
    return codec.voice_bytes(text, field=field, limit_bytes=VOICE_LIMIT_BYTES)


def _adjust_update(value: dict[str, Any]) -> None:
    session = value.get("session")
    if isinstance(session, dict):
        codec.rename(session, SESSION_ALIASES)


def _adjust_append(value: dict[str, Any]) -> None:
    codec.as_list(value, "video_frames")


SESSION_ALIASES: Final[codec.Aliases] = {
    "instructions": ("system_prompt", "prefix_system_prompt"),
    "ref_audio": ("ref_audio_base64", "ref_audio_data"),
    "tts_ref_audio": ("tts_ref_audio_base64",),
    "voice_config": ("config",),
}

SHAPES: Final[dict[str, codec.Shape]] = {
    "session.update": codec.Shape(SessionUpdate, adjust=_adjust_update),
    "input_audio_buffer.append": codec.Shape(
        Append,
        aliases={
            "audio": ("audio_base64", "audio_data"),
            "video_frames": ("frame_base64_list", "frames", "frame_base64", "frame"),
        },
        adjust=_adjust_append,
    ),
    "session.close": codec.Shape(SessionClose),
}


def decode_client(raw: bytes | str) -> ClientMessage:
    """Read one frame of a client.

    Raises:
        InvalidJson, UnknownEvent, MissingField, InvalidPayload.
    """
    message: ClientMessage = codec.read_typed(raw, SHAPES)
    return message


_server = msgspec.json.Decoder(ServerMessage)


def decode_server(raw: bytes | str) -> ServerMessage:
    """Read one frame of a server. Raises UnknownEvent for types of later versions."""
    message: ServerMessage = codec.decode_with(_server, raw)
    return message


encode = codec.encode


# ---- phrases -------------------------------------------------------------------------------


def queued(place: Place) -> SessionQueued:
    """First word to a client that has to wait."""
    return SessionQueued(
        position=place.position,
        estimated_wait_s=place.estimated_wait_s,
        eta_seconds=place.estimated_wait_s,
        ticket_id=place.ticket_id,
        queue_length=place.queue_length,
    )


def queue_update(place: Place) -> SessionQueueUpdate:
    """Later words to a client that still waits."""
    return SessionQueueUpdate(
        position=place.position,
        estimated_wait_s=place.estimated_wait_s,
        eta_seconds=place.estimated_wait_s,
        ticket_id=place.ticket_id,
        queue_length=place.queue_length,
    )


def queue_done() -> SessionQueueDone:
    """Last word of the queue."""
    return SessionQueueDone()


def error(failure: ParleyError) -> Error:
    """An error as a message, with one of the published codes where one fits."""
    return Error(
        error=ErrorBody(
            code=_code(failure),
            message=str(failure),
            type="client_error" if failure.is_client_error else "server_error",
        )
    )


def _code(failure: ParleyError) -> str:
    match failure:
        case InvalidConfig() | InvalidRequest():
            return InvalidPayload.code
        case InferenceFailed():
            return InferenceFailed.code
        case BadInput() | Refused() | SlowClient() | ContextFull():
            return failure.code
        case _:
            return InferenceFailed.code


def answer(failure: ParleyError) -> Answer:
    """What happens after `failure`.

    Client errors and a failed unit leave the connection open; a third failed unit in a row is for
    the session to end with `closed("error")`.
    """
    match failure:
        case InvalidJson():
            return Answer((), failure.close_code)
        case ContextFull():
            return closed("context_full")
        case TooLarge() | BadSessionId() | Refused() | SlowClient():
            return Answer((error(failure),), failure.close_code)
        case SeatLost():
            return _broken(failure)
        case BadInput() | InferenceFailed():
            return Answer((error(failure),))
        case _:
            return _broken(failure)


def _broken(failure: ParleyError) -> Answer:
    return Answer((error(failure), SessionClosed(reason="error")), CLOSE_CODES["error"])


def cancelled() -> Answer:
    """To a waiting client whose ticket was cancelled from outside (service.md 2.6)."""
    return closed("stopped")


def closed(reason: CloseReason, *, session_id: str = "", elapsed_s: float = 0.0) -> Answer:
    """The end of a session for `reason`; the other arguments are for dialects that say more."""
    del session_id, elapsed_s
    return Answer((SessionClosed(reason=reason),), CLOSE_CODES[reason])
