"""Has the user finished speaking? Asked once in a pause, after `JUDGED_MS` of quiet.

An `EndOfTurn` gives a probability; `silence_ms` turns it into the silence that is waited for before
the turn is over: short when it is complete, up to `LONGEST_MS` when the person is likely to go on.
The part that comes with parley hears how it was said (`smart_turn.py`); the words are known later
and only make the silence longer (`TurnJudges.held_ms`). Without any part a fixed silence ends a
turn, as `vad/utterance.py` does by itself.

Source: docs/understand/turn-taking.md.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np

from parley.media.pcm import Samples
from parley.protocol.values import Eagerness

_SHIFT: Final = {"low": -1.0, "medium": 0.0, "high": 1.0}
"""Of the log odds: the threshold of who waits for longer, or less long."""

_LOG_ODDS: Final = (0.0, 1.2, 2.0, 2.3, 3.0)
_SILENCE_MS: Final = (1800.0, 1300.0, 700.0, 512.0, 256.0)
"""What is waited for at these log odds, evenly in between; the detector notices an end 30 to 140 ms
late, which comes on top. Source: docs/understand/turn-taking.md."""

WHOLE_MS: Final = {"low": 900, "medium": 448, "high": 256}
"""The most silence after words that the model knows as a whole turn, however they sounded."""

QUESTION_MS: Final = {"low": 1200, "medium": 704, "high": 448}
"""The same after words that the recogniser wrote as a question."""

LONGEST_MS: Final = {"low": 2500.0, "medium": 1800.0, "high": 1200.0}
"""Who is held back is answered after this."""


class EndOfTurn(Protocol):
    """Judges pauses. Shared by all conversations and called from several threads."""

    def judge(self, audio: Samples, words: str) -> float:
        """How likely somebody has finished, 0 to 1.

        Args:
            audio: mono float32, 16 kHz, shape (N,): what they said last, with the quiet behind it.
                Parts look at its last seconds.
            words: what a recogniser made of it; "" where nobody knows.
        """
        ...


def log_odds(probability: float) -> float:
    """The logit, bounded."""
    bounded = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(bounded / (1 - bounded))


def silence_ms(probability: float, eagerness: Eagerness = "medium") -> int:
    """How long the quiet has to be, all of it, before a turn is over."""
    odds = log_odds(probability) + _SHIFT[eagerness]
    if odds <= _LOG_ODDS[0]:
        return round(LONGEST_MS[eagerness])
    return round(min(float(np.interp(odds, _LOG_ODDS, _SILENCE_MS)), LONGEST_MS[eagerness]))
