"""What is done in a session: the entries of its log, of which everything else is made.

The session log keeps them for another worker, a recording is a fold of them, and `replay` does them
again. Some are also events, which the client receives; those of this module are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parley.dialects.events import (
    ChatRequested,
    DuplexSetup,
    Event,
    HalfDuplexSetup,
    ItemCreated,
    ResponseRequested,
    TurnStarted,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.results import PrefillResult
from parley.session.items import ConversationItem

SessionRequest = ChatRequested | HalfDuplexSetup | DuplexSetup


@dataclass(frozen=True, slots=True)
class WentBack:
    """The user interrupted in duplex; see `DuplexView.cut_answer`."""

    unheard_chars: int
    unsent_units: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a turn.

    Args:
        is_heard: whether the context holds the user's turn.
        said: what it holds of the answer.
        is_whole: whether that is all that the model had to say.
        taken_in, chosen: what the model decided about the turn and its answer, if it reports that;
            None: a replay decides again from the same seed, and must get the same result.
    """

    is_heard: bool
    said: str
    is_whole: bool
    taken_in: object = None
    chosen: object = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The user interrupted an answer: the context holds only `heard`."""

    heard: str


@dataclass(frozen=True, slots=True, eq=False)
class ItemsSoFar:
    """The items of when the client asked to be able to come back: the context of before is not made
    again as it was, but filled from these."""

    items: tuple[ConversationItem, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """A spoken turn of the user, as an item."""

    item_id: str
    pcm: Pcm


@dataclass(frozen=True, slots=True)
class Removed:
    """An item that is gone."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """An answer of which only a part was heard."""

    item_id: str
    heard_ms: float


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The context holds nothing of an answer that was being made."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is not known what the context holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """An answer of a conversation of items began. `setup`: of the session then."""

    response_id: str
    item_id: str
    request: ResponseRequested
    setup: HalfDuplexSetup
    is_spoken: bool


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """The context holds what it answers. `chosen`: see `ItemContext.fill`."""

    chosen: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnswerMade:
    """The model has finished an answer; fields as in `Answered`."""

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


TurnEntry = HalfDuplexSetup | TurnStarted | Answered | Cut
UnitEntry = DuplexSetup | UnitDone | WentBack
ItemEntry = (
    HalfDuplexSetup
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
Entry = ChatRequested | TurnEntry | UnitEntry | ItemEntry
Observed = Event | Entry
"""Everything that happens in a session, as its observers see it."""


def logged(event: Observed) -> Entry | None:
    """What a log keeps of an event, without what a replay makes again: the sound of a unit, and its
    costs. None: nothing, as of a turn of a conversation of items, which is in its items."""
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
        case TurnStarted():
            return event if event.item is None else None
        case _:
            return event if isinstance(event, Entry) else None


def without_choices(entry: Entry) -> Entry:
    """An entry without what the model chose: it is to decide again."""
    match entry:
        case Answered():
            return replace(entry, taken_in=None, chosen=None)
        case AnswerMade():
            return replace(entry, chosen=None)
        case Filled():
            return Filled(())
        case _:
            return entry
