"""Commands for a slot; `parley.results` has their results.

Values only: no tensors, no tasks. Work on one slot runs strictly in the order it was asked for.
Times are monotonic seconds.
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
    """How a context forgets when it grows. `off` never forgets and ends in `ContextFull`.

    `basic` drops whole oldest units (duplex) or rounds (turn-based) above `high_tokens` until
    `low_tokens`; `context` (duplex only) keeps at most `max_units` units and carries on what
    dropped ones said, up to `previous_max_tokens`. The system prompt is never dropped. Source:
    sessions.md 5.
    """

    kind: Literal["off", "basic", "context"] = "off"
    high_tokens: int = 8000
    low_tokens: int = 6000
    max_units: int = 24
    previous_max_tokens: int = 500


@dataclass(frozen=True, slots=True, eq=False)
class StartSession:
    """Start a conversation in a slot: what the slot remembered is gone.

    Args:
        voice: reference sound for the vocoder, 16 kHz mono; None means the model's default voice.
        speak: prepare the voice at all; False makes a text-only conversation.
        seed: makes sampling repeatable; None draws one. The seed in force is in `StartResult`.
        wall_clock: Unix seconds, for models that know the time; in a rerun, of the recording.
    """

    mode: Mode
    voice: Pcm | None = None
    speak: bool = True
    seed: int | None = None
    window: Window = Window()
    duplex: DuplexConfig = field(default_factory=DuplexConfig)
    wall_clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Prefill:
    """Append segments to the context; nothing is generated. Images share the session's slice limit
    unless they say more.

    Args:
        takes_checkpoint: remember the context before the segments, in the result; if the model
            fails on them, the slot is rolled back to it.
        again: what was `chosen` when this was done before in another row, so that nothing is chosen
            and the row is as that one was; None: choose. What can wait then is done by the next
            work that is not done again, be it without segments.
    """

    segments: tuple[Segment, ...]
    takes_checkpoint: bool = False
    again: object = None


@dataclass(frozen=True, slots=True)
class Generate(Generation):
    """Answer the open turn (chat, half-duplex), text and, if `speak`, sound, until the model ends
    it or a limit. `say` is said whole, whatever `max_new_tokens` is.

    Args:
        streaming: pieces as they are made; False: everything in the last piece.
        speak: False produces text only, whatever the opening prepared.
        is_whole: complete the text before speaking it, in one utterance; everything comes in the
            last piece. Models that know no such difference answer as ever.
        again: as in `Prefill`; the sound is silence then.
        may_call: there are functions: calls of them may stand in place of an `answer_format`.
    """

    speak: bool = True
    streaming: bool = True
    is_whole: bool = False
    again: object = None
    may_call: bool = False

    @property
    def is_greedy(self) -> bool:
        """True if the most probable token is taken every time."""
        return not self.do_sample or self.temperature == 0


@dataclass(frozen=True, slots=True)
class StepUnit:
    """Decide about the unit just prefilled (duplex): listen, or speak about one second.

    Args:
        say: what was heard of a unit that is decided again because the user interrupted it:
            these words are said and no others, without sound, and the turn ends with them.
        again: as in `Prefill`; the sound is silence then.
    """

    force_listen: bool = False
    say: str | None = None
    again: object = None


@dataclass(frozen=True, slots=True)
class WholeUnit:
    """Append a unit and decide about it, as one request to the engine: models get the two parts.

    If the model fails on either, and `prefill` takes a checkpoint, the slot is rolled back to it.
    """

    prefill: Prefill
    step: StepUnit


@dataclass(frozen=True, slots=True)
class Finalize:
    """Bookkeeping after an answer was sent: terminators, end-of-unit, window. Harmless when nothing
    is pending."""


TalkWork = Prefill | Generate | StepUnit | Finalize
"""Work of a conversation that has been opened."""

Work = StartSession | TalkWork
