"""Judges whether the user has finished: once in a pause, after `vad.utterance.JUDGED_MS` of quiet.

A judgement is the mean of two probabilities of an `EndOfTurn` (`log_odds`). `silence_ms` turns it
into the silence after which the turn is over: short when the sentence is complete, up to
`LONGEST_MS` when the person is likely to continue. The network that comes with parley judges how it
was said (`smart_turn.py`); the words are known later and bound the silence (`word_bounds_ms`).
Without a network, a fixed silence ends a turn, as in `vad/utterance.py` alone.

Source: docs/understand/turn-taking.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from parley.media.pcm import Samples
from parley.protocol.values import Eagerness
from parley.turns.word_lists import is_listing, is_question, is_unfinished
from parley.vad.base import steadied

_SHIFT: Final = {"low": -1.0, "medium": 0.0, "high": 1.0}
"""Shift of the log odds: a lower eagerness waits longer."""

_LOG_ODDS: Final = (-0.4, 0.8, 1.2, 1.4, 1.6, 1.9, 2.2)
_SILENCE_MS: Final = (1500.0, 1300.0, 1100.0, 950.0, 740.0, 500.0, 256.0)
"""Required silence at these log odds, interpolated linearly; the detector notices an end 30 to 140
ms late, which is added. At most one in twelve cuts between words is mistaken for an end at each
pause of 300 to 1,200 ms, also with speakers on whom the network was not trained. Source:
docs/log/conversation.md."""

WHOLE_MS: Final = {"low": 900, "medium": 448, "high": 256}
"""Maximum silence after words that the model knows as a whole turn, regardless of how they
sounded."""

QUESTION_MS: Final = {"low": 1200, "medium": 704, "high": 448}
"""The same after words that the recogniser transcribed as a question."""

LISTING_MS: Final = {"low": 1500, "medium": 1100, "high": 700}
"""Minimum silence after a number or a word that is being dictated."""

LONGEST_MS: Final = {"low": 2500, "medium": 1500, "high": 1000}
"""Maximum silence before an answer."""

_AGAIN_SAMPLES: Final = 1024
"""The network also judges the audio without these last samples: the mean of two judgements is wrong
half as often. Source: docs/log/conversation.md."""


EndOfTurn = Callable[[Samples], float]
"""Returns the probability that the user has finished, 0 to 1, from their last speech with the quiet
after it (N,), 16 kHz. Shared by all conversations and called from several threads."""


def log_odds(end_of_turn: EndOfTurn, heard: Samples) -> float:
    """Log odds that the user has finished: the mean of two judgements.

    Args:
        heard: their last speech, with the quiet after it (N,), 16 kHz.
    """
    heard = steadied(heard)
    both = np.clip([end_of_turn(heard[:-_AGAIN_SAMPLES]), end_of_turn(heard)], 1e-4, 1 - 1e-4)
    return float(np.mean(np.log(both / (1 - both))))


def silence_ms(odds: float, eagerness: Eagerness = "medium") -> int:
    """Length of quiet after which a turn is over that is complete with these log odds."""
    odds += _SHIFT[eagerness]
    if odds <= _LOG_ODDS[0]:
        return LONGEST_MS[eagerness]
    return round(min(float(np.interp(odds, _LOG_ODDS, _SILENCE_MS)), LONGEST_MS[eagerness]))


def word_bounds_ms(
    words: str, eagerness: Eagerness = "medium", *, is_whole: bool
) -> tuple[int, int] | None:
    """The minimum and maximum silence after these words; None if the sound alone decides.

    Args:
        is_whole: the model knows these words as a whole turn.
    """
    if is_unfinished(words):
        return LONGEST_MS[eagerness], LONGEST_MS[eagerness]
    if is_whole:
        return 0, WHOLE_MS[eagerness]
    if is_question(words):
        return 0, QUESTION_MS[eagerness]
    if is_listing(words):
        return LISTING_MS[eagerness], LONGEST_MS[eagerness]
    return None
