"""Actions of a client in a conversation; created by dialects, consumed by runners.

Files of pictures, audio and clips are not decoded here: the code that needs their content decodes
them off the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parley.media.pcm import Pcm
from parley.protocol import values
from parley.protocol.content import Message


@dataclass(frozen=True, slots=True)
class Picture:
    """A still image: a JPEG, PNG or WebP file."""

    file: bytes


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio as it was sent: a WAV file, or raw float32 samples at `rate_hz`."""

    data: bytes
    rate_hz: int = 16_000


@dataclass(frozen=True, slots=True)
class Clip:
    """A video file. `stack_frames`: frames used per second."""

    file: bytes
    stack_frames: int = 1


Content = (
    values.TextPart | Picture | Sound | Pcm | Clip | values.ToolCallPart | values.ToolResultPart
)


@dataclass(frozen=True, slots=True)
class ChatRequested:
    """A whole request.

    Args:
        voice: reference audio that the client sent; takes precedence over `voice_name`.
        voice_name: a registered voice.
        numbers_images: number the pictures in the prompt; None: the model decides.
        wants_recording: False if the client declined recording.
        seed: None: drawn by the server.
        tools: functions that the model may call.
        drops_oldest: leave out the oldest turns if not all fit into the context.
    """

    messages: tuple[Message[Content], ...]
    is_streaming: bool = True
    wants_speech: bool = False
    voice: Sound | None = None
    voice_name: str | None = None
    tts_mode: values.TtsMode = "default"
    language: str | None = None
    generation: values.Generation = field(default_factory=values.Generation)
    max_slices: int | None = None
    numbers_images: bool | None = None
    is_omni: bool = False
    wants_recording: bool = True
    seed: int | None = None
    tools: tuple[values.Tool, ...] = ()
    drops_oldest: bool = False


@dataclass(frozen=True, slots=True)
class ChatOpened:
    """Set up a connection for several requests, one after the other."""


@dataclass(frozen=True, slots=True)
class HalfDuplexSetup:
    """Set up a half-duplex conversation: prompt, voice, when a turn ends, how it is answered.

    Args:
        transcribes: True if turns are only transcribed, not answered.
    """

    system: tuple[values.TextPart | Sound, ...] = ()
    voice: Sound | None = None
    voice_name: str | None = None
    wants_speech: bool = True
    vad: values.VadOptions = field(default_factory=values.VadOptions)
    generation: values.Generation = field(default_factory=values.Generation)
    idle_s: float = 180.0
    interruption: values.InterruptionOptions = field(default_factory=values.InterruptionOptions)
    wants_recording: bool = True
    tools: tuple[values.Tool, ...] = ()
    transcribes: bool = False


@dataclass(frozen=True, slots=True)
class DuplexSetup:
    """Set up a duplex conversation: prompt, the voice in the prompt, the voice to imitate.

    Args:
        voice: part of the prompt.
        tts_voice: the voice that the vocoder imitates; None: `voice`.
        settles_late: True to send a unit's result before its bookkeeping.
        cuts_by_time: True if audio in chunks of any length is split into units by media time; else
            every message of a quarter of a unit or more becomes a unit of its own, as published.
        slides: set by the server: above the first number of tokens, the context drops its oldest
            units until the second number remains; None: never.
    """

    prompt: str
    voice: Sound | None = None
    tts_voice: Sound | None = None
    voice_name: str | None = None
    max_slices: int = 1
    options: values.DuplexConfig = field(default_factory=values.DuplexConfig)
    settles_late: bool = True
    cuts_by_time: bool = False
    interruption: values.InterruptionOptions = field(default_factory=values.InterruptionOptions)
    wants_recording: bool = True
    slides: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AudioInput:
    """Audio from the microphone, with pictures from the camera.

    Args:
        pcm: mono, 16 kHz.
        frames: picture files, oldest first.
        max_slices: for these frames; None: as set for the session.
        text: written text that was added to the unit (for observers).
        playback: the client's playback report; None: there is none.
    """

    pcm: Pcm
    frames: tuple[bytes, ...] = ()
    force_listen: bool = False
    max_slices: int | None = None
    text: str = ""
    playback: values.PlaybackReport | None = None


@dataclass(frozen=True, slots=True)
class VideoInput:
    """Frames that arrived before their audio."""

    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TextInput:
    """Written text for a running conversation, which is answered, and pictures with it.

    Args:
        text: empty if there are only pictures, which then belong to the next speech or text.
        pictures: picture files, oldest first.
    """

    text: str
    pictures: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """The client pauses, for at most `seconds`; None: for as long as the server allows."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """The client continues."""


@dataclass(frozen=True, slots=True)
class InterruptRequested:
    """The client wants the assistant to stop speaking now."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The client ends the session."""


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """The voice detector determines the end of the user's turns.

    Args:
        answers: True if the end of an utterance requests a response.
        interruption: policy for interrupting the current response.
    """

    vad: values.VadOptions = field(default_factory=values.VadOptions)
    answers: bool = True
    interruption: values.InterruptionOptions = values.BARGE_IN


@dataclass(frozen=True, slots=True)
class SetupChanged:
    """Change the setup of a running conversation of items; takes effect with the next response."""

    setup: HalfDuplexSetup


@dataclass(frozen=True, slots=True)
class DetectionChanged:
    """Change how turns are found; None: the client determines when one is complete."""

    detection: TurnDetection | None


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """Commit the audio since the last turn as a turn. Its item gets this id or, if the voice
    detector finds turns, the id of the speech in it.

    Args:
        event_id: of the client's event, for errors.
    """

    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AudioCleared:
    """Discard the audio since the last turn."""


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """Add a message to the conversation.

    Args:
        after_id: the item that it follows; None: the last; "": it becomes the first.
    """

    item_id: str
    message: Message[Content]
    after_id: str | None = None


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """Remove a message from the conversation."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    """The client heard only the first `heard_ms` of a spoken answer: truncate it."""

    item_id: str
    heard_ms: int


@dataclass(frozen=True, slots=True)
class ResponseRequested:
    """The client requests an answer. Fields that are None: as set for the session.

    Args:
        reference: of the client; returned in `TurnStarted`.
        items: answer these instead of the conversation.
        is_apart: True if the answer is not added to the conversation.
        voice_name: a registered voice; "": the server's own.
        transcribes: True to transcribe this turn instead of answering it.
    """

    reference: int = 0
    instructions: str | None = None
    wants_speech: bool | None = None
    limit_tokens: int | None = None
    items: tuple[Message[Content], ...] | None = None
    is_apart: bool = False
    tools: tuple[values.Tool, ...] | None = None
    voice_name: str | None = None
    transcribes: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseCancelled:
    """Cancel a response; None: the one in progress."""

    response_id: str | None = None


ClientEvent = (
    ChatRequested
    | ChatOpened
    | SetupChanged
    | DetectionChanged
    | AudioCommitted
    | AudioCleared
    | ItemCreated
    | ItemDeleted
    | ItemTruncated
    | ResponseRequested
    | ResponseCancelled
    | HalfDuplexSetup
    | DuplexSetup
    | AudioInput
    | VideoInput
    | TextInput
    | PauseRequested
    | ResumeRequested
    | InterruptRequested
    | StopRequested
)
