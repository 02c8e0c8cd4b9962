"""Values that dialects share: content parts, options for generation, speech, images and duplex
units.

Ranges and defaults are defined here and nowhere else. `None` means "not given". Published names are
kept even if the server uses other terms.

Source: service.md 4.1-4.4.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from parley.errors import InvalidPayload, InvalidRequest
from parley.protocol import codec
from parley.protocol.wire import Wire

CONTEXT_TOKENS: Final = 8_192
"""Maximum context of a conversation. Source: service.md 4.5; also the default for models with a
longer context."""

DEFAULT_SYSTEM_PROMPT: Final = "You are a helpful assistant."
VOICE_PROMPT: Final = "Mimic the voice from the audio sample."
"""Text before the voice in a prompt. Source: service.md 4.3."""

TEXT_LIMIT_CHARS: Final = 65_536
IMAGE_LIMIT_BYTES: Final = 20 * 1024 * 1024
VIDEO_LIMIT_BYTES: Final = 64 * 1024 * 1024
AUDIO_LIMIT_S: Final = 600
AUDIO_LIMIT_BYTES: Final = AUDIO_LIMIT_S * 48_000 * codec.SAMPLE_BYTES
"""Ten minutes at the highest accepted sample rate."""
VOICE_LIMIT_BYTES: Final = 24 * 1024 * 1024
"""Sixty seconds of 48 kHz stereo in 32-bit WAV; the length in seconds is checked after decoding."""
SLOWEST_BYTES_PER_S: Final = 4096
"""Minimum rate of a client that sends a body or a large message, or reads output, 33 kbit/s beyond
the time that it may stand still; a call in Opus needs more."""
FRAMES_LIMIT: Final = 4
"""Frames in one duplex unit. Source: service.md 4.4, 4.5."""

Text = Annotated[str, Meta(max_length=TEXT_LIMIT_CHARS)]
Slices = Annotated[int, Meta(ge=1, le=9, description="Image slices per frame: 1 is fastest.")]
Frames = Annotated[tuple[str, ...], Meta(max_length=FRAMES_LIMIT)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
VoiceName = Annotated[
    str,
    Meta(
        max_length=200,
        description="`default`, the id or name of a registered voice, or the path of a file below "
        "the server's assets folder.",
    ),
]
LengthPenalty = Annotated[float, Meta(ge=0.1, le=5, description="Above 1 lengthens answers.")]


def make_id(prefix: str) -> str:
    """A new id of an item, a response or an event."""
    return f"{prefix}_{secrets.token_hex(12)}"


# ---- content -------------------------------------------------------------------------------


def media_path(message: int, part: int) -> str:
    """The field of a chat request with a part's media, as errors name it."""
    return f"messages[{message}].content[{part}].data"


class TextPart(msgspec.Struct, tag="text", frozen=True):
    """Words."""

    text: Text


class Base64Image(Wire, tag="image"):
    """A still image: base64 of a JPEG, PNG or WebP file."""

    data: str

    def file_bytes(self, *, field: str = "image.data") -> bytes:
        return image_file(self.data, field=field)


class Base64Audio(Wire, tag="audio"):
    """Audio: base64 of mono float32 samples at `sample_rate`, or of a WAV file."""

    data: str
    sample_rate: Annotated[int, Meta(ge=4000, le=192_000)] = 16_000

    def audio_bytes(self, *, field: str = "audio.data") -> bytes:
        """Raw samples, or a WAV file (see `codec.is_wav`)."""
        return codec.voice_bytes(self.data, field=field, limit_bytes=AUDIO_LIMIT_BYTES)


class Base64Video(Wire, tag="video"):
    """A clip: base64 of a video file. The server extracts frames and audio."""

    data: str
    stack_frames: Annotated[int, Meta(ge=1, le=16)] = 1

    def file_bytes(self, *, field: str = "video.data") -> bytes:
        return codec.file_bytes(self.data, field=field, limit_bytes=VIDEO_LIMIT_BYTES)


class ToolCallPart(Wire, tag="tool_call"):
    """A function that the assistant called.

    Args:
        arguments: a JSON object, as text.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: Text = "{}"
    id: Annotated[str, Meta(max_length=128)] = ""


class ToolResultPart(Wire, tag="tool_result"):
    """Result of a called function, in a user's message; results answer calls in order."""

    content: Text
    id: Annotated[str, Meta(max_length=128)] = ""


class ToolFunction(Wire, omit_defaults=True):
    """Definition of a function; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,128}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class Tool(Wire):
    """A function that the assistant may call; in the format of OpenAI's chat completions.

    Args:
        must_call: True: this function, or another one with this mark, must be called; for models
            with the ability `tool_choice`.
    """

    type: Literal["function"] = "function"
    function: ToolFunction
    must_call: bool | UnsetType = UNSET


TOOLS_MOST: Final = 128
Tools = Annotated[tuple[Tool, ...], Meta(max_length=TOOLS_MOST)]


def chosen_tools(tools: tuple[Tool, ...], choice: object, *, field: str) -> tuple[Tool, ...]:
    """The functions that are offered under OpenAI's `tool_choice`.

    Args:
        choice: "auto" (or None), "none", "required", or `{"type": "function", …}` with a name, in
            the format of chat completions or of sessions.
        field: path of the choice, for the error.

    Raises:
        InvalidRequest: it is none of these, or names an unknown function.
    """
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return ()
    if choice == "required":
        return tuple(msgspec.structs.replace(tool, must_call=True) for tool in tools)
    name = None
    if isinstance(choice, dict) and choice.get("type") == "function":
        inner = choice.get("function")
        name = (inner if isinstance(inner, dict) else choice).get("name")
    if name not in [tool.function.name for tool in tools]:
        raise InvalidRequest(
            'tool_choice must be "auto", "none", "required", or one of the functions in tools.',
            field=field,
        )
    return tuple(
        msgspec.structs.replace(tool, must_call=True) if tool.function.name == name else tool
        for tool in tools
    )


def has_to_call(tools: tuple[Tool, ...]) -> bool:
    """True if one of the functions must be called."""
    return any(tool.must_call is True for tool in tools)


PART_ALIASES: Final[codec.Aliases] = {"data": ("audio_base64", "audio_data", "audio")}
"""Other names of an audio part's `data`."""

Part = TextPart | Base64Image | Base64Audio | Base64Video | ToolCallPart | ToolResultPart
VoicePart = TextPart | Base64Audio
"""Item of a `system_content` list."""


def is_silent_part(part: object) -> bool:
    """True if an item of `system_content` is audio without data, which published pages send if
    their reference voice has not loaded."""
    return isinstance(part, dict) and part.get("type") == "audio" and not part.get("data")


Truncation = Annotated[
    Literal["auto", "disabled"],
    Meta(
        description="What happens to a conversation that does not fit into the model's context: "
        "`auto`: its oldest turns are left out; `disabled`: it is refused."
    ),
]
Role = Literal["system", "user", "assistant"]


class Message(Wire):
    """One turn of a chat history."""

    role: Role
    content: Text | tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as a list of parts, even if it is a plain string."""
        return (TextPart(text=self.content),) if isinstance(self.content, str) else self.content


# ---- options -------------------------------------------------------------------------------


Penalty = Annotated[float, Meta(ge=-2, le=2)]


class AnswerFormat(Wire):
    """Format of an answer's text: any JSON object, or JSON of a schema. For models with the ability
    `json`.

    Args:
        schema: a JSON schema, with `json_schema`.
        name, description, strict: passed on to a remote language model.
    """

    type: Literal["json_object", "json_schema"]
    schema: dict[str, Any] | None = None
    name: Annotated[str, Meta(max_length=128)] = "answer"
    description: Text | None = None
    strict: bool | None = None


class TopLogprob(Wire):
    """A candidate token at a position of an answer.

    Args:
        logprob: natural logarithm of its probability.
        bytes: its UTF-8 bytes; None: unknown.
    """

    token: Text
    logprob: float
    bytes: tuple[int, ...] | None = None


class TokenLogprob(TopLogprob):
    """A token of an answer, with the most probable ones at its position."""

    top_logprobs: tuple[TopLogprob, ...] = ()


LOGPROBS_MOST: Final = 20
"""Maximum number of most probable tokens that can be requested at each position. Source: OpenAI API
reference."""


class WordTime(Wire):
    """A recognised word, with its start and end in the audio, in seconds."""

    word: str
    start: float
    end: float


class ChatGeneration(Wire):
    """Generation options of a chat answer."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=4096)] = 512
    temperature: Temperature = 0.7
    top_p: Probability = 0.8
    length_penalty: LengthPenalty = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 100
    do_sample: bool = True
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    answer_format: AnswerFormat | None = None
    parallel_calls: bool = True
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MOST)] | None = None


CHAT_GENERATION: Final = ChatGeneration()
"""The defaults of a chat; also the defaults of views and samplers."""

REPETITION_PENALTY: Final = 1.02
"""Repetition penalty of turn-based answers; clients cannot choose it. Source: model.md 10."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Generation options of an answer. Source of the defaults: service.md 4.2.

    Args:
        do_sample: False always chooses the most probable token.
        say: the text of the answer, which is only spoken; None: the model generates it. Only for
            models that read aloud.
        presence_penalty, frequency_penalty: only for models with the ability `penalties`.
        answer_format: format of the text; only for models with the ability `json`.
        parallel_calls: False: at most one function call, for models that support this.
        top_logprobs: number of most probable tokens to report at each position of the answer, with
            their probabilities and that of the chosen one; None: none. Only for models with the
            ability `logprobs`.
    """

    max_new_tokens: int = CHAT_GENERATION.max_new_tokens
    do_sample: bool = CHAT_GENERATION.do_sample
    temperature: float = CHAT_GENERATION.temperature
    top_p: float = CHAT_GENERATION.top_p
    top_k: int = CHAT_GENERATION.top_k
    length_penalty: float = CHAT_GENERATION.length_penalty
    repetition_penalty: float = REPETITION_PENALTY
    enable_thinking: bool = False
    say: str | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    answer_format: AnswerFormat | None = None
    parallel_calls: bool = True
    top_logprobs: int | None = None


TtsMode = Literal["default", "audio_assistant", "omni", "audio_roleplay", "voice_cloning"]


class ChatTts(Wire):
    """Options for the speech of a chat answer. A given reference is used in every mode."""

    enabled: bool = True
    mode: TtsMode = "default"
    ref_audio_path: VoiceName | None = None
    ref_audio_data: str | None = None
    language: Annotated[str, Meta(max_length=32)] | None = None

    def voice_bytes(self) -> bytes | None:
        """The reference audio that the client sent: raw samples at 16 kHz or a WAV file."""
        return voice_file(self.ref_audio_data, field="tts.ref_audio_data")


class ImageOptions(Wire):
    """How images are sliced and numbered."""

    max_slice_nums: Annotated[int, Meta(ge=1, le=16)] | None = None
    use_image_id: bool | None = None

    def numbers_images(self, images: int) -> bool:
        """True if `images` images get numbers: as requested; by default only if there are several
        (service.md 4.7-29)."""
        return images > 1 if self.use_image_id is None else self.use_image_id


Eagerness = Literal["low", "medium", "high"]
"""How long the server waits for the user to continue before it answers."""


class VadOptions(Wire):
    """When the user counts as speaking, and as having finished.

    Args:
        eagerness: `low`, `medium` and `high`: the server judges in every pause whether the turn is
            complete, and waits accordingly, 0.3 to 2.5 s; `off`: `min_silence_duration_ms` of
            silence ends it; `auto`: `medium` where `min_silence_duration_ms` has its default, else
            `off`.
    """

    threshold: Annotated[float, Meta(ge=0.05, le=0.99)] = 0.8
    min_speech_duration_ms: Annotated[int, Meta(ge=0, le=5000)] = 128
    min_silence_duration_ms: Annotated[int, Meta(ge=100, le=5000)] = 800
    speech_pad_ms: Annotated[int, Meta(ge=0, le=1000)] = 30
    eagerness: Eagerness | Literal["auto", "off"] = "auto"


VAD_DEFAULTS: Final = VadOptions()


AudioCoding = Literal["float32", "pcm16", "opus"]
"""float32 and 16-bit samples, little-endian; Opus packets of 20 ms."""


class AudioFormat(Wire):
    """Audio format on the wire.

    Args:
        input: from the client, 16 kHz (Opus: any rate that it supports).
        output: to the client, 24 kHz.
        binary: True: messages with audio are binary WebSocket messages: the length of the JSON in
            four bytes, big-endian, the JSON, the audio.
    """

    input: AudioCoding = "float32"
    output: AudioCoding = "float32"
    binary: bool = False


SilenceReason = Literal[
    "waiting_for_model", "speech_is_heard", "no_voice", "voice_failed", "unit_late"
]
"""The model has not answered yet; the user is still speaking, according to the detector; answers
have no audio; the voice's server failed, so another voice spoke, or none; a unit took longer than
its own length."""


PUBLISHED_FORMAT: Final = AudioFormat()


InterruptionState = Literal["suspected", "dismissed", "stopped"]
"""The user may be interrupting, is not interrupting, or has interrupted."""


class PlaybackReport(Wire):
    """How much of an answer the client has played; sent with its audio. A client that does not send
    it is assumed to play without delay or gaps.

    Args:
        received_ms: milliseconds of audio received in this session.
        buffered_ms: the part of that which is still to be played.
    """

    received_ms: Annotated[float, Meta(ge=0)]
    buffered_ms: Annotated[float, Meta(ge=0)]


class InterruptionOptions(Wire):
    """Policy for user speech while the assistant speaks.

    Args:
        mode: `duck` only notifies the client, which lowers the volume; `stop` ends the answer.
        min_speech_ms: shorter sounds are ignored.
        sensitivity: 0 reacts only to certain speech, 1 to anything that may be speech.
        backchannel: effect of an acknowledgement ("mhm", "yes"). `words`: none, while "stop",
            "wait" or a sentence interrupt as soon as they are recognised; `ignore`: sounds shorter
            than 0.8 s are ignored; `heed`: everything interrupts immediately.
    """

    mode: Literal["off", "duck", "stop"] = "off"
    min_speech_ms: Annotated[int, Meta(ge=64, le=2000)] = 128
    sensitivity: Annotated[float, Meta(ge=0, le=1)] = 0.5
    backchannel: Literal["words", "ignore", "heed"] = "words"


BARGE_IN: Final = InterruptionOptions(mode="stop", backchannel="heed", min_speech_ms=64)
"""Any speech interrupts immediately, as OpenAI's clients expect, which cannot lower the volume."""


class TurnGeneration(Wire):
    """Generation options of a half-duplex answer."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=2048)] = 256
    length_penalty: LengthPenalty = 1.1
    temperature: Temperature = 0.7


class TurnTts(Wire):
    """Options for the speech of half-duplex answers."""

    enabled: bool = True


class TurnSession(Wire):
    """Limits of silence in a half-duplex session."""

    timeout_s: Annotated[float, Meta(ge=10, le=1800)] = 180.0


class DuplexConfig(Wire):
    """Generation options of duplex units. They do not depend on earlier sessions."""

    generate_audio: bool = True
    ls_mode: Literal["explicit", "implicit"] = "explicit"
    force_listen_count: Annotated[int, Meta(ge=0)] = 3
    max_new_speak_tokens_per_chunk: Annotated[int, Meta(ge=1)] = 20
    decode_mode: Literal["sampling", "greedy"] = "sampling"
    temperature: Temperature = 0.7
    top_k: Annotated[int, Meta(ge=0)] = 20
    top_p: Probability = 0.8
    text_repetition_penalty: Annotated[float, Meta(ge=1)] = 1.05
    text_repetition_window_size: Annotated[int, Meta(ge=1)] = 512
    length_penalty: LengthPenalty = 1.1
    listen_prob_scale: Annotated[float, Meta(ge=0)] = 1.0
    listen_top_k: Annotated[int, Meta(ge=0)] | None = None
    tts_temperature: Temperature = 0.8
    # Models are trained on units of one second: refuse other lengths rather than ignore them.
    chunk_ms: Literal[1000] = 1000
    sample_rate: Literal[16000] = 16000

    def choices(self) -> dict[str, Any]:
        """The fields in which two sessions may differ, by name."""
        fixed = ("chunk_ms", "sample_rate")
        return {n: value for n, value in msgspec.structs.asdict(self).items() if n not in fixed}


# ---- helpers of the message modules --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Queue position of a client. `estimated_wait_s` None: unknown."""

    position: int
    estimated_wait_s: float | None
    ticket_id: str
    queue_length: int


def voice_file(text: str | None, *, field: str) -> bytes | None:
    """A reference voice: see `codec.voice_bytes`; None stays None."""
    if text is None:
        return None
    return codec.voice_bytes(text, field=field, limit_bytes=VOICE_LIMIT_BYTES)


def image_file(text: str, *, field: str) -> bytes:
    """A picture: see `codec.file_bytes`."""
    return codec.file_bytes(text, field=field, limit_bytes=IMAGE_LIMIT_BYTES)


def frame_files(frames: tuple[str, ...], *, field: str) -> tuple[bytes, ...]:
    """Decode frames to image files; an error names the first invalid one."""
    return tuple(image_file(frame, field=f"{field}[{index}]") for index, frame in enumerate(frames))


def check_samples(samples: int, *, field: str, least: int = 0, most: int) -> None:
    """Refuse audio with fewer than `least` or more than `most` samples."""
    if not least <= samples <= most:
        raise InvalidPayload(
            f"{field} must have {least} to {most} samples, got {samples}.", field=field
        )
