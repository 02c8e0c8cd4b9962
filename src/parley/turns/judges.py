"""Judges of turns that the runners of a worker share; loaded once per process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from parley.media.pcm import Samples
from parley.protocol.values import VAD_DEFAULTS, Eagerness, VadOptions
from parley.turns.end_of_turn import EndOfTurn, log_odds, silence_ms, word_bounds_ms
from parley.turns.keywords import WordMatcher
from parley.turns.onset import Onsets


@dataclass(frozen=True, slots=True)
class TurnJudges:
    """The parts that judge; None: that part is switched off.

    Args:
        end_of_turn: judges whether the user has finished. Without it, a fixed silence ends a turn.
        words: judges the words spoken during an answer. Without it, `backchannel: words` is
            `ignore`.
        onsets: judges whether the start of speech differs from an acknowledgement's, before there
            are words.
    """

    end_of_turn: EndOfTurn | None = None
    words: WordMatcher | None = None
    onsets: Onsets | None = None

    def silence(self, options: VadOptions) -> Callable[[Samples], int] | None:
        """The judge that `UtteranceFinder` calls in every pause; None if the silence in `options`
        decides.

        A client that sets a silence gets that silence, unless it also sets an eagerness.
        """
        end, level = self.end_of_turn, _level(options)
        if end is None or level is None:
            return None
        return lambda heard: silence_ms(log_odds(end, heard), level)

    def bounds_ms(
        self, options: VadOptions, words: str, *, is_whole: bool
    ) -> tuple[int, int] | None:
        """The minimum and maximum silence after these words; None if the sound alone decides. The
        words are known later than the judgement of the sound.

        Args:
            is_whole: the model knows these words as a whole turn.
        """
        level = _level(options)
        if self.end_of_turn is None or level is None:
            return None
        return word_bounds_ms(words, level, is_whole=is_whole)


def _level(options: VadOptions) -> Eagerness | None:
    """The eagerness that applies; None if a fixed silence ends a turn."""
    is_default = options.min_silence_duration_ms == VAD_DEFAULTS.min_silence_duration_ms
    if options.eagerness == "auto":
        return "medium" if is_default else None
    return None if options.eagerness == "off" else options.eagerness


NO_JUDGES: Final = TurnJudges()
"""Everything is decided by silence and length."""


@runtime_checkable
class JudgesTurns(Protocol):
    """A model that decides in duplex itself whose turn it is."""

    def use_judges(self, judges: TurnJudges) -> None:
        """Use these judges from now on; called before the first session."""
        ...
