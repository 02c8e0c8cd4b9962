"""Computes how much of an answer the client has played, from what was sent and when, and from the
client's playback reports. Pure, except for the clock that it is given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from parley.clock import Clock
from parley.protocol.values import PlaybackReport
from parley.session_log.items import heard_part

ARRIVED_S: Final = 2.0
"""Age after which sent audio has arrived or never will."""

RECENT_S: Final = 1.0
"""Of the reports within this time, the earliest one is the most accurate, because a network only
adds delay."""

LATEST_S: Final = 5.0
"""Maximum delay of a client behind the computed playback: the server waits no longer."""


IN_FLIGHT_MS: Final = 5.0
"""Smaller differences are due to buffering in a codec."""


@dataclass(frozen=True, slots=True)
class _Report:
    """A client's playback report.

    Args:
        at_s: time of the report.
        ends_s: time at which playback will end, assuming that audio in flight arrives now.
        is_whole: True if nothing was in flight.
    """

    at_s: float
    ends_s: float
    is_whole: bool


class Playback:
    """One conversation's loudspeaker.

    If a client sends no reports, it is assumed to play immediately and without gaps, even audio
    that arrives faster than real time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ends_s = 0.0
        """Monotonic time at which the last sample sent will have been played."""
        self._computed_s = 0.0
        """The same, without regard to the client's reports."""
        self._sent_ms = 0.0
        self._text = ""
        self._all_ms = 0.0
        """Milliseconds of audio sent, of all answers."""
        self._lost_ms = 0.0
        """The part of that which the client will never report: a codec may buffer or add some
        milliseconds."""
        self._last_sent_s = 0.0
        self._reports: deque[_Report] = deque()
        """The client's recent reports."""
        self._is_cut = False
        self.unheard_chars = 0
        """Part of an interrupted answer's text that was sent but not heard."""

    def begin(self) -> None:
        self._sent_ms, self._text = 0.0, ""

    def send(self, text: str, duration_ms: float) -> float:
        """The next piece of the answer; returns when its playback starts (monotonic)."""
        self._text += text
        now_s = self._clock.monotonic()
        starts_s = max(self.ends_s, now_s)
        if duration_ms:
            self._sent_ms += duration_ms
            self._all_ms += duration_ms
            self._last_sent_s, self._is_cut = now_s, False
            self.ends_s = starts_s + duration_ms / 1000
            self._computed_s = max(self._computed_s, now_s) + duration_ms / 1000
            self._reports = deque(
                replace(each, ends_s=each.ends_s + duration_ms / 1000)
                for each in self._reports
                if each.ends_s > now_s
            )
        return starts_s

    def unsend(self, duration_ms: float) -> None:
        """Uncount audio that was counted but will not be sent."""
        self._all_ms -= duration_ms

    def report(self, report: PlaybackReport) -> float:
        """Process a report; returns by how many seconds playback is later than assumed."""
        now_s = self._clock.monotonic()
        if self._is_cut:
            # The client may have sent this before it had to discard its audio.
            return 0.0
        if now_s - self._last_sent_s >= ARRIVED_S:
            self._lost_ms = self._all_ms - report.received_ms
        in_flight_ms = max(0.0, self._all_ms - self._lost_ms - report.received_ms)
        ends_s = now_s + (in_flight_ms + report.buffered_ms) / 1000
        self._reports.append(_Report(now_s, ends_s, in_flight_ms < IN_FLIGHT_MS))
        while now_s - self._reports[0].at_s > RECENT_S:
            self._reports.popleft()
        # The arrival of audio in flight is unknown: such a report is used only if there is no
        # other.
        known = [one.ends_s for one in self._reports if one.is_whole]
        ends_s = max(now_s, min(known or [one.ends_s for one in self._reports]))
        # If playback is over, it does not matter for how long.
        before_s = max(self.ends_s, now_s)
        self.ends_s = min(ends_s, max(now_s, self._computed_s + LATEST_S))
        return self.ends_s - before_s

    def cut(self) -> None:
        """The client discards the audio that it has not played."""
        sent_chars = len(self._text)
        self._sent_ms, self._text = self.heard()
        self.unheard_chars = sent_chars - len(self._text)
        self.ends_s = self._computed_s = self._clock.monotonic()
        self._is_cut = True
        self._reports.clear()

    @property
    def is_heard(self) -> bool:
        """True if something is being played now."""
        return self._clock.monotonic() < self.ends_s

    def heard(self) -> tuple[int, str]:
        """Milliseconds of the answer that have been played, and their text in whole words.

        The text is assumed to be spread evenly over the audio. Without audio, all text counts as
        read.
        """
        left_ms = 1000 * max(0.0, self.ends_s - self._clock.monotonic())
        heard_ms = max(0.0, self._sent_ms - left_ms)
        if not self._sent_ms or heard_ms >= self._sent_ms:
            return round(heard_ms), self._text
        return round(heard_ms), heard_part(self._text, heard_ms / self._sent_ms)
