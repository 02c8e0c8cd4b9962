"""How loud is the user? Learned from their last speech while nothing was played.

A person at their own microphone is 10 to 20 dB louder than a television across the room or a
person in the next one. So a speaker who is much softer than the user whose turn is being answered
does not interrupt the answer. The last speaker is the user: people who take turns at one microphone
are each heard in their turn and may interrupt the answer to it, and so may anyone who is about as
loud or louder. While nothing is known, anyone may.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np

KNOWN_S: Final = 0.8
"""So much speech has to be heard before its level counts."""

LAST_S: Final = 3.0
"""The level is that of the last speech of so long."""

SOFTER_DB: Final = ((0.0, 6.0), (250.0, 4.5), (800.0, 4.5), (1600.0, 6.0))
"""By milliseconds of speech: who is softer by more is not the user. On recordings of five people,
each in another sentence than the one learnt from, one in 100 is softer than by 3 dB after 0.25 s
and by 1.8 dB after 0.8 s; of voices 10 dB softer one in 100 is louder than by -5.8 and -7.6. Words
begin softly; and who speaks on and on is heard if it may just be the user who has moved away."""


class UserVoice:
    """The level of one microphone's user. Powers are of full scale, per half of a window."""

    def __init__(self, half_s: float) -> None:
        self._half_s = half_s
        self._powers: deque[float] = deque(maxlen=round(LAST_S / half_s))
        self._best: float | None = None

    def learn(self, power: float) -> None:
        """Half a window of speech while nothing was played."""
        self._powers.append(power)
        self._best = None

    @property
    def is_known(self) -> bool:
        """True if enough has been heard."""
        return len(self._powers) * self._half_s >= KNOWN_S

    def may_be(self, power: float, speech_ms: float) -> bool:
        """True if a person who has spoken for `speech_ms` with this mean power may be the user."""
        if not self.is_known:
            return True
        if self._best is None:
            self._best = sum(self._powers) / len(self._powers)
        times_ms, levels_db = zip(*SOFTER_DB, strict=True)
        softer = float(np.interp(speech_ms, np.array(times_ms), np.array(levels_db)))
        return 10 * math.log10(max(power, 1e-12) / max(self._best, 1e-12)) >= -softer
