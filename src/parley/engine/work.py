"""What a seat may ask of a slot, and what comes back.

Values only: no tensors, no tasks. Work on one slot runs strictly in the order it was asked for.
Times are monotonic seconds; durations in replies are milliseconds per stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from parley.engine.segments import Segment
from parley.media.pcm import Pcm

Mode = Literal["chat", "half_duplex", "duplex"]


class Stage(Enum):
    """Kinds of device work. All slots ready for the same stage move in one step."""

    ENCODE = "encode"
    """Ears and eyes."""
    PREFILL = "prefill"
    """Input tokens into the context."""
    DECODE = "decode"
    """One text token per slot."""
    SPEECH = "speech"
    """One (or a fixed few) speech tokens per slot."""
    VOCODE = "vocode"
    """Speech tokens to samples; also voice preparation."""
    SETTLE = "settle"
    """Terminators and window after an answer."""


Timings = Mapping[Stage, float]
"""Milliseconds spent in each stage on behalf of one piece of work."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How text tokens are chosen in turn-based replies. Source: requirement texts (chat,
    half-duplex)."""

    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = 100
    length_penalty: float = 1.0
    repetition_penalty: float = 1.02
    is_greedy: bool = False


@dataclass(frozen=True, slots=True)
class DuplexOptions:
    """Per-session settings of the unit loop. Source: service.md 4.4, DuplexConfig."""

    generate_audio: bool = True
    ls_mode: Literal["explicit", "implicit"] = "explicit"
    force_listen_count: int = 3
    max_new_speak_tokens_per_chunk: int = 20
    decode_mode: Literal["sampling", "greedy"] = "sampling"
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.8
    text_repetition_penalty: float = 1.05
    text_repetition_window_size: int = 512
    length_penalty: float = 1.1
    listen_prob_scale: float = 1.0
    listen_top_k: int | None = None
    tts_temperature: float = 0.8


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
class Opening:
    """A conversation begins in a slot: whatever the slot remembered is gone.

    Args:
        voice: reference sound for the vocoder, 16 kHz mono; None means the model's default voice.
        speak: prepare the voice at all; False makes a text-only conversation.
        seed: makes sampling repeatable; None draws one. The seed in force is in `Opened`.
    """

    mode: Mode
    voice: Pcm | None = None
    speak: bool = True
    seed: int | None = None
    window: Window = Window()
    duplex: DuplexOptions = DuplexOptions()


@dataclass(frozen=True, slots=True)
class Prefill:
    """Append segments to the context; nothing is said. Images share the session's slice limit
    unless they say more."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the open turn (chat, half-duplex), text and, if `speak`, sound, until the model ends
    it or a limit.

    Args:
        streaming: pieces as they come; False gives everything in the last piece.
        speak: False produces text only, whatever the opening prepared.
        is_whole: complete the text before speaking it, in one utterance; everything comes in the
            last piece. Models that know no such difference answer as ever.
    """

    max_new_tokens: int = 512
    sampling: Sampling = Sampling()
    speak: bool = True
    enable_thinking: bool = False
    streaming: bool = True
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Decide about the unit just prefilled (duplex): listen, or speak about one second."""

    force_listen: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """Bookkeeping after an answer was sent: terminators, end-of-unit, window. Harmless when nothing
    is pending."""


Work = Opening | Prefill | Reply | Answer | Settle


@dataclass(frozen=True, slots=True)
class Opened:
    """The slot is empty and its voice is ready."""

    seed: int
    timings: Timings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`added_tokens` went into the context, which now holds `context_tokens`."""

    added_tokens: int
    context_tokens: int
    vision_slices: int = 0
    vision_tokens: int = 0
    timings: Timings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of an answer, in order: text that is now final, sound that is now final (24 kHz), or
    both."""

    text: str = ""
    pcm: Pcm | None = None


class Ending(Enum):
    """Why an answer ended."""

    DONE = "done"
    """The model ended it."""
    LIMIT = "limit"
    """`max_new_tokens` was reached."""
    CANCELLED = "cancelled"
    """Somebody stopped it; what was produced stays in the context."""
    LISTEN = "listen"
    """The unit decided to listen (duplex)."""
    SPOKE = "spoke"
    """The unit spoke (duplex)."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What an answer came to.

    Args:
        text: everything said in this answer (reply: the whole turn; unit: this second).
        end_of_turn: duplex: the turn ended in this unit; reply: the model ended it.
        text_tokens, speech_tokens: how many were produced and used.
        context_tokens: length of the context now (duplex: before settling).
    """

    ending: Ending
    text: str
    end_of_turn: bool
    text_tokens: int
    speech_tokens: int
    context_tokens: int
    timings: Timings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """Bookkeeping done; `dropped_tokens` were forgotten by the window."""

    context_tokens: int
    dropped_tokens: int = 0
    timings: Timings = field(default_factory=dict)


Result = Opened | Prefilled | Decoded | Settled
