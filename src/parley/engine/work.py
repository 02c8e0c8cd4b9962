"""What a handle may ask of a slot, and what comes back.

Values only: no tensors, no tasks. Work on one slot runs strictly in the order it was asked for.
Times are monotonic seconds; durations in replies are milliseconds per stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

from parley.engine.segments import Segment
from parley.media.pcm import Pcm
from parley.protocol.kinds import Ending as Ending
from parley.protocol.kinds import Mode
from parley.protocol.values import CHAT_GENERATION, REPETITION_PENALTY, DuplexConfig


class Stage(Enum):
    """Kinds of device work. All slots ready for the same stage move in one step."""

    ENCODE = "encode"
    """Audio and vision encoders."""
    PREFILL = "prefill"
    """Input tokens into the context."""
    DECODE = "decode"
    """One text token per slot."""
    SPEECH = "speech"
    """One (or a fixed few) speech tokens per slot."""
    VOCODE = "vocode"
    """Speech tokens to samples; also voice preparation."""
    FINALIZE = "finalize"
    """Terminators and window after an answer."""


Timings = Mapping[Stage, float]
"""Milliseconds spent in each stage on behalf of one piece of work."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How text tokens are chosen in turn-based replies. Source: service.md 4.2,
    4.3."""

    temperature: float = CHAT_GENERATION.temperature
    top_p: float = CHAT_GENERATION.top_p
    top_k: int = CHAT_GENERATION.top_k
    length_penalty: float = CHAT_GENERATION.length_penalty
    repetition_penalty: float = REPETITION_PENALTY
    is_greedy: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """What a context forgets when it grows. `off` never forgets and ends in `ContextFull`.

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
    """A conversation begins in a slot: whatever the slot remembered is gone.

    Args:
        voice: reference sound for the vocoder, 16 kHz mono; None means the model's default voice.
        speak: prepare the voice at all; False makes a text-only conversation.
        seed: makes sampling repeatable; None draws one. The seed in force is in `StartResult`.
    """

    mode: Mode
    voice: Pcm | None = None
    speak: bool = True
    seed: int | None = None
    window: Window = Window()
    duplex: DuplexConfig = field(default_factory=DuplexConfig)


class Checkpoint(Protocol):
    """A remembered point of one slot's context. Opaque, cheap, valid until the slot starts another
    session or its window moves past it."""

    @property
    def row(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...


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
class Generate:
    """Answer the open turn (chat, half-duplex), text and, if `speak`, sound, until the model ends
    it or a limit.

    Args:
        streaming: pieces as they come; False gives everything in the last piece.
        speak: False produces text only, whatever the opening prepared.
        is_whole: complete the text before speaking it, in one utterance; everything comes in the
            last piece. Models that know no such difference answer as ever.
        say: the words of the answer, for models that read aloud (`ModelSpec.reads_aloud`): nothing
            else is said, and `max_new_tokens` does not cut them; None: the model finds them.
        again: as in `Prefill`; the sound is silence then.
    """

    max_new_tokens: int = 512
    sampling: Sampling = Sampling()
    speak: bool = True
    enable_thinking: bool = False
    streaming: bool = True
    is_whole: bool = False
    say: str | None = None
    again: object = None


@dataclass(frozen=True, slots=True)
class StepUnit:
    """Decide about the unit just prefilled (duplex): listen, or speak about one second.

    Args:
        say: what was heard of a unit that is decided once more, because somebody interrupted it:
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


Work = StartSession | Prefill | Generate | StepUnit | Finalize


@dataclass(frozen=True, slots=True)
class StartResult:
    """The slot is empty and its voice is ready."""

    seed: int
    timings: Timings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """`added_tokens` went into the context, which now holds `context_tokens`.

    Args:
        heard: the words of the sound in it, where the model makes any (`ModelSpec.transcribes`).
        chosen: what the model decided in it, as values, for `Prefill.again`; None: the model takes
            none, and decides the same from the same seed.
    """

    added_tokens: int
    context_tokens: int
    vision_slices: int = 0
    vision_tokens: int = 0
    timings: Timings = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    heard: str = ""
    chosen: object = None


@dataclass(frozen=True, slots=True, eq=False)
class OutputPiece:
    """A part of an answer, in order: text that is now final, sound that is now final (24 kHz), or
    both."""

    text: str = ""
    pcm: Pcm | None = None


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """What an answer came to.

    Args:
        text: everything said in this answer (reply: the whole turn; unit: this second).
        end_of_turn: duplex: the turn ended in this unit; reply: the model ended it.
        text_tokens, speech_tokens: how many were produced and used.
        context_tokens: length of the context now (duplex: before settling).
        heard: the words of the sound that this answer is about, where the model makes any while it
            answers (`ModelSpec.transcribes`); duplex: in the unit in which the
            answer is begun, whose first sound may come in the next.
        problem: what kept a part behind the model (a language model at an address) from answering,
            and what to do, as a sentence for the client; "" where nothing did.
        chosen: as in `PrefillResult`.
        needs_sound_s: how much of the live sound that came last is still to be listened to: the
            utterance that goes on. What came before has become `chosen`; None: all is needed.
        prefilled: the unit's own prefill (`WholeUnit`), whose time is part of `timings`; None: a
            prefill was a request of its own.
    """

    ending: Ending
    text: str
    end_of_turn: bool
    text_tokens: int
    speech_tokens: int
    context_tokens: int
    timings: Timings = field(default_factory=dict)
    heard: str = ""
    problem: str = ""
    chosen: object = None
    needs_sound_s: float | None = None
    prefilled: PrefillResult | None = None


@dataclass(frozen=True, slots=True)
class FinalizeResult:
    """Bookkeeping done; `dropped_tokens` were forgotten by the window."""

    context_tokens: int
    dropped_tokens: int = 0
    timings: Timings = field(default_factory=dict)


Result = StartResult | PrefillResult | GenerateResult | FinalizeResult
