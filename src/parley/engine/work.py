"""Commands for a slot; `parley.results` has their results.

Values only: no tensors, no tasks. Work on one slot runs strictly in the order in which it was
requested. Times are monotonic seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from parley.engine.segments import Segment
from parley.media.pcm import Pcm
from parley.protocol.kinds import Ending as Ending
from parley.protocol.kinds import Mode
from parley.protocol.values import DuplexConfig, Generation
from parley.results import Checkpoint as Checkpoint
from parley.results import FinalizeResult as FinalizeResult
from parley.results import GenerateResult as GenerateResult
from parley.results import OutputPiece as OutputPiece
from parley.results import PrefillResult as PrefillResult
from parley.results import Result as Result
from parley.results import Stage as Stage
from parley.results import StartResult as StartResult
from parley.results import Timings as Timings
from parley.results import UnitChoices as UnitChoices
from parley.results import UnitResult as UnitResult


@dataclass(frozen=True, slots=True)
class Window:
    """How a growing context forgets. `off` never forgets and ends in `ContextFull`.

    `basic` drops whole oldest units (duplex) or rounds (turn-based) above `high_tokens` until
    `low_tokens`; `context` (duplex only) keeps at most `max_units` units and carries over the words
    of dropped ones, up to `previous_max_tokens`. The system prompt is never dropped. Source:
    sessions.md 5.
    """

    kind: Literal["off", "basic", "context"] = "off"
    high_tokens: int = 8000
    low_tokens: int = 6000
    max_units: int = 24
    previous_max_tokens: int = 500


@dataclass(frozen=True, slots=True, eq=False)
class StartSession:
    """Start a conversation in a slot, which discards the slot's previous content.

    Args:
        voice: reference audio for the vocoder, 16 kHz mono; None means the model's default voice.
        speak: prepare a voice; False makes a text-only conversation.
        seed: makes sampling repeatable; None draws one. `StartResult` contains the seed that is
            used.
        is_seed_chosen: True if the client chose it: it is passed on to a server behind the model.
        wall_clock: Unix time, for models that know the time; in a rerun, that of the recording.
    """

    mode: Mode
    voice: Pcm | None = None
    speak: bool = True
    seed: int | None = None
    is_seed_chosen: bool = False
    window: Window = Window()
    duplex: DuplexConfig = field(default_factory=DuplexConfig)
    wall_clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Prefill:
    """Append segments to the context without generating. Images use the session's slice limit
    unless they set their own.

    Args:
        takes_checkpoint: take a checkpoint before the segments, which is in the result; if the
            model fails on them, the slot is rolled back to it.
        again: `chosen` of the same work in another row: nothing is chosen, and the row becomes
            identical; None: choose. Deferred work is done by the next work without `again`, even if
            it has no segments.
    """

    segments: tuple[Segment, ...]
    takes_checkpoint: bool = False
    again: object = None


@dataclass(frozen=True, slots=True)
class Generate(Generation):
    """Answer the open turn (chat, half-duplex) with text and, if `speak`, audio, until the model
    ends it or a limit is reached. `say` is spoken completely, regardless of `max_new_tokens`.

    Args:
        streaming: pieces as they are generated; False: everything in the last piece.
        speak: False generates only text, even if a voice was prepared.
        is_whole: complete the text before speaking it in one utterance; everything is in the last
            piece. Models without this distinction ignore it.
        again: as in `Prefill`; the sound is silence then.
        may_call: True if there are functions: calls may replace an answer in `answer_format`.
    """

    speak: bool = True
    streaming: bool = True
    is_whole: bool = False
    again: object = None
    may_call: bool = False

    @property
    def is_greedy(self) -> bool:
        """True if the most probable token is always chosen."""
        return not self.do_sample or self.temperature == 0


@dataclass(frozen=True, slots=True)
class StepUnit:
    """Decide about the unit just prefilled (duplex): listen, or speak about one second.

    Args:
        say: the heard words of a unit that is decided again because the user interrupted it:
            exactly these words are said, without audio, and the turn ends with them.
        again: as in `Prefill`; the sound is silence then.
    """

    force_listen: bool = False
    say: str | None = None
    again: object = None


@dataclass(frozen=True, slots=True)
class WholeUnit:
    """Append a unit and decide about it, in one request to the engine; models get the two parts. If
    the model fails on either, and `prefill` takes a checkpoint, the slot is rolled back to it.
    """

    prefill: Prefill
    step: StepUnit


@dataclass(frozen=True, slots=True)
class Finalize:
    """Bookkeeping after an answer was sent: terminators, end-of-unit, window. Harmless if nothing
    is pending."""


TalkWork = Prefill | Generate | StepUnit | Finalize
"""Work in a conversation that was opened."""

Work = StartSession | TalkWork
