"""Entries of a session's log: the events from which everything else is derived.

The session log stores them for another worker (`logged`), a recording is a fold of them and of
events that are of interest later (`recorded`), and `session/replay.py` repeats them. Some entries
are also events that the client receives; those in this module are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from parley.dialects.events import (
    AnswerDone,
    AudioInput,
    ChatRequested,
    Clip,
    DuplexSetup,
    Event,
    Failed,
    HalfDuplexSetup,
    InputCommitted,
    InterruptionChanged,
    ItemCreated,
    OutputDelta,
    Picture,
    ResponseRequested,
    SessionEnded,
    SessionInterrupted,
    SessionPaused,
    SessionReady,
    SessionResumed,
    SetupChanged,
    Sound,
    TokenCounts,
    TurnCompleted,
    TurnStarted,
    TurnTranscribed,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.protocol.content import Message
from parley.protocol.kinds import Ending
from parley.protocol.values import (
    AnswerFormat,
    DuplexConfig,
    Generation,
    InterruptionOptions,
    PlaybackReport,
    TextPart,
    Tool,
    ToolCallPart,
    ToolFunction,
    ToolResultPart,
    VadOptions,
    WordTime,
)
from parley.results import Checkpoint, PrefillResult, Stage, UnitChoices, UnitResult
from parley.session_log.items import ConversationItem

SessionRequest = ChatRequested | HalfDuplexSetup | DuplexSetup


@dataclass(frozen=True, slots=True)
class WentBack:
    """The user interrupted in duplex; see `DuplexView.cut_answer`. `decided`: number of units that
    were decided again before the model failed; None: it did not."""

    unheard_chars: int
    unsent_units: int
    decided: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ItemsSoFar:
    """The conversation at the time when the client requested resuming. If it has items, a replay
    fills the context from them instead of repeating its history.

    Args:
        entries_before: number of entries until then, without the setup.
    """

    items: tuple[ConversationItem, ...]
    setup: HalfDuplexSetup
    entries_before: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The context was opened with the setup so far, and only grows from then on (half-duplex)."""


@dataclass(frozen=True, slots=True)
class Removed:
    """An item was removed."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """Only a part of an answer was heard. `heard`: the words of that part."""

    item_id: str
    heard_ms: float
    heard: str


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An unfinished answer was removed from the context."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The content of the context became unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """The context was filled with what the next answer answers. `chosen`: see
    `ItemContext.fill`."""

    chosen: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnswerMade:
    """The model has finished an answer.

    Args:
        said: the part of it that is in the context.
        is_whole: True if that is the complete answer.
        chosen: the model's choices, if it reports them; None: a replay decides again from the same
            seed, and must get the same result.
    """

    said: str
    is_whole: bool
    chosen: object


@dataclass(frozen=True, slots=True)
class TokensGenerated:
    """An answer has ended, heard or not. Counted only: it is neither logged nor recorded. `tokens`:
    text and speech."""

    tokens: int


UnitEntry = DuplexSetup | UnitDone | WentBack
ItemEntry = (
    HalfDuplexSetup
    | SetupChanged
    | Opened
    | ItemsSoFar
    | InputCommitted
    | ItemCreated
    | Removed
    | Truncated
    | TakenBack
    | Unknown
    | TurnStarted
    | Filled
    | AnswerMade
    | TurnCompleted
)
Entry = ChatRequested | UnitEntry | ItemEntry
Observed = Event | Entry | TokensGenerated
"""Everything that happens in a session, as its observers receive it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`Failed` in a recording. `code`: of the error."""

    code: str


@dataclass(frozen=True, slots=True)
class EntriesLost:
    """Entries before this one are missing in a recording."""

    count: int
    why: str


Recorded = (
    Entry
    | AnswerDone
    | EntriesLost
    | Failure
    | OutputDelta
    | SessionEnded
    | SessionInterrupted
    | SessionPaused
    | SessionReady
    | SessionResumed
    | TurnTranscribed
)
"""Parts of a recording."""


TAGS: Final[Mapping[str, type]] = {
    "answer_done": AnswerDone,
    "answer_format": AnswerFormat,
    "answer_made": AnswerMade,
    "audio_input": AudioInput,
    "chat_requested": ChatRequested,
    "checkpoint": Checkpoint,
    "clip": Clip,
    "duplex_config": DuplexConfig,
    "duplex_setup": DuplexSetup,
    "ending": Ending,
    "entries_lost": EntriesLost,
    "failure": Failure,
    "filled": Filled,
    "generation": Generation,
    "half_duplex_setup": HalfDuplexSetup,
    "input_committed": InputCommitted,
    "interruption_options": InterruptionOptions,
    "item": ConversationItem,
    "item_created": ItemCreated,
    "items_so_far": ItemsSoFar,
    "message": Message,
    "opened": Opened,
    "output_delta": OutputDelta,
    "pcm": Pcm,
    "picture": Picture,
    "playback_report": PlaybackReport,
    "prefill_result": PrefillResult,
    "removed": Removed,
    "response_requested": ResponseRequested,
    "session_ended": SessionEnded,
    "session_interrupted": SessionInterrupted,
    "session_paused": SessionPaused,
    "session_ready": SessionReady,
    "session_resumed": SessionResumed,
    "setup_changed": SetupChanged,
    "sound": Sound,
    "stage": Stage,
    "taken_back": TakenBack,
    "text_part": TextPart,
    "token_counts": TokenCounts,
    "tool": Tool,
    "tool_call_part": ToolCallPart,
    "tool_function": ToolFunction,
    "tool_result_part": ToolResultPart,
    "truncated": Truncated,
    "turn_completed": TurnCompleted,
    "turn_started": TurnStarted,
    "turn_transcribed": TurnTranscribed,
    "unit_choices": UnitChoices,
    "unit_done": UnitDone,
    "unit_result": UnitResult,
    "unknown": Unknown,
    "vad_options": VadOptions,
    "went_back": WentBack,
    "word_time": WordTime,
}
"""Names of entries and of the values in them, in logs and recordings. A class may be renamed or
moved; its tag stays."""


def logged(event: Observed) -> Entry | None:
    """The entry that the log stores for an event; None for no entry. It omits what a replay
    computes again: the audio of a unit, and its costs."""
    match event:
        case UnitDone():
            decided = replace(
                event.unsaid or event.result,
                pcm=None,
                timings={},
                prefilled=PrefillResult(0, 0),
                cost_encode_ms=0.0,
                cost_llm_ms=0.0,
                cost_tts_ms=0.0,
                cost_token2wav_ms=0.0,
                cost_all_ms=0.0,
            )
            return replace(event, result=decided, unsaid=None)
        case TurnCompleted():
            return replace(event, error=None)
        case _:
            return event if isinstance(event, Entry) else None


def recorded(event: Observed) -> Recorded | None:
    """The entry that a recording stores for an event; None for no entry. It contains the audio of
    answers, but not the model's choices."""
    match event:
        case UnitDone(unsaid=unsaid):
            return replace(
                event,
                result=_without_chosen(event.result),
                unsaid=None if unsaid is None else replace(_without_chosen(unsaid), pcm=None),
            )
        case AnswerMade():
            return replace(event, chosen=None)
        case Filled():
            return Filled(())
        case ItemsSoFar():
            # They are in the recording.
            return None
        case InterruptionChanged(state="stopped"):
            return SessionInterrupted()
        case Failed(error=error):
            return Failure(error.code)
        case SessionReady():
            return replace(event, recording_id=None)
        case OutputDelta():
            return replace(event, logprobs=()) if event.text or event.pcm is not None else None
        case AnswerDone():
            return replace(event, recording_id=None, calls=())
        case TurnCompleted() | SessionEnded():
            return replace(event, error=None)
        case TurnTranscribed():
            return event if event.text is not None and event.is_final else None
        case _:
            return event if isinstance(event, Recorded) else None


def _without_chosen(result: UnitResult) -> UnitResult:
    seen = result.prefilled
    slices, tokens = seen.vision_slices, seen.vision_tokens
    prefilled = PrefillResult(0, 0, vision_slices=slices, vision_tokens=tokens)
    return replace(result, chosen=None, timings={}, prefilled=prefilled)
