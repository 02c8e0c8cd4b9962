"""Results of work on a slot, from the engine to sessions, dialects and recordings.

Values only: no tensors, no tasks. Models make them, the engine completes them with times, and what
reads them gets them whole, so that a new fact has one place. Durations are milliseconds per stage.
`parley.engine.work` has the commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol

from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.kinds import Ending
from parley.protocol.values import TokenLogprob, WordTime


class Stage(Enum):
    """Kinds of device work. All slots that are ready for the same stage run in one step."""

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
"""Milliseconds per stage, spent on one piece of work."""


class Checkpoint(Protocol):
    """A remembered point of one slot's context. Opaque, cheap, valid until the slot starts another
    session or its window moves past it."""

    @property
    def row(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...


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
        words: of one sound, with their times, where the model knows them.
        is_whole: these words are a turn that the model knows, so the user has most likely finished.
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
    words: tuple[WordTime, ...] = ()
    is_whole: bool = False
    chosen: object = None


class HeardWords(NamedTuple):
    """`PrefillResult.heard` and `is_whole` of a turn that may not be over."""

    text: str = ""
    is_whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OutputPiece:
    """A part of an answer, in order: text that is now final, sound that is now final (24 kHz), or
    both.

    Args:
        logprobs: of the tokens up to here that no earlier piece had, if they were asked for.
    """

    text: str = ""
    pcm: Pcm | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Result of an answer.

    Args:
        text: everything said in this answer (reply: the whole turn; unit: this second).
        end_of_turn: duplex: the turn ended in this unit; reply: the model ended it.
        text_tokens, speech_tokens: how many were produced and used.
        context_tokens: length of the context now (duplex: before settling).
        heard: the words of the sound that this answer is about, where the model makes any while it
            answers (`ModelSpec.transcribes`); duplex: in the unit in which the
            answer starts; its first sound may come in the next.
        problem: what kept a part behind the model (a language model at an address) from answering,
            and what to do, as a sentence for the client; "" where nothing did.
        chosen: as in `PrefillResult`.
        needs_sound_s: how much of the live sound that came last is still to be listened to: the
            utterance that continues. What came before has become `chosen`; None: all is needed.
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


@dataclass(frozen=True, slots=True, eq=False)
class UnitChoices:
    """A model's decisions about a unit; see `engine.work.Prefill.again`."""

    prefill: object = None
    step: object = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnitResult(GenerateResult):
    """The result of one unit of duplex: what the model decided, with its prefill and its sound.

    The engine makes it, and sessions, dialects and recordings read it as it is. Source of the
    fields: sessions.md 4.8.

    Args:
        text: empty when listening.
        end_of_turn: also true after a stop.
        pcm: 24 kHz; None when listening, or when there is no sound (yet).
        prefilled: of the unit's input; its time is part of `timings`.
        current_time: units so far.
        cost_encode_ms, cost_llm_ms, cost_tts_ms, cost_token2wav_ms, cost_all_ms: `timings`, by the
            names under which they are published.
    """

    is_listen: bool
    pcm: Pcm | None = None
    chosen: UnitChoices | None = None
    prefilled: PrefillResult = PrefillResult(0, 0)
    current_time: int = 0
    cost_encode_ms: float = 0.0
    cost_llm_ms: float = 0.0
    cost_tts_ms: float = 0.0
    cost_token2wav_ms: float = 0.0
    cost_all_ms: float = 0.0

    @classmethod
    def of(
        cls,
        decided: GenerateResult,
        prefilled: PrefillResult,
        pieces: Sequence[OutputPiece],
        timings: Timings,
    ) -> UnitResult:
        """Combine the two parts of a unit. Fields of only one part are copied."""
        facts = {name: getattr(decided, name) for name in GenerateResult.__slots__}
        is_listen = decided.ending is not Ending.SPOKE
        if is_listen:
            facts["text"] = ""
        facts["end_of_turn"] = decided.end_of_turn or decided.ending is Ending.CANCELLED
        facts["timings"] = timings
        facts["heard"] = prefilled.heard or decided.heard
        if prefilled.chosen is not None or decided.chosen is not None:
            facts["chosen"] = UnitChoices(prefilled.chosen, decided.chosen)
        sounds = [piece.pcm for piece in pieces if piece.pcm is not None and len(piece.pcm)]
        spent = timings.get
        return cls(
            **facts,
            is_listen=is_listen,
            pcm=join(sounds, OUTPUT_RATE_HZ) if sounds and not is_listen else None,
            prefilled=prefilled,
            cost_encode_ms=spent(Stage.ENCODE, 0.0),
            cost_llm_ms=spent(Stage.PREFILL, 0.0) + spent(Stage.DECODE, 0.0),
            cost_tts_ms=spent(Stage.SPEECH, 0.0),
            cost_token2wav_ms=spent(Stage.VOCODE, 0.0),
            cost_all_ms=sum(timings.values()),
        )

    @property
    def audio(self) -> Pcm | None:
        """Published name of `pcm`."""
        return self.pcm

    @property
    def n_tokens(self) -> int:
        """Published name of `text_tokens`."""
        return self.text_tokens

    @property
    def n_tts_tokens(self) -> int:
        """Published name of `speech_tokens`."""
        return self.speech_tokens

    @property
    def kv_cache_length(self) -> int:
        """Published name of `context_tokens`: before finalizing."""
        return self.context_tokens

    @property
    def vision_slices(self) -> int:
        """Of the unit's frames."""
        return self.prefilled.vision_slices

    @property
    def vision_tokens(self) -> int:
        """Of the unit's frames."""
        return self.prefilled.vision_tokens

    def silenced(self) -> UnitResult:
        """The same unit without speech: the answer was interrupted."""
        return replace(self, is_listen=True, text="", pcm=None, end_of_turn=True)


@dataclass(frozen=True, slots=True)
class FinalizeResult:
    """Bookkeeping done; `dropped_tokens` were forgotten by the window."""

    context_tokens: int
    dropped_tokens: int = 0
    timings: Timings = field(default_factory=dict)


Result = StartResult | PrefillResult | GenerateResult | FinalizeResult
