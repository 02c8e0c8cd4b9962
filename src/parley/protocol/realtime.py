"""The realtime dialect: full duplex on one connection, with audio alone or with video frames.

    client                              server
    (connect ?mode=video|audio)  ─▶     session.queued, session.queue_update*   only when waiting
                                 ◀─     session.queue_done                      always
    session.update               ─▶     session.created
    input_audio_buffer.append …  ─▶     response.listen | response.output_audio.delta
    session.close                ─▶     session.closed                          then close

Client errors leave the connection open. `session.closed` comes exactly once and last.
Source: service.md 4.5-4.7.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from parley.errors import InvalidPayload
from parley.protocol import codec, legacy, values
from parley.protocol.codec import EXTENSION
from parley.protocol.legacy import CloseReason
from parley.protocol.wire import Wire

PATH: Final = "/v1/realtime"

CallMode = Literal["video", "audio"]

APPEND_LEAST_SAMPLES: Final = 4_000
"""250 ms at 16 kHz. Source: service.md 4.5, `audio`."""
CHUNK_LEAST_SAMPLES: Final = 320
"""20 ms: minimum length of an append of a client with extensions."""
APPEND_MOST_SAMPLES: Final = 160_000
"""10 s; appends longer than a unit are split by the session. Source: service.md 4.5 (REC)."""
PROMPT_ROOM_TOKENS: Final = 1_024
"""A prompt must leave at least this much of the context. Source: service.md 4.5 (REC)."""

# ---- client → server -----------------------------------------------------------------------


class SessionOptions(Wire):
    """Prompt, voices and options of a session."""

    instructions: Annotated[str, Meta(min_length=1, max_length=65_536)]
    max_slice_nums: values.Slices = 1
    ref_audio: str | None = None
    tts_ref_audio: str | None = None
    voice_config: values.DuplexConfig = values.DuplexConfig()
    interruption: values.InterruptionOptions = values.InterruptionOptions()
    audio_format: values.AudioFormat = values.PUBLISHED_FORMAT
    transcribe: bool = False
    record: bool = True
    resume: bool = False
    ref_audio_path: values.VoiceName | None = None

    def voice_bytes(self) -> bytes | None:
        """Reference voice for the language model: raw 16 kHz samples or a WAV file."""
        return values.voice_file(self.ref_audio, field="session.ref_audio")

    def tts_voice_bytes(self) -> bytes | None:
        """Reference voice for the vocoder; falls back to `voice_bytes`."""
        return (
            values.voice_file(self.tts_ref_audio, field="session.tts_ref_audio")
            or self.voice_bytes()
        )


class SessionUpdate(Wire, tag="session.update"):
    """Configure the session; sent once, after `session.queue_done`.

    `extensions`: request messages and fields that are not published (docs/protocols).
    """

    session: SessionOptions
    extensions: bool = False


class Append(Wire, tag="input_audio_buffer.append"):
    """One second of audio (base64 float32 PCM, 16 kHz mono; at least 250 ms) and usually one frame.
    `playback`: if `interruption` is on, how much of the answer has been played."""

    audio: str
    video_frames: values.Frames = ()
    force_listen: bool = False
    max_slice_nums: values.Slices | None = None
    playback: values.PlaybackReport | UnsetType = UNSET

    def audio_bytes(self, least_samples: int = APPEND_LEAST_SAMPLES) -> bytes:
        """Raw float32 samples, at most 10 s."""
        data = codec.pcm_bytes(self.audio, field="audio")
        count = len(data) // codec.SAMPLE_BYTES
        values.check_samples(count, field="audio", least=least_samples, most=APPEND_MOST_SAMPLES)
        return data

    def frame_bytes(self) -> tuple[bytes, ...]:
        return values.frame_files(self.video_frames, field="video_frames")


class ItemPart(Wire):
    """A part of an item: `text`, or `image_url` (base64 of a file, also as a data URL)."""

    type: Literal["input_text", "input_image"]
    text: values.Text = ""
    image_url: str = ""


class WrittenItem(Wire):
    """Text and pictures from the user."""

    content: Annotated[tuple[ItemPart, ...], Meta(min_length=1, max_length=2 * values.FRAMES_LIMIT)]
    type: Literal["message"] = "message"
    role: Literal["user"] = "user"

    @property
    def text(self) -> str:
        texts = (part.text.strip() for part in self.content if part.type == "input_text")
        return "\n".join(filter(None, texts))

    def image_bytes(self) -> tuple[bytes, ...]:
        images = tuple(part.image_url for part in self.content if part.type == "input_image")
        if len(images) > values.FRAMES_LIMIT:
            raise InvalidPayload(
                f"An item may contain at most {values.FRAMES_LIMIT} pictures.", field="item"
            )
        return values.frame_files(images, field="item.content.image_url")


class ConversationItemCreate(Wire, tag="conversation.item.create"):
    """Only with extensions: written text and pictures for the running call, which are answered
    aloud. Pictures alone belong to the next unit."""

    item: WrittenItem


class SessionClose(Wire, tag="session.close"):
    """End the session; answered by `session.closed` with reason `stopped`, regardless of the
    client's reason."""

    reason: Any = None


ClientMessage = SessionUpdate | Append | ConversationItemCreate | SessionClose


# ---- server → client -----------------------------------------------------------------------


class SessionQueued(legacy.PlaceFields, tag="session.queued"):
    """The client has to wait. Both names of the estimate have the same value; null: unknown."""


class SessionQueueUpdate(legacy.PlaceFields, tag="session.queue_update"):
    """The client still waits."""


class SessionQueueDone(Wire, tag="session.queue_done"):
    """The wait is over (or there was none): send `session.update`."""


class SessionCreated(Wire, tag="session.created"):
    """Ready: send audio. `prompt_length` in tokens. `accepts`: what else may be sent."""

    session_id: str
    prompt_length: int = 0
    recording_session_id: Annotated[str | UnsetType, EXTENSION] = UNSET
    accepts: Annotated[tuple[str, ...] | UnsetType, EXTENSION] = UNSET
    audio_format: values.AudioFormat | UnsetType = UNSET


class AudioDelta(Wire, tag="response.output_audio.delta"):
    """The model speaks. `audio`: base64 float32 PCM, 24 kHz mono, at most a second. With extensions
    it is empty while the text is ahead of the audio. Optional fields: see `duplex.Result`."""

    text: str
    audio: str
    end_of_turn: bool
    kv_cache_length: int
    wall_clock_ms: Annotated[float | UnsetType, EXTENSION] = UNSET
    server_send_ts: Annotated[float | UnsetType, EXTENSION] = UNSET


class Listen(Wire, tag="response.listen"):
    """The model listens. Optional fields: see `duplex.Result`."""

    kv_cache_length: int
    wall_clock_ms: Annotated[float | UnsetType, EXTENSION] = UNSET
    server_send_ts: Annotated[float | UnsetType, EXTENSION] = UNSET


class ResponseInterruption(legacy.InterruptionFields, tag="response.interruption"):
    """As `legacy.InterruptionMessage`; only if the client requested `interruption`."""


class InputTranscriptionCompleted(
    Wire, tag="conversation.item.input_audio_transcription.completed"
):
    """Only if the client requested `transcribe` and the model transcribes: the user's words.
    `item_id` is new for each."""

    item_id: str
    transcript: str


class SessionStatus(legacy.StatusFields, tag="session.status"):
    """Why there is no output, or no audible output, and for how long already (for `unit_late`: how
    late). Only with extensions."""


class SessionRecordingLost(legacy.LossFields, tag="session.recording_lost"):
    """The recording has gaps: `entries` could not be written so far. Only with extensions."""


class SessionClosed(Wire, tag="session.closed"):
    """The session has ended; no message follows."""

    reason: CloseReason


class ErrorBody(Wire):
    """An error; `code` is stable, `message` is for people."""

    code: str
    message: str = ""
    type: Literal["client_error", "server_error"] = "server_error"


class RealtimeError(Wire, tag="error"):
    """An error. Clients without extensions receive the nearest published code; `message` ends with
    the original code."""

    error: ErrorBody

    def published(self) -> RealtimeError:
        body = self.error
        if body.code in PUBLISHED_CODES:
            return self
        nearest = NEAREST_CODES.get(body.code)
        if nearest is None:
            nearest = "invalid_payload" if body.type == "client_error" else "inference_error"
        message = f"{body.message} ({body.code})"
        return RealtimeError(error=ErrorBody(code=nearest, message=message, type=body.type))


PUBLISHED_CODES: Final = frozenset(
    {
        *("not_ready", "unknown_event", "missing_field", "invalid_payload", "invalid_event"),
        *("service_unavailable", "queue_full", "worker_busy", "worker_connect_failed"),
        "inference_error",
    }
)
"""Source: service.md 4.5, error codes and state machine (`invalid_event`)."""

NEAREST_CODES: Final[dict[str, str]] = {
    "too_many_sessions": "worker_busy",
    "rate_limited": "worker_busy",
    "quota_exceeded": "worker_busy",
    # `inference_error` is documented as one after which the session continues.
    "worker_lost": "worker_connect_failed",
    "session_id_in_use": "worker_busy",
    "app_disabled": "service_unavailable",
    "unauthorized": "service_unavailable",
    "origin_forbidden": "service_unavailable",
}
"""Published codes for our own errors. Any other code becomes `invalid_payload` if it is the
client's fault, else `inference_error`."""


ServerMessage = (
    SessionQueued
    | SessionQueueUpdate
    | SessionQueueDone
    | SessionCreated
    | AudioDelta
    | Listen
    | InputTranscriptionCompleted
    | ResponseInterruption
    | SessionRecordingLost
    | SessionStatus
    | SessionClosed
    | RealtimeError
)


# ---- other spellings -----------------------------------------------------------------------


def _adjust_update(value: dict[str, Any]) -> None:
    session = value.get("session")
    if isinstance(session, dict):
        codec.rename(session, SESSION_ALIASES)
        if "extensions" in session:
            value.setdefault("extensions", session.pop("extensions"))


SESSION_ALIASES: Final[codec.Aliases] = {
    "instructions": ("system_prompt", "prefix_system_prompt"),
    "ref_audio": ("ref_audio_base64", "ref_audio_data"),
    "tts_ref_audio": ("tts_ref_audio_base64",),
    "voice_config": ("config",),
}

SHAPES: Final = codec.shapes_of(ClientMessage) | {
    "session.update": codec.Shape(
        SessionUpdate, adjust=_adjust_update, lifts=frozenset({"session"})
    ),
    "input_audio_buffer.append": codec.Shape(
        Append,
        aliases={
            "audio": ("audio_base64", "audio_data"),
            "video_frames": ("frame_base64_list", "frames", "frame_base64", "frame"),
        },
        lists=("video_frames",),
    ),
}


MESSAGES: Final[codec.Messages[ClientMessage, ServerMessage]] = codec.Messages(
    SHAPES, ServerMessage
)
decode_client, decode_server = MESSAGES.decode_client, MESSAGES.decode_server
