"""What can happen in any conversation, with no dialect attached.

A translator makes the first kind of a client's messages; a driver emits the second kind, and a
translator makes messages of those. Observers (a recorder, the worker's meter) see both kinds.
Pictures and clips stay files here: whoever needs their content decodes them, away from the event
loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parley.engine.segments import Role
from parley.engine.work import DuplexOptions
from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.vad import VadOptions
from parley.views.turns import Generation

# ---- content -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A still image: a JPEG, PNG or WebP file."""

    file: bytes


@dataclass(frozen=True, slots=True)
class Sound:
    """Sound as it was sent: a WAV file, or raw float32 samples at `rate_hz`."""

    data: bytes
    rate_hz: int = 16_000


@dataclass(frozen=True, slots=True)
class Clip:
    """A video file. `stack_frames`: frames looked at per second."""

    file: bytes
    stack_frames: int = 1


Content = Words | Picture | Sound | Clip


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a history that the client keeps."""

    role: Role
    content: tuple[Content, ...]


# ---- what a client does --------------------------------------------------------------------

TtsMode = Literal["default", "audio_assistant", "omni", "audio_roleplay", "voice_cloning"]


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """A whole request.

    Args:
        voice: reference sound the client brought; wins over `voice_name`.
        voice_name: a registered voice.
        numbers_images: give pictures numbers in the prompt; None leaves it to the model.
        wants_recording: False when the client asked not to be recorded.
    """

    messages: tuple[Message, ...]
    is_streaming: bool = True
    wants_speech: bool = False
    voice: Sound | None = None
    voice_name: str | None = None
    tts_mode: TtsMode = "default"
    language: str | None = None
    generation: Generation = field(default_factory=Generation)
    max_slices: int | None = None
    numbers_images: bool | None = None
    is_omni: bool = False
    wants_recording: bool = True


@dataclass(frozen=True, slots=True)
class TurnsPrepared:
    """A half-duplex conversation is set up: prompt, voice, when a turn ends, how it is answered."""

    system: tuple[Words | Sound, ...] = ()
    voice: Sound | None = None
    wants_speech: bool = True
    vad: VadOptions = field(default_factory=VadOptions)
    generation: Generation = field(default_factory=Generation)
    idle_s: float = 180.0
    wants_recording: bool = True


@dataclass(frozen=True, slots=True)
class UnitsPrepared:
    """A duplex conversation is set up: prompt, what the model hears as its voice, what it imitates.

    Args:
        voice: part of the prompt.
        tts_voice: what the vocoder imitates; None falls back to `voice`.
        settles_late: send a unit's result before its bookkeeping.
    """

    prompt: str
    voice: Sound | None = None
    tts_voice: Sound | None = None
    voice_name: str | None = None
    max_slices: int = 1
    options: DuplexOptions = field(default_factory=DuplexOptions)
    settles_late: bool = True
    wants_recording: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """Sound from the microphone, with what the camera saw.

    Args:
        pcm: mono, 16 kHz.
        frames: picture files, oldest first.
        max_slices: for these frames; None leaves it to the session.
    """

    pcm: Pcm
    frames: tuple[bytes, ...] = ()
    force_listen: bool = False
    max_slices: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Frames that came ahead of their sound."""

    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """The client wants to rest; None: as long as the server usually allows."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """The client goes on."""


@dataclass(frozen=True, slots=True)
class InterruptAsked:
    """The client wants silence now."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The client wants to end."""


ClientEvent = (
    ChatAsked
    | TurnsPrepared
    | UnitsPrepared
    | Heard
    | Seen
    | PauseAsked
    | ResumeAsked
    | InterruptAsked
    | StopAsked
)

# ---- what a conversation does --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The session is set up. `idle_s` is 0 where silence does not end it."""

    prompt_tokens: int = 0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The request is in the context (chat)."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class VoiceChanged:
    """Somebody began or ceased to speak (half-duplex)."""

    is_speaking: bool


@dataclass(frozen=True, slots=True, eq=False)
class TurnBegan:
    """An utterance is complete and is being answered (half-duplex)."""

    speech_ms: int
    utterance: Pcm


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """The next piece of an answer (chat, half-duplex)."""

    index: int
    text: str = ""
    pcm: Pcm | None = None
    is_final: bool = False
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """A chat answer is complete. `pcm`: the whole sound unless it went out in pieces."""

    text: str
    generated_tokens: int
    input_tokens: int
    pcm: Pcm | None = None
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class TurnDone:
    """A half-duplex answer is complete."""

    index: int
    text: str
    audio_ms: int = 0
    is_interrupted: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class UnitDone:
    """One unit of duplex: listened or spoke.

    Args:
        index: counts processed units from 0.
        pcm: what is to be heard; empty when listening or when no sound is ready yet.
        time_ms: session time when the unit was complete.
        costs_ms: milliseconds per stage: `prefill`, `llm`, `tts_prep`, `tts`, `token2wav`, `all`.
        wall_ms: from receipt of the sound to the result.
        context_tokens: as reported to clients, before settling.
        unit: what it was an answer to (for observers).
    """

    index: int
    is_listen: bool
    text: str
    pcm: Pcm
    end_of_turn: bool
    context_tokens: int
    time_ms: int = 0
    costs_ms: Mapping[str, float] = field(default_factory=dict)
    wall_ms: float = 0.0
    text_tokens: int = 0
    speech_tokens: int = 0
    vision_slices: int = 0
    vision_tokens: int = 0
    unit: Heard | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """Resting for at most `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """Going on."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The next unit will listen."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something went wrong; whether that ends the session is for the dialect to say."""

    error: ParleyError


EndReason = Literal[
    "done", "stopped", "timeout", "context_full", "server_shutdown", "error", "disconnected"
]


@dataclass(frozen=True, slots=True)
class Ended:
    """The conversation is over; always the last event.

    Args:
        error: what ended it, when an error did.
        elapsed_s: what ran out, for `timeout`.
    """

    reason: EndReason
    error: ParleyError | None = None
    elapsed_s: float = 0.0


ServerEvent = (
    Ready
    | Prefilled
    | VoiceChanged
    | TurnBegan
    | Said
    | Answered
    | TurnDone
    | UnitDone
    | Paused
    | Resumed
    | Interrupted
    | Failed
    | Ended
)

Event = ClientEvent | ServerEvent
