"""How loud is the user? Learnt from what they said last while nothing was played.

A person at their own microphone is 10 to 20 dB louder than a television across the room, or than
somebody in the next one. So whoever speaks into an answer much more softly than the one it is for
does not interrupt it. Whoever spoke last counts: several people who take turns at one microphone
are each heard in their turn, and may interrupt the answer to it; so may everybody who is about as
loud, or louder. While nothing is known, everybody may.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

KNOWN_S: Final = 0.8
"""So much speech has to be heard before its level counts."""

LAST_S: Final = 3.0
"""The level is that of the last speech of so long."""

SOFTER_DB: Final = 6.0
"""Who is softer by more is somebody else. Readers vary by 2 to 3 dB from sentence to sentence."""

SOFTER_AT_FIRST_DB: Final = 8.0
"""The same in the first `AT_FIRST_MS` of a speech: words begin softly."""

AT_FIRST_MS: Final = 250


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
        """True if somebody who has spoken for so long, with this mean power, may be the user."""
        if not self.is_known:
            return True
        if self._best is None:
            self._best = sum(self._powers) / len(self._powers)
        softer = SOFTER_AT_FIRST_DB if speech_ms < AT_FIRST_MS else SOFTER_DB
        return 10 * math.log10(max(power, 1e-12) / max(self._best, 1e-12)) >= -softer
