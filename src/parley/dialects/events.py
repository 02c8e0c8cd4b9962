"""What can happen in any conversation, with no dialect attached.

A dialect makes the first kind of a client's messages; a runner emits the second kind, and the
dialect makes messages of those. Observers (a recorder, the worker's meter) see both kinds.
Pictures and clips stay files here: whoever needs their content decodes them, away from the event
loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.protocol.content import Message
from parley.protocol.kinds import Ending
from parley.protocol.legacy import CloseReason
from parley.protocol.values import (
    DuplexConfig,
    Generation,
    InterruptionOptions,
    InterruptionState,
    TextPart,
    TtsMode,
    VadOptions,
)

# ---- content -------------------------------------------------------------------------------


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


Content = TextPart | Picture | Sound | Clip


# ---- what a client does --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRequested:
    """A whole request.

    Args:
        voice: reference sound the client brought; wins over `voice_name`.
        voice_name: a registered voice.
        numbers_images: give pictures numbers in the prompt; None leaves it to the model.
        wants_recording: False when the client asked not to be recorded.
        seed: None: drawn here.
    """

    messages: tuple[Message[Content], ...]
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
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class HalfDuplexSetup:
    """A half-duplex conversation is set up: prompt, voice, when a turn ends, how it is answered."""

    system: tuple[TextPart | Sound, ...] = ()
    voice: Sound | None = None
    voice_name: str | None = None
    wants_speech: bool = True
    vad: VadOptions = field(default_factory=VadOptions)
    generation: Generation = field(default_factory=Generation)
    idle_s: float = 180.0
    interruption: InterruptionOptions = field(default_factory=InterruptionOptions)
    wants_recording: bool = True


@dataclass(frozen=True, slots=True)
class DuplexSetup:
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
    options: DuplexConfig = field(default_factory=DuplexConfig)
    settles_late: bool = True
    interruption: InterruptionOptions = field(default_factory=InterruptionOptions)
    wants_recording: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class AudioInput:
    """Sound from the microphone, with what the camera saw.

    Args:
        pcm: mono, 16 kHz.
        frames: picture files, oldest first.
        max_slices: for these frames; None leaves it to the session.
        text: written words that joined the unit (for observers).
    """

    pcm: Pcm
    frames: tuple[bytes, ...] = ()
    force_listen: bool = False
    max_slices: int | None = None
    text: str = ""


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
    """The client wants to rest, for at most so long; None: as long as the server lets it."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """The client goes on."""


@dataclass(frozen=True, slots=True)
class InterruptRequested:
    """The client wants silence now."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The client wants to end."""


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """Who ends a user's turn: the voice detector.

    Args:
        answers: the end of an utterance asks for a response.
        interrupts: whoever speaks silences the response in progress.
    """

    vad: VadOptions = field(default_factory=VadOptions)
    answers: bool = True
    interrupts: bool = True


@dataclass(frozen=True, slots=True)
class SetupChanged:
    """A conversation of items is set up anew while it goes on; counts from the next response."""

    setup: HalfDuplexSetup


@dataclass(frozen=True, slots=True)
class DetectionChanged:
    """Another way to find turns; None: the client says when one is complete."""

    detection: TurnDetection | None


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """The sound since the last turn is one, as an item with this id."""

    item_id: str


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
    """Only so much of a spoken answer was heard: the rest was never said."""

    item_id: str
    heard_ms: int


@dataclass(frozen=True, slots=True)
class ResponseRequested:
    """The client wants an answer now; None everywhere: as the session is set up.

    Args:
        reference: of the client's, comes back in `ResponseStarted`.
        items: answer these instead of the conversation.
        is_apart: the answer does not join the conversation.
    """

    reference: int = 0
    instructions: str | None = None
    wants_speech: bool | None = None
    limit_tokens: int | None = None
    items: tuple[Message[Content], ...] | None = None
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class ResponseCancelled:
    """The client wants no more of a response; None: of the one in progress."""

    response_id: str | None = None


ClientEvent = (
    ChatRequested
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

# ---- what a conversation does --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionReady:
    """The session is set up. `idle_s` is 0 where silence does not end it. `reads`: written words
    may be put into it."""

    prompt_tokens: int = 0
    idle_s: float = 0.0
    recording_id: str | None = None
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The request is in the context (chat)."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class SpeechChanged:
    """Somebody began or ceased to speak (half-duplex)."""

    is_speaking: bool


@dataclass(frozen=True, slots=True, eq=False)
class TurnStarted:
    """A user's turn is complete and is being answered (half-duplex).

    Args:
        speech_ms: 0 where nothing was said.
        utterance: empty where nothing was said.
        text: what was written, and `pictures` what was shown with it.
    """

    speech_ms: int
    utterance: Pcm
    text: str = ""
    pictures: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class UserTranscribed:
    """What the user was heard to say. `index`: of the turn, or of the unit that begins the
    answer."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class OutputDelta:
    """The next piece of an answer (chat, half-duplex)."""

    index: int
    text: str = ""
    pcm: Pcm | None = None
    is_final: bool = False
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class AnswerDone:
    """A chat answer is complete.

    Args:
        pcm: the whole sound unless it went out in pieces.
        heard: the words of the request's sound, where the model makes any.
    """

    text: str
    generated_tokens: int
    input_tokens: int
    pcm: Pcm | None = None
    is_stopped: bool = False
    recording_id: str | None = None
    ending: Ending = Ending.DONE
    heard: str = ""


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """A half-duplex answer is complete."""

    index: int
    text: str
    audio_ms: int = 0
    is_interrupted: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Somebody speaks; the utterance will be the item. `at_ms`: of all sound that came."""

    item_id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Silence again."""

    item_id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class InputCommitted:
    """Sound became an item of the conversation."""

    item_id: str
    previous_id: str | None
    audio_ms: int


@dataclass(frozen=True, slots=True)
class InputTranscribed:
    """The words of an item's sound; None: the model makes none."""

    item_id: str
    text: str | None
    audio_ms: int


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """An answer begins, as an item.

    Args:
        reference: of the request, 0 where none was made.
    """

    response_id: str
    item_id: str
    previous_id: str | None
    is_spoken: bool
    reference: int = 0


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What a response took.

    Args:
        input: tokens of the context it answered; of these `cached` were there before, `audio` and
            `image` stand for sound and pictures, as near as they can be told.
        output: tokens of text; `speech`: of sound.
    """

    input: int = 0
    cached: int = 0
    audio: int = 0
    image: int = 0
    output: int = 0
    speech: int = 0


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """An answer is complete, or will not be.

    Args:
        ending: None: it failed with `error`.
        is_turn: cancelled because somebody spoke, not because the client asked.
    """

    response_id: str
    item_id: str
    text: str
    is_spoken: bool
    ending: Ending | None
    tokens: TokenCounts = TokenCounts()
    is_turn: bool = False
    error: ParleyError | None = None


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
    unit: AudioInput | None = None


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """Resting for at most `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """Going on."""


@dataclass(frozen=True, slots=True)
class SessionInterrupted:
    """The next unit will listen."""


@dataclass(frozen=True, slots=True)
class InterruptionChanged:
    """Somebody may be interrupting, does not, or has interrupted the answer.

    Args:
        state: after `stopped` nothing of the answer is sent; what waits is to be thrown away.
        index: of the turn, or of the unit, that is heard.
        heard_ms: of the answer, as far as the server can tell.
        text: what has been heard of its text.
    """

    state: InterruptionState
    index: int
    heard_ms: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something went wrong; whether that ends the session is for the dialect to say.

    Args:
        event: what the client did that failed, where it did something.
    """

    error: ParleyError
    event: ClientEvent | None = None


EndReason = CloseReason | Literal["done", "disconnected"]


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The conversation is over; always the last event.

    Args:
        error: what ended it, when an error did.
        elapsed_s: what ran out, for `timeout`.
    """

    reason: EndReason
    error: ParleyError | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordingLost:
    """The recording has holes: so many entries could not be written, of the whole session so
    far."""

    entries: int


ServerEvent = (
    SessionReady
    | RecordingLost
    | Prefilled
    | SpeechChanged
    | TurnStarted
    | UserTranscribed
    | OutputDelta
    | AnswerDone
    | TurnCompleted
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputTranscribed
    | ResponseStarted
    | ResponseEnded
    | UnitDone
    | SessionPaused
    | SessionResumed
    | SessionInterrupted
    | InterruptionChanged
    | Failed
    | SessionEnded
)

Event = ClientEvent | ServerEvent
