"""How loud is the user? Learned from their last speech while nothing was played.

A person at their own microphone is 10 to 20 dB louder than a television across the room or a
person in the next one. So a speaker who is much softer than the user whose turn is being answered
does not interrupt the answer. The last speaker is the user: people who take turns at one microphone
are each heard in their turn and may interrupt the answer to it, and so may anyone who is about as
loud or louder. While nothing is known, anyone may.

Single words of a soft voice are as loud as a user. So once a softer voice has talked on, before the
answer or into it, what interrupts must be louder than its words of that length, and the user may be
a little softer than otherwise.
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
LOUDEST_S: Final = 1.0
"""The level is that of the loudest stretch of so long in the last speech: a voice that runs in the
background, and how softly a sentence ends, make no user softer."""

SOFTER_MS: Final = (0, 250, 800, 1600)
SOFTER_DB: Final = (6.0, 4.5, 5.0, 6.0)
"""By milliseconds of speech: who is softer by more is not the user. Of 354 sentences of people,
each another than the one learnt from, one in ten is softer by 3.7 dB after 0.25 s, by 2 after 0.8,
one in 100 by 4.5 then; of voices 10 dB softer five in 100 are louder than by 5.9 dB after 0.25 s,
one than by 6.1 after 0.8. Words begin softly; and who speaks on and on is heard if it may just be
the user who has moved away."""

OTHERS_DB: Final = 5.0
"""A stretch this much below the user is another's: of users one in 30."""
OTHERS_LEAST_MS, OTHERS_MS = 500, 4000
"""Shorter ones do not count; so much of them makes another's level known."""
OTHERS_LAST: Final = 13
"""The last stretches, of whomever, in which others are looked for; 20 s while nothing is played."""
STRETCH_S: Final = 1.5

ABOVE_OTHERS_DB: Final = (7.0, 7.0, 5.5, 4.0)
LEAST_SOFTER_DB, MOST_SOFTER_DB = 2.0, 8.0
"""What is so much louder than the others' mean, by `SOFTER_MS`, may be the user, within these
bounds below the user's level: a few words may be loud, a sentence is not.
Source: docs/log/conversation.md."""


class UserVoice:
    """The level of one microphone's user. Powers are of full scale, per half of a window."""

    def __init__(self, half_s: float) -> None:
        self._half_s = half_s
        self._powers: deque[float] = deque(maxlen=round(LAST_S / half_s))
        self._usual: float | None = None
        """Of the user; None: to be computed."""
        self._stretch: list[float] = []
        self._stretches: deque[tuple[float, float]] = deque(maxlen=OTHERS_LAST)
        """Power and milliseconds of what was said last, by whomever."""

    def learn(self, power: float) -> None:
        """Half a window of speech while nothing was played."""
        self._powers.append(power)
        self._usual = None
        self._stretch.append(power)
        if len(self._stretch) * self._half_s >= STRETCH_S:
            self._stretches.append((float(np.mean(self._stretch)), 1000 * STRETCH_S))
            self._stretch = []

    def end(self, power: float, speech_ms: float, *, is_user: bool) -> None:
        """Somebody has spoken during an answer for `speech_ms` with this mean power."""
        if not is_user and speech_ms >= OTHERS_LEAST_MS:
            self._stretches.append((power, speech_ms))

    def may_be(self, power: float, speech_ms: float, *, unknown: bool = True) -> bool:
        """True if a person who has spoken for `speech_ms` with this mean power may be the user;
        `unknown` if nothing is known yet."""
        if len(self._powers) * self._half_s < KNOWN_S:
            return unknown
        return self._above_db(power) >= -float(np.interp(speech_ms, SOFTER_MS, self._softer_db))

    @property
    def _softer_db(self) -> Sequence[float]:
        """By `SOFTER_MS`, how much softer the user may be."""
        others = [one for one in self._stretches if self._above_db(one[0]) < -OTHERS_DB]
        spoken_ms = sum(speech_ms for _, speech_ms in others)
        if spoken_ms < OTHERS_MS:
            return SOFTER_DB
        others_db = self._above_db(sum(power * ms for power, ms in others) / spoken_ms)
        return [
            min(max(-others_db - above, LEAST_SOFTER_DB), MOST_SOFTER_DB)
            for above in ABOVE_OTHERS_DB
        ]

    def _above_db(self, power: float) -> float:
        if self._usual is None:
            count = min(round(LOUDEST_S / self._half_s), len(self._powers))
            means = np.convolve(self._powers, np.full(count, 1 / count), "valid")
            self._usual = float(means.max())
        return 10 * math.log10(max(power, 1e-12) / max(self._usual, 1e-12))
