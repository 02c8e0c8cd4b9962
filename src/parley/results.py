"""Results of work on a slot, from the engine to sessions, dialects and recordings.

Values only: no tensors, no tasks. Models create them, the engine adds times, and readers get them
unchanged, so that a new fact has one place. Durations are milliseconds per stage.
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
"""Milliseconds per stage spent on one piece of work."""


class Checkpoint(Protocol):
    """A saved state of one slot's context. Opaque, cheap, valid until the slot starts another
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
        heard: the words of the audio in it, if the model transcribes (`ModelSpec.transcribes`).
        words: with times, if there is one audio part and the model knows them.
        is_whole: True if these words are a turn that the model knows, so that the user has most
            likely finished.
        chosen: the model's choices, as values, for `Prefill.again`; None: the model accepts none,
            and decides the same from the same seed.
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
    """A part of an answer, in order: text that is now final, audio that is now final (24 kHz), or
    both.

    Args:
        logprobs: of the tokens since the previous piece, if requested.
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
        text_tokens, speech_tokens: numbers of generated tokens that were used.
        context_tokens: current length of the context (duplex: before finalizing).
        heard: the words of the audio that is answered, if the model transcribes while it answers
            (`ModelSpec.transcribes`); duplex: in the unit in which the answer starts, whose first
            audio may follow in the next unit.
        problem: why a server behind the model (a remote language model) did not answer, and what to
            do, as a sentence for the client; "" if there was no problem.
        voice_failed: True if the server of the model's voice failed; another voice may have spoken.
        chosen: as in `PrefillResult`.
        needs_sound_s: length of the newest live audio that is still needed: the current utterance.
            The results of earlier audio are in `chosen`; None: all audio is needed.
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
    voice_failed: bool = False
    chosen: object = None
    needs_sound_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class UnitChoices:
    """A model's choices for a unit; see `engine.work.Prefill.again`."""

    prefill: object = None
    step: object = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnitResult(GenerateResult):
    """The result of one duplex unit: the model's decision, with its prefill and its audio.

    The engine creates it; sessions, dialects and recordings read it unchanged. Source of the
    fields: sessions.md 4.8.

    Args:
        text: empty when listening.
        end_of_turn: also true after a stop.
        pcm: 24 kHz; None when listening, or if there is no audio (yet).
        prefilled: result of prefilling the unit's input; its time is part of `timings`.
        current_time: number of units so far.
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
    """Result of finalizing; the window dropped `dropped_tokens`."""

    context_tokens: int
    dropped_tokens: int = 0
    timings: Timings = field(default_factory=dict)


Result = StartResult | PrefillResult | GenerateResult | FinalizeResult
