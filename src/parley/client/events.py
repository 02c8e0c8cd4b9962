"""Events of a conversation, the same in every dialect.

Sound is `Pcm` at 24 kHz; times are in the unit their names say.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.protocol import values
from parley.protocol.legacy import CloseReason


@dataclass(frozen=True, slots=True)
class Waiting:
    """In the queue. `estimated_wait_s` None: unknown."""

    position: int
    estimated_wait_s: float | None
    ticket_id: str
    queue_length: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """The wait is over, or there was none."""


@dataclass(frozen=True, slots=True)
class Reconnecting:
    """The connection broke before anything was lost by it; attempt `attempt` begins. In
    mid-conversation `Reconnected` follows, and everything that was said in between."""

    attempt: int
    why: ParleyError


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The conversation continues where it was. `away_s`: how long there was no connection."""

    away_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The session is prepared: speak. `recording_id` None: nothing is recorded."""

    session_id: str
    recording_id: str | None = None
    timeout_s: float | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Understood:
    """Chat: the request is in the context; the answer begins."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class Voice:
    """Half-duplex: the server hears someone begin or cease to speak."""

    is_speaking: bool


@dataclass(frozen=True, slots=True)
class Thinking:
    """Half-duplex: an utterance of `speech_ms` is complete and being answered."""

    speech_ms: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of an answer; text and sound may each be missing."""

    text: str
    sound: Pcm | None


@dataclass(frozen=True, slots=True)
class Calling:
    """Chat with functions: one is being called; its name first, then its arguments in pieces.

    `Answer.calls` says which calls there were: what was only the beginning of one comes as text.
    """

    index: int
    call_id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """Half-duplex: the answer is complete.

    `first_sound_ms`: from the end of the utterance to the first sound, as seen here.
    """

    turn: int
    text: str
    was_interrupted: bool
    has_failed: bool
    sound_ms: int
    first_sound_ms: float | None


@dataclass(frozen=True, slots=True)
class Listening:
    """Duplex: the model listened. `latency_ms`: the server had the whole unit for so long; None:
    it does not say."""

    context_tokens: int
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class Speaking:
    """Duplex: the model speaks. Text runs ahead of sound; either may be empty."""

    text: str
    sound: Pcm | None
    end_of_turn: bool
    context_tokens: int
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class Paused:
    """Duplex: resting; the session ends after `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """Duplex: the conversation continues."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """Where `interruption` was asked for: the user may be interrupting (play more softly), does not
    (play as before), or has (`stopped`: throw away what has not been played).

    `heard_ms`, `text`: what the server takes to have been heard of the answer.
    """

    state: values.InterruptionState
    heard_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """Where `transcribe` was asked for: what the user was heard to say, before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class RecordingIncomplete:
    """The server could not write `entries` of the session's recording so far, because its disk is
    full or fails; the session continues."""

    entries: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A request was refused or failed; the session continues."""

    error: ParleyError


@dataclass(frozen=True, slots=True)
class Answer:
    """Chat: the whole answer. `sound` holds everything, streamed or not. `first_piece_ms` runs from
    the question, or from the end of the wait. `calls`: the functions that it calls, whose results
    it waits for; see `followed_by`."""

    text: str
    sound: Pcm | None
    input_tokens: int
    generated_tokens: int
    was_stopped: bool
    recording_id: str | None
    first_piece_ms: float | None
    calls: tuple[values.ToolCallPart, ...] = ()

    def followed_by(self, *results: str) -> tuple[values.Message, ...]:
        """The answer as messages of a history, and the results of its calls, one for each in their
        order.

        Raises:
            ValueError: there are more or fewer results than calls.
        """
        words = (values.TextPart(text=self.text),) if self.text else ()
        said = values.Message(
            role="assistant", content=(*words, *self.calls) if self.calls else self.text
        )
        if not self.calls and not results:
            return (said,)
        parts = tuple(
            values.ToolResultPart(content=result, id=call.id)
            for call, result in zip(self.calls, results, strict=True)
        )
        return said, values.Message(role="user", content=parts)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a live conversation, from its first word to its end, as `turns()` yields them.

    `first_sound_ms` as in `TurnDone` (half-duplex only). `problems`: what failed since the turn
    before, without ending the session.
    """

    number: int
    text: str
    sound: Pcm | None
    was_interrupted: bool = False
    has_failed: bool = False
    first_sound_ms: float | None = None
    problems: tuple[ParleyError, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a session."""

    reason: CloseReason
    elapsed_s: float | None = None


Event = (
    Waiting
    | Assigned
    | Reconnecting
    | Reconnected
    | Ready
    | Understood
    | Voice
    | Thinking
    | Piece
    | Calling
    | TurnDone
    | Listening
    | Speaking
    | Paused
    | Resumed
    | Interruption
    | Transcript
    | RecordingIncomplete
    | Problem
    | Answer
    | Ended
)
