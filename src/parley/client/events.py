"""Events of a conversation, which are the same in all dialects.

Audio is `Pcm` at 24 kHz; names of times end with their unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.errors import ParleyError
from parley.media.pcm import Pcm
from parley.protocol import values
from parley.protocol.legacy import CloseReason
from parley.protocol.resume import AwayReason


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
    """The connection broke without loss, and attempt `attempt` to reconnect starts. During a
    conversation, `Reconnected` follows, and all messages from the time in between."""

    attempt: int
    why: ParleyError


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The conversation continues where it was. `away_s`: time without a connection."""

    away_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The session is ready: speak. `recording_id` None: the session is not recorded."""

    session_id: str
    recording_id: str | None = None
    timeout_s: float | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Understood:
    """Chat: the request is in the context; the answer starts."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class Voice:
    """Half-duplex: the user started or stopped speaking."""

    is_speaking: bool


@dataclass(frozen=True, slots=True)
class Thinking:
    """Half-duplex: an utterance of `speech_ms` is complete and will be answered."""

    speech_ms: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of an answer; text or audio may be missing."""

    text: str
    sound: Pcm | None


@dataclass(frozen=True, slots=True)
class Calling:
    """Chat with functions: a function call; first its name, then its arguments in pieces.
    `Answer.calls` has the complete calls: an incomplete one becomes text.
    """

    index: int
    call_id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """Half-duplex: the answer is complete.

    `first_sound_ms`: time from `Thinking` to the first audio, measured here. The silence that ends
    a turn comes before it, and often a part of the answer is ready by then.
    """

    turn: int
    text: str
    was_interrupted: bool
    has_failed: bool
    sound_ms: int
    first_sound_ms: float | None


@dataclass(frozen=True, slots=True)
class Listening:
    """Duplex: the model listened. `latency_ms`: time from the receipt of the whole unit at the
    server to this result; None: unknown."""

    context_tokens: int
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class Speaking(Piece):
    """Duplex: the model speaks. Text precedes its audio; either may be empty."""

    end_of_turn: bool
    context_tokens: int
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class Paused:
    """Duplex: paused; the session ends after `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """Duplex: the conversation continues."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """If `interruption` was requested: the user may be interrupting (lower the volume), is not
    (restore it), or has interrupted (`stopped`: discard what was not played).

    `heard_ms`, `text`: the part of the answer that the server assumes was heard.
    """

    state: values.InterruptionState
    heard_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """If `transcribe` was requested: the user's words, before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class RecordingIncomplete:
    """The server could not write `entries` entries of the session's recording so far, because its
    disk is full or failing; the session continues."""

    entries: int


@dataclass(frozen=True, slots=True)
class EndsSoon:
    """The session will end in `time_left_s`, because it reaches its maximum length (`time`), its
    context is nearly full (`context`) or the server shuts down (`shutdown`). Sent once for each
    reason."""

    time_left_s: float
    reason: AwayReason


@dataclass(frozen=True, slots=True)
class Problem:
    """A request was refused or failed; the session continues."""

    error: ParleyError


@dataclass(frozen=True, slots=True)
class Answer:
    """Chat: the whole answer. `sound` has all audio, streamed or not. `first_piece_ms` is measured
    from the question, or from the end of the wait. `calls`: function calls, whose results it waits
    for; see `followed_by`."""

    text: str
    sound: Pcm | None
    input_tokens: int
    generated_tokens: int
    was_stopped: bool
    recording_id: str | None
    first_piece_ms: float | None
    calls: tuple[values.ToolCallPart, ...] = ()

    def followed_by(self, *results: str) -> tuple[values.Message, ...]:
        """The answer as messages of a history, with the results of its calls, one per call, in
        order.

        Raises:
            ValueError: the number of results differs from the number of calls.
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
    """One complete answer of a live conversation, as yielded by `turns()`. `first_sound_ms`: as in
    `TurnDone` (half-duplex only). `problems`: errors since the previous turn that did not end the
    session.
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
    | EndsSoon
    | Problem
    | Answer
    | Ended
)
