"""Distinguishes audio that arrives late from audio that arrives as it is spoken.

After a lost connection, a client sends the audio that was recorded meanwhile; the same happens
after a network, gateway or worker was blocked. In all cases nothing arrives for a while, and then
audio arrives faster than it can be spoken. Reads only the clock.
"""

from __future__ import annotations

from typing import Final

from parley.clock import Clock

STOOD_STILL_S: Final = 1.0
"""If nothing arrives for this time, something was blocked, or the client had no audio."""

CATCH_UP_S: Final = 5.0
"""Minimum time allowed for the audio of a gap to arrive."""

REAL_TIME_S: Final = 0.5
"""After this time, a client that is hardly ahead of real time has caught up."""

JITTER_S: Final = 0.25
"""A client whose first message was late may be this far ahead of real time with the next ones."""

LATE_LIMIT_S: Final = 120.0
"""Maximum length of late audio from one gap; it waits in memory."""


class Arrivals:
    """Arrival times of one client's audio."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s: float | None = None
        self._gap_s = 0.0
        self._began_s = float("-inf")
        """Monotonic time at which the gap ended."""
        self._left_s = self._heard_s = self._heard_since_s = 0.0
        """Seconds of audio from the gap that have not arrived, seconds that have arrived since, and
        since when."""
        self.restored_s = 0.0
        """Seconds of audio that waited at another worker, which count as the first of the next
        gap."""
        self._waited_s = 0.0
        """The same, of this gap."""

    def end_gap(self, seconds: float) -> None:
        """The client was away for this time. Audio that is missing from an earlier gap is still
        expected."""
        self._gap_s = self._left_s = min(max(seconds, self._left_s), LATE_LIMIT_S)
        self._began_s, self._heard_s = self._clock.monotonic(), 0.0
        self._waited_s, self.restored_s = self.restored_s, 0.0

    @property
    def has_backlog(self) -> bool:
        """True if audio from a gap is still expected."""
        return self._left_s > 0

    @property
    def backlog_s(self) -> float:
        """Seconds of audio that may wait, because they are from a gap and arrived faster than real
        time. 0 a while after the gap."""
        now_s = self._clock.monotonic()
        if now_s - self._began_s > max(self._gap_s, CATCH_UP_S):
            return 0.0
        heard_s = self._waited_s + self._heard_s
        early_s = min(self._gap_s, heard_s - (now_s - self._heard_since_s))
        # The model may take a while to start with the received audio.
        return early_s + CATCH_UP_S if early_s >= STOOD_STILL_S else 0.0

    def is_late(self, seconds: float) -> bool:
        """The next `seconds` of audio have arrived. Returns True if they are from a gap: audio of a
        gap arrives first, and faster than real time."""
        now_s = self._clock.monotonic()
        if self._last_s is not None:
            gap_s = now_s - self._last_s - seconds
            if gap_s >= STOOD_STILL_S:
                # The first audio after `end_gap` shows the same gap again; later ones, another.
                self.end_gap(gap_s + (self._left_s if self._heard_s else 0.0))
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
