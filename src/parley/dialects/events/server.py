"""Events of the server in a conversation; emitted by runners, encoded by dialects."""

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
    """The session is set up. `idle_s` is 0 if silence does not end it. `reads`: True if written
    text may be added to it."""

    prompt_tokens: int = 0
    idle_s: float = 0.0
    recording_id: str | None = None
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The request is in the context (chat). `audio_tokens` and `image_tokens` of its tokens
    represent audio and pictures, if the model counts them."""

    input_tokens: int
    audio_tokens: int = 0
    image_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user has started to speak. `item_id`: of the utterance, if there are items; `at_ms`:
    position in all received audio."""

    item_id: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user has stopped speaking; fields as in `SpeechStarted`."""

    item_id: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TurnStarted:
    """A user's turn is complete and is being answered.

    Args:
        item_id: of the answer; `previous_id` of the item before it, None if it is the first.
        speech_ms: length of the user's speech; 0 if that item is not a user's turn.
    """

    response_id: str
    item_id: str
    previous_id: str | None
    is_spoken: bool
    request: ResponseRequested
    speech_ms: int = 0


@dataclass(frozen=True, slots=True)
class TurnTranscribed:
    """The user's words, as the model heard them.

    Args:
        index: of the turn, or of the unit with which the answer starts.
        text: None: the model does not transcribe (only if there are items).
        item_id: of the user's audio, if there are items; `audio_ms` is its length.
        is_final: False: further words of the turn; the complete text follows.
        error: the reason why there is no text.
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
        input: tokens of the context that was answered; `cached` of these were in the context
            before, `audio` and `image` represent audio and pictures, if the model counts them.
        output: text tokens; `speech`: audio tokens.
    """

    input: int = 0
    cached: int = 0
    audio: int = 0
    image: int = 0
    output: int = 0
    speech: int = 0


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """An answer is complete or has failed.

    Args:
        item_id: of the answer.
        spoken: its words piece by piece, with the start of the audio of each in ms.
        calls: function calls, each with the id of its item.
        is_apart: True if it is not an item of the conversation.
        ending: reason for its end, unless it failed with `error`.
        is_turn: True if it was cancelled because the user spoke, not by the client.
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
        pcm: the whole audio, unless it was sent in pieces.
        heard: the words in the request's audio, if the model transcribes.
        words: the same with times, if the model knows them.
        speech_tokens: number of audio tokens.
        calls: function calls, which are not in `text`.
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
        item_id: id of its item.
    """

    index: int
    call_id: str
    name: str
    item_id: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDone:
    """A call is over. `is_complete`: True if its arguments are a JSON object; otherwise it is not a
    call after all, and its text is sent as text."""

    index: int
    call: values.ToolCallPart
    is_complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class InputCommitted:
    """A turn of the user became an item of the conversation.

    Args:
        speech_ms: length of their speech.
        spoken_ago_ms: time since the end of `pcm` was spoken.
        text: their written text, with `pictures`.
        previous_id: of the item before it; None if it is the first.
    """

    item_id: str
    pcm: Pcm
    speech_ms: int = 0
    text: str = ""
    pictures: tuple[bytes, ...] = ()
    previous_id: str | None = None
    spoken_ago_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class InputCleared:
    """Audio that was not part of a turn yet was discarded."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitDone:
    """One duplex unit, which listened or spoke.

    Args:
        index: of the processed unit, from 0.
        result: of the engine; without output if none of it may be heard.
        time_ms: session time at which the unit was complete.
        wall_ms: time from receipt of the audio to the result.
        unit: its input (for observers).
        unsaid: the engine's original result, if `result` has no output.
    """

    index: int
    result: UnitResult
    time_ms: int = 0
    wall_ms: float = 0.0
    unit: AudioInput | None = None
    unsaid: UnitResult | None = None

    @property
    def decided(self) -> UnitResult:
        """The result that is in the context."""
        return self.unsaid or self.result


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """The session pauses for at most `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The session continues."""


@dataclass(frozen=True, slots=True)
class SessionInterrupted:
    """The next unit will listen."""


@dataclass(frozen=True, slots=True)
class InterruptionChanged:
    """The user may be interrupting, is not interrupting, or has interrupted the answer.

    Args:
        state: after `stopped` nothing more of the answer is sent; the client should discard
            buffered audio.
        index: of the turn, or of the unit, that is heard.
        heard_ms: how much of the answer was heard, as far as the server knows.
        text: the part of its text that was heard.
    """

    state: values.InterruptionState
    index: int
    heard_ms: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error; the dialect decides if it ends the session.

    Args:
        event: the client's action that failed, if any.
    """

    error: ParleyError
    event: ClientEvent | None = None


EndReason = CloseReason | Literal["done", "disconnected"]


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The conversation is over; always the last event.

    Args:
        error: the error that ended it, if any.
        elapsed_s: the time limit that was reached, for `timeout`; for `disconnected`, the time
            since then.
    """

    reason: EndReason
    error: ParleyError | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SilenceExplained:
    """The reason why no answer, or no audio, arrives. `elapsed_ms`: for how long already; for
    `unit_late`: how late."""

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
