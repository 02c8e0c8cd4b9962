"""Distinguishes audio that arrives late from audio that arrives as it is spoken.

After a lost connection, a client sends what was said meanwhile; the same happens after a network,
gateway or worker stood still. In all cases nothing arrives for a while, and then audio arrives
faster than it can be spoken. Reads only the clock.
"""

from __future__ import annotations

from typing import Final

from parley.clock import Clock

STOOD_STILL_S: Final = 1.0
"""Nothing for so long, and something stood still, or the client had nothing to say."""

CATCH_UP_S: Final = 5.0
"""Shortest time allowed for speech of a gap to arrive."""

REAL_TIME_S: Final = 0.5
"""After this long, a client that is hardly ahead of time has nothing to catch up."""

JITTER_S: Final = 0.25
"""A client whose first message was late is so far ahead of time with the next ones."""

LATE_LIMIT_S: Final = 120.0
"""Of what was said in a gap, so much may come late; it waits in memory."""


class Arrivals:
    """When the sound of one client came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s: float | None = None
        self._gap_s = 0.0
        self._began_s = float("-inf")
        """When the gap ended."""
        self._left_s = self._heard_s = self._heard_since_s = 0.0
        """Sound said in the gap that has not come, what has come since, and since when."""

    def end_gap(self, seconds: float) -> None:
        """The client was away for so long; what is left of an earlier gap still comes."""
        self._gap_s = self._left_s = min(max(seconds, self._left_s), LATE_LIMIT_S)
        self._began_s, self._heard_s = self._clock.monotonic(), 0.0

    @property
    def has_backlog(self) -> bool:
        """True if not all has come that was said in a gap."""
        return self._left_s > 0

    @property
    def backlog_s(self) -> float:
        """Seconds of sound that may wait, because they were said in a gap and have come faster than
        in real time. For a while after it; else 0."""
        now_s = self._clock.monotonic()
        if now_s - self._began_s > max(self._gap_s, CATCH_UP_S):
            return 0.0
        early_s = min(self._gap_s, self._heard_s - (now_s - self._heard_since_s))
        # The model may take a while to start on the received sound.
        return early_s + CATCH_UP_S if early_s >= STOOD_STILL_S else 0.0

    def is_late(self, seconds: float) -> bool:
        """The next `seconds` of sound have come; True if they were said in a gap: as much as that
        comes first, and faster than it was said."""
        now_s = self._clock.monotonic()
        if self._last_s is not None:
            gap_s = now_s - self._last_s - seconds
            if gap_s >= STOOD_STILL_S and gap_s > self._left_s:
                self.end_gap(gap_s)
        self._last_s = now_s
        if not self._heard_s:
            self._heard_since_s = now_s
        past_s = now_s - self._heard_since_s
        if past_s > REAL_TIME_S and self._heard_s < past_s + JITTER_S:
            self._left_s = 0.0
        self._heard_s += seconds
        is_late = self._left_s > 0
        self._left_s -= seconds
        return is_late
