"""What happens in a conversation; emitted by runners, encoded by dialects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.dialects.events.client import AudioInput, ClientEvent, ResponseRequested
from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.protocol import values
from parley.protocol.kinds import Ending
from parley.protocol.legacy import CloseReason
from parley.results import UnitResult


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
    """The request is in the context (chat). Of its tokens `audio_tokens` and `image_tokens` stand
    for sound and pictures, as far as the model counts them."""

    input_tokens: int
    audio_tokens: int = 0
    image_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user speaks. `item_id`: of the utterance, where there are items; `at_ms`: of all sound
    that was received."""

    item_id: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user is silent again; as `SpeechStarted`."""

    item_id: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TurnStarted:
    """A user's turn is complete and is being answered.

    Args:
        item_id: of the answer; `previous_id` of the item in front of it, None if it is the first.
        speech_ms: how long the user spoke; 0 if that item is not a user's turn.
    """

    response_id: str
    item_id: str
    previous_id: str | None
    is_spoken: bool
    request: ResponseRequested
    speech_ms: int = 0


@dataclass(frozen=True, slots=True)
class TurnTranscribed:
    """The words of the user, as the model heard them.

    Args:
        index: of the turn, or of the unit that begins the answer.
        text: None: the model writes nothing down (only where there are items).
        item_id: of the user's sound, where there are items; `audio_ms` is its length.
        is_final: False: more words of the turn; all of them follow.
        error: why there is no text.
    """

    index: int
    text: str | None
    item_id: str = ""
    audio_ms: int = 0
    is_final: bool = True
    error: ParleyError | None = None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Usage of a response.

    Args:
        input: tokens of the context it answered; of these `cached` were there before, `audio` and
            `image` stand for sound and pictures, as far as the model counts them.
        output: tokens of text; `speech`: of sound.
    """

    input: int = 0
    cached: int = 0
    audio: int = 0
    image: int = 0
    output: int = 0
    speech: int = 0


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """An answer is complete, or will not be.

    Args:
        item_id: of the answer.
        spoken: its words piece by piece, and where the sound of each begins, in ms.
        calls: of functions, each with the id of its item.
        is_apart: it is not an item of the conversation.
        ending: why it ended, unless it failed with `error`.
        is_turn: cancelled because the user spoke, not because the client asked.
    """

    index: int
    text: str
    item_id: str = ""
    spoken: tuple[tuple[str, float], ...] = ()
    calls: tuple[tuple[str, values.ToolCallPart], ...] = ()
    is_apart: bool = False
    audio_ms: int = 0
    is_interrupted: bool = False
    has_failed: bool = False
    ending: Ending = Ending.DONE
    tokens: TokenCounts = TokenCounts()
    is_turn: bool = False
    error: ParleyError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OutputDelta:
    """The next piece of an answer (chat, half-duplex)."""

    index: int
    text: str = ""
    pcm: Pcm | None = None
    is_final: bool = False
    duration_ms: float = 0.0
    logprobs: tuple[values.TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class AnswerDone:
    """A chat answer is complete.

    Args:
        pcm: the whole sound unless it went out in pieces.
        heard: the words of the request's sound, where the model makes any.
        words: the same with their times, where the model knows them.
        speech_tokens: of sound.
        calls: of functions, which `text` does not hold.
    """

    text: str
    generated_tokens: int
    input_tokens: int
    pcm: Pcm | None = None
    is_stopped: bool = False
    recording_id: str | None = None
    ending: Ending = Ending.DONE
    heard: str = ""
    words: tuple[values.WordTime, ...] = ()
    speech_tokens: int = 0
    calls: tuple[values.ToolCallPart, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The answer calls a function (chat, conversations of items); its arguments follow.

    Args:
        index: of the call in its answer.
        item_id: of the item that it is; `previous_id` of the previous one.
    """

    index: int
    call_id: str
    name: str
    item_id: str
    previous_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDone:
    """A call is over. `is_complete`: its arguments are a JSON object; otherwise it is none, and all
    that was written of it comes as text."""

    index: int
    call: values.ToolCallPart
    is_complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class InputCommitted:
    """A turn of the user became an item of the conversation.

    Args:
        speech_ms: how long they spoke.
        text: what they wrote, and `pictures` what they showed with it.
        previous_id: of the item in front of it; None if it is the first.
    """

    item_id: str
    pcm: Pcm
    speech_ms: int = 0
    text: str = ""
    pictures: tuple[bytes, ...] = ()
    previous_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputCleared:
    """Sound that was not a turn yet was forgotten."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitDone:
    """One unit of duplex: listened or spoke.

    Args:
        index: counts processed units from 0.
        result: as the engine made it; silenced where nothing of it may be heard.
        time_ms: session time when the unit was complete.
        wall_ms: from receipt of the sound to the result.
        unit: what it was an answer to (for observers).
        unsaid: as the engine made it, where `result` was silenced.
    """

    index: int
    result: UnitResult
    time_ms: int = 0
    wall_ms: float = 0.0
    unit: AudioInput | None = None
    unsaid: UnitResult | None = None

    @property
    def decided(self) -> UnitResult:
        """What the context contains of the unit."""
        return self.unsaid or self.result


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """Resting for at most `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The session continues."""


@dataclass(frozen=True, slots=True)
class SessionInterrupted:
    """The next unit will listen."""


@dataclass(frozen=True, slots=True)
class InterruptionChanged:
    """The user may be interrupting, does not, or has interrupted the answer.

    Args:
        state: after `stopped` nothing of the answer is sent; what waits is to be thrown away.
        index: of the turn, or of the unit, that is heard.
        heard_ms: of the answer, as far as the server knows.
        text: what has been heard of its text.
    """

    state: values.InterruptionState
    index: int
    heard_ms: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something failed; the dialect decides if that ends the session.

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
class SilenceExplained:
    """Why no answer, or no sound, arrives. `elapsed_ms`: for how long already; of `unit_late`: how
    late."""

    reason: values.SilenceReason
    elapsed_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecordingLost:
    """The recording is incomplete: number of entries of the session that could not be written."""

    entries: int


ServerEvent = (
    SessionReady
    | RecordingLost
    | SilenceExplained
    | Prefilled
    | TurnStarted
    | TurnTranscribed
    | OutputDelta
    | AnswerDone
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallDone
    | TurnCompleted
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | UnitDone
    | SessionPaused
    | SessionResumed
    | SessionInterrupted
    | InterruptionChanged
    | Failed
    | SessionEnded
)
