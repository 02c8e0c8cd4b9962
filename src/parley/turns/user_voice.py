"""Level of the user's voice, learned from their last speech while nothing was played.

A person at their own microphone is 10 to 20 dB louder than a television across the room or a person
in the next one. So a speaker who is much softer than the user whose turn is being answered does not
interrupt the answer. The last speaker is the user: people who take turns at one microphone are each
heard in their turn and may interrupt the answer to it, as may any voice that is about as loud or
louder. While no level is known, any voice may.

Single words of a soft voice are as loud as a user. So once a softer voice has talked for some time,
before the answer or during it, an interruption must be louder than that voice's words of the same
length, and the user may be a little softer than otherwise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

KNOWN_S: Final = 0.8
"""Length of speech after which its level counts."""

LAST_S: Final = 3.0
LOUDEST_S: Final = 1.0
"""The level is that of the loudest stretch of this length in the last speech, so that neither a
voice in the background nor the soft end of a sentence lowers it."""

SOFTER_MS: Final = (0, 250, 800, 1600)
SOFTER_DB: Final = (6.0, 4.5, 5.0, 6.0)
"""Limits by milliseconds of speech: a voice that is softer by more is not the user. Of 354
sentences of people, each different from the one learnt from, one in ten is softer by 3.7 dB after
0.25 s, and by 2 after 0.8 s; one in 100 by 4.5 after 0.8 s. Of voices 10 dB softer, five in 100 are
softer by less than 5.9 dB after 0.25 s, one by less than 6.1 after 0.8 s. Words start softly, and a
voice that keeps speaking is heard if it may be the user who has moved away."""

OTHERS_DB: Final = 5.0
"""A stretch this far below the user's level is another's; so is one in 30 of the user's own."""
OTHERS_LEAST_MS, OTHERS_MS = 500, 4000
"""Minimum length of such a stretch, and total length after which the other voice's level is
known."""
OTHERS_LAST: Final = 13
"""Number of recent stretches, of any speaker, in which other voices are searched; 20 s while
nothing is played."""
STRETCH_S: Final = 1.5

ABOVE_OTHERS_DB: Final = (7.0, 7.0, 5.5, 4.0)
LEAST_SOFTER_DB, MOST_SOFTER_DB = 2.0, 8.0
"""A voice that is louder than the others' mean by this, by `SOFTER_MS`, may be the user, within
these bounds below the user's level: a few words may be loud, a sentence is not. Source:
docs/log/conversation.md."""


class UserVoice:
    """The level of one microphone's user. Powers are relative to full scale, per half window."""

    def __init__(self, half_s: float) -> None:
        self._half_s = half_s
        self._powers: deque[float] = deque(maxlen=round(LAST_S / half_s))
        self._fresh = 0
        """Number of half windows of speech that were learnt in this turn."""
        self._usual: float | None = None
        """Power of the user; None: to be computed."""
        self._stretch: list[float] = []
        self._stretches: deque[tuple[float, float]] = deque(maxlen=OTHERS_LAST)
        """Power and milliseconds of the last stretches, of any speaker."""

    def begin_turn(self) -> None:
        """What is learnt now may be another person's turn."""
        self._fresh = 0

    def learn(self, power: float) -> None:
        """Learn from half a window of speech while nothing was played."""
        self._powers.append(power)
        self._fresh += 1
        if self._fresh == math.ceil(KNOWN_S / self._half_s):
            # Earlier turns do not count any more.
            while len(self._powers) > self._fresh:
                self._powers.popleft()
        self._usual = None
        self._stretch.append(power)
        if len(self._stretch) * self._half_s >= STRETCH_S:
            self._stretches.append((float(np.mean(self._stretch)), 1000 * STRETCH_S))
            self._stretch = []

    def end(self, power: float, speech_ms: float, *, is_user: bool) -> None:
        """Note the end of speech during an answer, of `speech_ms` with this mean power."""
        if not is_user and speech_ms >= OTHERS_LEAST_MS:
            self._stretches.append((power, speech_ms))

    def may_be(self, power: float, speech_ms: float, *, unknown: bool = True) -> bool:
        """True if a person who has spoken for `speech_ms` with this mean power may be the user;
        `unknown` if no level is known yet."""
        if len(self._powers) * self._half_s < KNOWN_S:
            return unknown
        return self._above_db(power) >= -float(np.interp(speech_ms, SOFTER_MS, self._softer_db))

    @property
    def _softer_db(self) -> Sequence[float]:
        """By `SOFTER_MS`, the difference by which the user may be softer."""
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
