"""What a client does in a conversation; created by dialects, consumed by runners."""

from __future__ import annotations

from dataclasses import dataclass, field

from parley.dialects.events.content import Content, Sound
from parley.media.pcm import Pcm
from parley.protocol import values
from parley.protocol.content import Message


@dataclass(frozen=True, slots=True)
class ChatRequested:
    """A whole request.

    Args:
        voice: reference sound the client brought; wins over `voice_name`.
        voice_name: a registered voice.
        numbers_images: give pictures numbers in the prompt; None leaves it to the model.
        wants_recording: False when the client asked not to be recorded.
        seed: None: drawn here.
        tools: functions that the model may call.
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


@dataclass(frozen=True, slots=True)
class ChatOpened:
    """A connection for several requests, one after the other, is set up."""


@dataclass(frozen=True, slots=True)
class HalfDuplexSetup:
    """A half-duplex conversation is set up: prompt, voice, when a turn ends, how it is answered.

    Args:
        transcribes: turns are written down and never answered.
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
    """A duplex conversation is set up: prompt, what the model hears as its voice, what it imitates.

    Args:
        voice: part of the prompt.
        tts_voice: what the vocoder imitates; None falls back to `voice`.
        settles_late: send a unit's result before its bookkeeping.
        cuts_by_time: sound of any chunk length is cut into units by media time; else every message
            of a quarter of a unit or more is a unit of its own, as published.
        slides: set by the server: above so many tokens the context drops its oldest units, down to
            the second number; None: never.
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
    """Sound from the microphone, with what the camera saw.

    Args:
        pcm: mono, 16 kHz.
        frames: picture files, oldest first.
        max_slices: for these frames; None leaves it to the session.
        text: written words that joined the unit (for observers).
        playback: how far the client has played what it was sent; None: it does not say.
    """

    pcm: Pcm
    frames: tuple[bytes, ...] = ()
    force_listen: bool = False
    max_slices: int | None = None
    text: str = ""
    playback: values.PlaybackReport | None = None


@dataclass(frozen=True, slots=True)
class VideoInput:
    """Frames that came ahead of their sound."""

    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TextInput:
    """Written words for a running conversation, to be answered, and pictures with them.

    Args:
        text: empty where only pictures came; these go with what is said or written next.
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
    """The client requests silence now."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The client ends the session."""


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """The voice detector ends the user's turns.

    Args:
        answers: the end of an utterance asks for a response.
        interruption: who silences the response that is being made or heard.
    """

    vad: values.VadOptions = field(default_factory=values.VadOptions)
    answers: bool = True
    interruption: values.InterruptionOptions = values.BARGE_IN


@dataclass(frozen=True, slots=True)
class SetupChanged:
    """A conversation of items is set up again while it runs; counts from the next response."""

    setup: HalfDuplexSetup


@dataclass(frozen=True, slots=True)
class DetectionChanged:
    """Another way to find turns; None: the client says when one is complete."""

    detection: TurnDetection | None


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """The sound since the last turn is one, as an item with this id, or where the voice detector
    finds turns with the id of the speech in it.

    Args:
        event_id: the client's, which an error names.
    """

    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AudioCleared:
    """The sound since the last turn is forgotten."""


@dataclass(frozen=True, slots=True)
class ItemCreated:
    """A message joins the conversation.

    Args:
        after_id: the item it follows; None: the last; "": it is the first.
    """

    item_id: str
    message: Message[Content]
    after_id: str | None = None


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """A message leaves the conversation."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    """The client heard only the first `heard_ms` of a spoken answer; the rest is forgotten."""

    item_id: str
    heard_ms: int


@dataclass(frozen=True, slots=True)
class ResponseRequested:
    """The client wants an answer now; None everywhere: as the session is set up.

    Args:
        reference: of the client's, comes back in `TurnStarted`.
        items: answer these instead of the conversation.
        is_apart: the answer does not join the conversation.
        voice_name: a registered voice; "": the server's own.
        transcribes: write this turn down instead of answering it.
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
    """The client wants no more of a response; None: of the one in progress."""

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
