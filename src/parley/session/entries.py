"""What is done in a session: the entries of its log, of which everything else is made.

The session log keeps them for another worker, a recording is a fold of them, and `replay` does them
again. Some are also events, which the client receives; those of this module are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from parley.dialects.events import (
    AudioInput,
    ChatRequested,
    Clip,
    DuplexSetup,
    Event,
    HalfDuplexSetup,
    ItemCreated,
    Picture,
    ResponseRequested,
    SetupChanged,
    Sound,
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
)
from parley.results import Checkpoint, PrefillResult, Stage, UnitChoices, UnitResult
from parley.session.items import ConversationItem

SessionRequest = ChatRequested | HalfDuplexSetup | DuplexSetup


@dataclass(frozen=True, slots=True)
class WentBack:
    """The user interrupted in duplex; see `DuplexView.cut_answer`."""

    unheard_chars: int
    unsent_units: int


@dataclass(frozen=True, slots=True, eq=False)
class ItemsSoFar:
    """The conversation at the time when the client asked to be able to resume it. If it has items,
    the earlier context is not made again as it was, but filled from them.

    Args:
        entries_before: number of entries until then, without the setup.
    """

    items: tuple[ConversationItem, ...]
    setup: HalfDuplexSetup
    entries_before: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The context was opened with the setup so far, and only grows from then on (half-duplex)."""


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """A turn of the user, as an item; arguments as in `ConversationItem.of_user`."""

    item_id: str
    pcm: Pcm
    speech_ms: int = 0
    text: str = ""
    pictures: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """An item that is gone."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """An answer of which only a part was heard. `heard`: its words; None: those whose sound had
    started, as recordings of earlier versions have it."""

    item_id: str
    heard_ms: float
    heard: str | None = None


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The context holds nothing of an answer that was being made."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is not known what the context holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """An answer began. `setup`: of the session then, in recordings of earlier versions."""

    response_id: str
    item_id: str
    request: ResponseRequested
    is_spoken: bool
    setup: HalfDuplexSetup | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """The context holds what it answers. `chosen`: see `ItemContext.fill`."""

    chosen: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnswerMade:
    """The model has finished an answer.

    Args:
        said: what the context holds of it.
        is_whole: True if that is all that the model had to say.
        chosen: what the model decided, if it reports that; None: a replay decides again from the
            same seed, and must get the same result.
    """

    said: str
    is_whole: bool
    chosen: object


@dataclass(frozen=True, slots=True, eq=False)
class AnswerTold:
    """The client received the end of an answer.

    Args:
        spoken: as in `ConversationItem`.
        calls: items of the functions that it called.
    """

    item_id: str
    spoken: tuple[tuple[str, float], ...]
    calls: tuple[ConversationItem, ...]
    is_apart: bool


UnitEntry = DuplexSetup | UnitDone | WentBack
ItemEntry = (
    HalfDuplexSetup
    | SetupChanged
    | Opened
    | ItemsSoFar
    | Committed
    | ItemCreated
    | Removed
    | Truncated
    | TakenBack
    | Unknown
    | Begun
    | Filled
    | AnswerMade
    | AnswerTold
)
Entry = ChatRequested | UnitEntry | ItemEntry
Observed = Event | Entry
"""Everything that happens in a session, as its observers see it."""


TAGS: Final[Mapping[str, type]] = {
    "answer_format": AnswerFormat,
    "answer_made": AnswerMade,
    "answer_told": AnswerTold,
    "audio_input": AudioInput,
    "answer_begun": Begun,
    "chat_requested": ChatRequested,
    "checkpoint": Checkpoint,
    "clip": Clip,
    "committed": Committed,
    "duplex_config": DuplexConfig,
    "duplex_setup": DuplexSetup,
    "ending": Ending,
    "filled": Filled,
    "generation": Generation,
    "half_duplex_setup": HalfDuplexSetup,
    "interruption_options": InterruptionOptions,
    "item": ConversationItem,
    "item_created": ItemCreated,
    "items_so_far": ItemsSoFar,
    "message": Message,
    "opened": Opened,
    "pcm": Pcm,
    "picture": Picture,
    "playback_report": PlaybackReport,
    "prefill_result": PrefillResult,
    "removed": Removed,
    "response_requested": ResponseRequested,
    "setup_changed": SetupChanged,
    "sound": Sound,
    "stage": Stage,
    "taken_back": TakenBack,
    "text_part": TextPart,
    "tool": Tool,
    "tool_call_part": ToolCallPart,
    "tool_function": ToolFunction,
    "tool_result_part": ToolResultPart,
    "truncated": Truncated,
    "unit_choices": UnitChoices,
    "unit_done": UnitDone,
    "unit_result": UnitResult,
    "unknown": Unknown,
    "vad_options": VadOptions,
    "went_back": WentBack,
}
"""Names of entries and of the values in them, in logs and recordings. A class may be renamed or
moved; its tag stays."""


def logged(event: Observed) -> Entry | None:
    """What a log keeps of an event, without what a replay makes again: the sound of a unit, and its
    costs. None: nothing."""
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
        case _:
            return event if isinstance(event, Entry) else None


def without_choices(entry: Entry) -> Entry:
    """An entry without what the model chose: it is to decide again."""
    match entry:
        case AnswerMade():
            return replace(entry, chosen=None)
        case Filled():
            return Filled(())
        case _:
            return entry
