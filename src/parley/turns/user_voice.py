"""How loud is the user? Learned from their last speech while nothing was played.

A person at their own microphone is 10 to 20 dB louder than a television across the room or a
person in the next one. So a speaker who is much softer than the user whose turn is being answered
does not interrupt the answer. The last speaker is the user: people who take turns at one microphone
are each heard in their turn and may interrupt the answer to it, and so may anyone who is about as
loud or louder. While nothing is known, anyone may.

Once a softer voice has talked on, what interrupts must be louder than its words of that length, and
the user may be a little softer than otherwise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

KNOWN_S: Final = 0.8
"""So much speech has to be heard before its level counts."""

LAST_S: Final = 3.0
"""The level is that of the last speech of so long."""

SOFTER_MS: Final = (0, 250, 800, 1600)
SOFTER_DB: Final = (6.0, 4.5, 4.5, 6.0)
"""By milliseconds of speech: who is softer by more is not the user. On recordings of five people,
each in another sentence than the one learnt from, one in 100 is softer than by 3 dB after 0.25 s
and by 1.8 dB after 0.8 s; of voices 10 dB softer one in 100 is louder than by -5.8 and -7.6. Words
begin softly; and who speaks on and on is heard if it may just be the user who has moved away."""

OTHERS_MS: Final = 3000
OTHERS_LAST: Final = 12
"""So much softer speech makes another's level known: that of so many pieces of it."""

ABOVE_OTHERS_DB: Final = (7.0, 7.0, 5.5, 4.0)
LEAST_SOFTER_DB, MOST_SOFTER_DB = 2.0, 7.0
"""What is so much louder than the others' mean, by `SOFTER_MS`, may be the user, within these
bounds below the user's level: a few words may be loud, a sentence is not.
Source: docs/log/conversation.md."""


class UserVoice:
    """The level of one microphone's user. Powers are of full scale, per half of a window."""

    def __init__(self, half_s: float) -> None:
        self._half_s = half_s
        self._powers: deque[float] = deque(maxlen=round(LAST_S / half_s))
        self._others: deque[tuple[float, float]] = deque(maxlen=OTHERS_LAST)

    def learn(self, power: float) -> None:
        """Half a window of speech while nothing was played."""
        self._powers.append(power)

    def end(self, power: float, speech_ms: float, *, is_user: bool) -> None:
        """Somebody has spoken during an answer for `speech_ms` with this mean power."""
        if is_user:
            self._others.clear()
        elif not self.may_be(power, math.inf):
            self._others.append((power, speech_ms))

    def may_be(self, power: float, speech_ms: float, *, unknown: bool = True) -> bool:
        """True if a person who has spoken for `speech_ms` with this mean power may be the user;
        `unknown` if nothing is known yet."""
        if len(self._powers) * self._half_s < KNOWN_S:
            return unknown
        return self._above_db(power) >= -float(np.interp(speech_ms, SOFTER_MS, self._softer_db))

    @property
    def _softer_db(self) -> Sequence[float]:
        """By `SOFTER_MS`, how much softer the user may be."""
        spoken_ms = sum(speech_ms for _, speech_ms in self._others)
        if spoken_ms < OTHERS_MS:
            return SOFTER_DB
        power = sum(power * speech_ms for power, speech_ms in self._others) / spoken_ms
        others_db = self._above_db(power)
        return [
            min(max(-others_db - above, LEAST_SOFTER_DB), MOST_SOFTER_DB)
            for above in ABOVE_OTHERS_DB
        ]

    def _above_db(self, power: float) -> float:
        usual = sum(self._powers) / len(self._powers)
        return 10 * math.log10(max(power, 1e-12) / max(usual, 1e-12))
