"""The duplex dialect: one unit per second, in which the model listens or speaks.

    client                               server
    (connect)                     ─▶     queued, queue_update*   only when there is a wait
                                  ◀─     queue_done              always
    prepare                       ─▶     prepared
    audio_chunk (+ frames) …      ─▶     result                  one per processed unit
    pause, resume                 ─▶     paused, resumed
    stop                          ─▶     stopped | timeout       then close

Source: service.md 4.4 and 4.7.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from parley.errors import BadInput, InvalidConfig, InvalidPayload, MissingField
from parley.protocol import codec, legacy, values
from parley.protocol.codec import EXTENSION
from parley.protocol.legacy import InputText, Stop
from parley.protocol.wire import Wire

PATH: Final = "/ws/duplex/{session_id}"

PAUSE_LEAST_S: Final = 1.0
PAUSE_MOST_S: Final = 300.0

# ---- client → server -----------------------------------------------------------------------


class Prepare(Wire, tag="prepare"):
    """First message after `queue_done`: prompt, voices and options."""

    system_prompt: values.Text = values.DEFAULT_SYSTEM_PROMPT
    ref_audio_base64: str | None = None
    tts_ref_audio_base64: str | None = None
    ref_audio_path: values.VoiceName | None = None
    config: values.DuplexConfig = values.DuplexConfig()
    interruption: values.InterruptionOptions = values.InterruptionOptions()
    audio_format: values.AudioFormat = values.PUBLISHED_FORMAT
    transcribe: bool = False
    max_slice_nums: values.Slices = 1
    deferred_finalize: bool = True
    record: bool = True
    extensions: bool = False
    resume: bool = False

    def voice_bytes(self) -> bytes | None:
        """Reference voice for the language model: raw 16 kHz samples or a WAV file."""
        return values.voice_file(self.ref_audio_base64, field="ref_audio_base64")

    def tts_voice_bytes(self) -> bytes | None:
        """Reference voice for the vocoder; falls back to `voice_bytes`."""
        voice = values.voice_file(self.tts_ref_audio_base64, field="tts_ref_audio_base64")
        return voice or self.voice_bytes()


class AudioChunk(Wire, tag="audio_chunk"):
    """One unit: normally 16000 samples (base64 float32 PCM, 16 kHz mono) and up to four frames;
    either may be absent, but not both. `playback`: if `interruption` is on, how much of the answer
    has been played."""

    audio_base64: str = ""
    frame_base64_list: values.Frames = ()
    force_listen: bool = False
    max_slice_nums: values.Slices | None = None
    playback: values.PlaybackReport | UnsetType = UNSET

    def audio_bytes(self) -> bytes:
        """Raw float32 samples; may be empty only if there are frames.

        Raises:
            MissingField: neither audio nor a frame.
            InvalidPayload: not base64 of samples.
        """
        data = codec.pcm_bytes(self.audio_base64, field="audio_base64")
        if not data and not self.frame_base64_list:
            raise _missing("audio_base64")
        return data

    def frame_bytes(self) -> tuple[bytes, ...]:
        return values.frame_files(self.frame_base64_list, field="frame_base64_list")


class VideoFrame(Wire, tag="video_frame"):
    """One or more frames for the next unit; the newest four are kept."""

    frame: str | values.Frames

    @property
    def frames(self) -> tuple[str, ...]:
        """One or more frames, still base64."""
        return (self.frame,) if isinstance(self.frame, str) else self.frame

    def frame_bytes(self) -> tuple[bytes, ...]:
        return values.frame_files(self.frames, field="frame")


class Pause(Wire, tag="pause"):
    """Pause after the current unit. `timeout`: seconds until the server ends the session."""

    timeout: float | None = None

    @property
    def seconds(self) -> float | None:
        """Maximum length of the pause, 1 to 300 s; None: not set by the client."""
        if self.timeout is None:
            return None
        return min(max(self.timeout, PAUSE_LEAST_S), PAUSE_MOST_S)


class Resume(Wire, tag="resume"):
    """Continue after a pause."""


class Interrupt(Wire, tag="interrupt"):
    """Deprecated: force one unit to listen. Use `force_listen` in `audio_chunk`."""


class ClientDiagnostic(Wire, tag="client_diagnostic"):
    """Measurements of a page."""

    metrics: Any = None


ClientMessage = (
    Prepare
    | AudioChunk
    | VideoFrame
    | InputText
    | Pause
    | Resume
    | Stop
    | Interrupt
    | ClientDiagnostic
)


# ---- server → client -----------------------------------------------------------------------


class Prepared(Wire, tag="prepared"):
    """Ready: send units. `prompt_length` in tokens. `accepts`: what else may be sent."""

    prompt_length: int = 0
    session_id: str = ""
    recording_session_id: str | UnsetType = UNSET
    accepts: Annotated[tuple[str, ...] | UnsetType, EXTENSION] = UNSET
    audio_format: values.AudioFormat | UnsetType = UNSET


class Result(Wire, tag="result"):
    """Result of one unit. `current_time` is session time in ms, `server_send_ts` Unix seconds."""

    is_listen: bool
    text: str = ""
    audio_data: (
        Annotated[str, Meta(description="base64 float32 PCM, 24 kHz mono; empty when listening")]
        | None
    ) = ""
    end_of_turn: bool = False
    current_time: int = 0
    unit_index: Annotated[int, EXTENSION] = 0
    cost_llm_ms: float = 0
    cost_tts_prep_ms: float = 0
    cost_tts_ms: float = 0
    cost_token2wav_ms: float = 0
    cost_all_ms: float = 0
    wall_clock_ms: float = 0
    n_tokens: int = 0
    n_tts_tokens: int = 0
    kv_cache_length: int = 0
    vision_slices: int = 0
    vision_tokens: int = 0
    server_send_ts: float = 0


class DuplexPaused(Wire, tag="paused"):
    """The session pauses for at most `timeout` seconds."""

    timeout: float


class DuplexResumed(Wire, tag="resumed"):
    """The session continues."""


class Interrupted(Wire, tag="interrupted"):
    """Answer to the deprecated `interrupt`."""


class Timeout(Wire, tag="timeout"):
    """The session ends because of a time limit."""

    reason: str = ""
    elapsed_s: float = 0


ServerMessage = (
    legacy.QueueMessage
    | Prepared
    | Result
    | DuplexPaused
    | DuplexResumed
    | Interrupted
    | legacy.TalkMessage
    | Timeout
    | legacy.EndMessage
)


# ---- other spellings -----------------------------------------------------------------------


def _refused(sentence: str, where: str) -> BadInput:
    if where.split(".")[0] in ("config", "max_slice_nums"):
        return InvalidConfig(sentence, field=where)
    return InvalidPayload(sentence, field=where)


def _missing(where: str) -> BadInput:
    return MissingField(where, f"Missing {where}")


def _adjust_prepare(value: dict[str, Any]) -> None:
    _from_system_content(value)
    config = value.get("config")
    if isinstance(config, dict) and "max_slice_nums" in config:
        value.setdefault("max_slice_nums", config.pop("max_slice_nums"))


def _from_system_content(value: dict[str, Any]) -> None:
    parts = value.pop("system_content", None)
    if not isinstance(parts, list):
        return
    objects = [part for part in parts if isinstance(part, dict)]
    texts = [
        part["text"]
        for part in objects
        if part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    for part in objects:
        codec.rename(part, values.PART_ALIASES)
    sounds = [
        part["data"]
        for part in objects
        if part.get("type") == "audio" and not values.is_silent_part(part)
    ]
    if texts:
        value.setdefault("system_prompt", "\n".join(texts))
    if sounds:
        value.setdefault("ref_audio_base64", sounds[0])


def _adjust_chunk(value: dict[str, Any]) -> None:
    if "audio_base64" not in value and not value.get("frame_base64_list"):
        raise _missing("audio_base64")


SHAPES: Final = codec.shapes_of(ClientMessage) | {
    "prepare": codec.Shape(
        Prepare,
        aliases={
            "system_prompt": ("prefix_system_prompt", "instructions"),
            "ref_audio_base64": ("ref_audio", "ref_audio_data"),
            "tts_ref_audio_base64": ("tts_ref_audio",),
            "config": ("voice_config",),
        },
        adjust=_adjust_prepare,
        lifts=frozenset({"system_content", "config"}),
        failed=_refused,
    ),
    "audio_chunk": codec.Shape(
        AudioChunk,
        aliases={
            "audio_base64": ("audio", "audio_data"),
            "frame_base64_list": ("video_frames", "frames", "frame_base64", "frame"),
        },
        lists=("frame_base64_list",),
        adjust=_adjust_chunk,
        usual=frozenset({"audio_base64"}),
        absent=_missing,
    ),
    "video_frame": codec.Shape(
        VideoFrame,
        aliases={
            "frame": ("frame_base64", "data", "frame_base64_list", "video_frames", "frames"),
        },
        absent=_missing,
    ),
    "input_text": legacy.INPUT_TEXT,
}


MESSAGES: Final[codec.Messages[ClientMessage, ServerMessage]] = codec.Messages(
    SHAPES, ServerMessage
)
decode_client, decode_server = MESSAGES.decode_client, MESSAGES.decode_server
