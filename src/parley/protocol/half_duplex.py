"""The half-duplex dialect: the user speaks, a pause ends the turn, the model answers, and so on.

    client                         server
    (connect)               ─▶     queued, queue_update*       only when there is a wait
                            ◀─     queue_done                  always
    prepare                 ─▶     prepared
    audio_chunk …           ─▶     vad_state true … vad_state false, generating,
                            ◀─     chunk*, turn_done           once per turn
    stop                    ─▶     stopped | timeout | error   then close

Source: service.md 4.3 and 4.7.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from parley.errors import BadInput, InvalidConfig, InvalidPayload
from parley.protocol import codec, legacy, values
from parley.protocol.codec import EXTENSION
from parley.protocol.legacy import InputText, Stop
from parley.protocol.wire import Wire

PATH: Final = "/ws/half_duplex/{session_id}"

# ---- client → server -----------------------------------------------------------------------


class Config(Wire):
    """Options for the turns of a session."""

    vad: values.VadOptions = values.VadOptions()
    generation: values.TurnGeneration = values.TurnGeneration()
    tts: values.TurnTts = values.TurnTts()
    session: values.TurnSession = values.TurnSession()
    interruption: values.InterruptionOptions = values.InterruptionOptions()
    audio_format: values.AudioFormat = values.PUBLISHED_FORMAT
    transcribe: bool = False


class HalfDuplexPrepare(Wire, tag="prepare"):
    """First message after `queue_done`. `system_content` wins over `system_prompt`; without either
    the default prompt is used."""

    system_prompt: values.Text | None = None
    system_content: tuple[values.VoicePart, ...] | None = None
    config: Config = Config()
    ref_audio_base64: str | None = None
    ref_audio_path: values.VoiceName | None = None
    record: bool = True
    extensions: bool = False
    resume: bool = False

    def voice_bytes(self) -> bytes | None:
        """The voice to imitate: raw samples at 16 kHz or a WAV file; None: the client sent none, or
        as the first audio of `system_content`."""
        return values.voice_file(self.ref_audio_base64, field="ref_audio_base64")


class HalfDuplexAudioChunk(Wire, tag="audio_chunk"):
    """About half a second of microphone audio: base64 float32 PCM, 16 kHz mono. Ignored if empty.
    `playback`: if `interruption` is on, how much of the answer has been played."""

    audio_base64: str = ""
    playback: values.PlaybackReport | UnsetType = UNSET

    def audio_bytes(self) -> bytes:
        """Raw float32 samples; may be empty."""
        return codec.pcm_bytes(self.audio_base64, field="audio_base64")


ClientMessage = HalfDuplexPrepare | HalfDuplexAudioChunk | InputText | Stop


# ---- server → client -----------------------------------------------------------------------


class HalfDuplexPrepared(Wire, tag="prepared"):
    """Ready: send audio. `recording_session_id` is present if the session is recorded. `accepts`:
    what else may be sent."""

    session_id: str
    timeout_s: float
    recording_session_id: str | UnsetType = UNSET
    accepts: Annotated[tuple[str, ...] | UnsetType, EXTENSION] = UNSET
    audio_format: values.AudioFormat | UnsetType = UNSET


class VadState(Wire, tag="vad_state"):
    """The user started (true) or stopped (false) speaking."""

    speaking: bool


class Generating(Wire, tag="generating"):
    """The utterance is complete and the answer is being generated."""

    speech_duration_ms: int


class HalfDuplexChunk(Wire, tag="chunk"):
    """The next piece of the answer; either part may be null. The last one, with neither, is sent
    only with extensions."""

    text_delta: str | None = None
    audio_data: Annotated[str, Meta(description="base64 float32 PCM, 24 kHz mono")] | None = None
    chunk_index: Annotated[int, EXTENSION] = 0
    audio_sample_rate: Annotated[int, EXTENSION] = 24_000
    is_final: Annotated[bool, EXTENSION] = False
    duration_ms: Annotated[float, EXTENSION] = 0

    def published(self) -> HalfDuplexChunk | None:
        return None if self.text_delta is None and self.audio_data is None else self


class HalfDuplexTurnDone(Wire, tag="turn_done"):
    """The answer is complete: play it, wait about 800 ms, then send audio again."""

    turn_index: int
    text: str
    interrupted: Annotated[bool, EXTENSION] = False
    failed: Annotated[bool, EXTENSION] = False
    audio_duration_ms: Annotated[int, EXTENSION] = 0


class HalfDuplexTimeout(Wire, tag="timeout"):
    """No audio for too long, or the session reached its maximum length."""

    elapsed_s: float


ServerMessage = (
    legacy.QueueMessage
    | HalfDuplexPrepared
    | VadState
    | Generating
    | HalfDuplexChunk
    | HalfDuplexTurnDone
    | legacy.TalkMessage
    | HalfDuplexTimeout
    | legacy.EndMessage
)


# ---- other spellings -----------------------------------------------------------------------


def _refused(sentence: str, where: str) -> BadInput:
    if where.split(".")[0] == "config":
        return InvalidConfig(sentence, field=where)
    return InvalidPayload(sentence, field=where)


def _adjust_prepare(value: dict[str, Any]) -> None:
    parts = value.get("system_content")
    if not isinstance(parts, list):
        return
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "audio":
            codec.rename(part, values.PART_ALIASES)
    value["system_content"] = [part for part in parts if not values.is_silent_part(part)]


SHAPES: Final = codec.shapes_of(ClientMessage) | {
    "prepare": codec.Shape(
        HalfDuplexPrepare,
        aliases={
            "system_prompt": ("prefix_system_prompt", "instructions"),
            "ref_audio_base64": ("ref_audio", "ref_audio_data"),
        },
        adjust=_adjust_prepare,
        lifts=frozenset({"system_content"}),
        failed=_refused,
    ),
    "audio_chunk": codec.Shape(
        HalfDuplexAudioChunk, aliases={"audio_base64": ("audio", "audio_data")}
    ),
    "input_text": legacy.INPUT_TEXT,
}


MESSAGES: Final[codec.Messages[ClientMessage, ServerMessage]] = codec.Messages(
    SHAPES, ServerMessage
)
decode_client, decode_server = MESSAGES.decode_client, MESSAGES.decode_server
