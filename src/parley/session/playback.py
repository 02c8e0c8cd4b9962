"""How much of an answer the client has played: computed from what was sent, when, and the client's
playback reports. Pure, except for the clock it is given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from parley.clock import Clock
from parley.protocol.values import PlaybackReport

ARRIVED_S: Final = 2.0
"""Age after which sent sound has arrived or never will."""

RECENT_S: Final = 1.0
"""Of what a client says in this time, the soonest is the truest: a network only delays it."""

LATEST_S: Final = 5.0
"""A client cannot play later than this behind what was computed: the server waits no longer."""


IN_FLIGHT_MS: Final = 5.0
"""Less than this is what a coding holds back."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A client's playback report.

    Args:
        at_s: when.
        ends_s: when all will have been played, if what was in flight arrived now.
        is_whole: nothing was in flight.
    """

    at_s: float
    ends_s: float
    is_whole: bool


class Playback:
    """One conversation's loudspeaker.

    A client that reports nothing is taken to play immediately and without gaps, also what it
    receives faster than it can be heard.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ends_s = 0.0
        """When the last sample sent has been played (monotonic)."""
        self._computed_s = 0.0
        """The same, whatever the client says."""
        self._sent_ms = 0.0
        self._text = ""
        self._all_ms = 0.0
        """Of all answers."""
        self._lost_ms = 0.0
        """Of that, what the client will never count: a coding may hold some milliseconds back, or
        add some."""
        self._last_sent_s = 0.0
        self._told: deque[_Told] = deque()
        """The client's recent reports."""
        self._is_cut = False
        self.unheard_chars = 0
        """Of the text of an answer that was cut: what was sent and not heard."""

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
            self._told = deque(
                replace(told, ends_s=told.ends_s + duration_ms / 1000)
                for told in self._told
                if told.ends_s > now_s
            )
        return starts_s

    def unsend(self, duration_ms: float) -> None:
        """So much of what was counted is not sent after all."""
        self._all_ms -= duration_ms

    def report(self, told: PlaybackReport) -> float:
        """Takes a report; returns by how many seconds the client plays later than was known."""
        now_s = self._clock.monotonic()
        if self._is_cut:
            # The client may have said so before it had to discard what it has.
            return 0.0
        if now_s - self._last_sent_s >= ARRIVED_S:
            self._lost_ms = self._all_ms - told.received_ms
        in_flight_ms = max(0.0, self._all_ms - self._lost_ms - told.received_ms)
        ends_s = now_s + (in_flight_ms + told.buffered_ms) / 1000
        self._told.append(_Told(now_s, ends_s, in_flight_ms < IN_FLIGHT_MS))
        while now_s - self._told[0].at_s > RECENT_S:
            self._told.popleft()
        # When sound in flight arrives is unknown: it counts if nothing else is known.
        known = [one.ends_s for one in self._told if one.is_whole]
        ends_s = max(now_s, min(known or [one.ends_s for one in self._told]))
        # What is over is over, however long ago.
        before_s = max(self.ends_s, now_s)
        self.ends_s = min(ends_s, max(now_s, self._computed_s + LATEST_S))
        return self.ends_s - before_s

    def cut(self) -> None:
        """The client throws away what it has not played."""
        sent_chars = len(self._text)
        self._sent_ms, self._text = self.heard()
        self.unheard_chars = sent_chars - len(self._text)
        self.ends_s = self._computed_s = self._clock.monotonic()
        self._is_cut = True
        self._told.clear()

    @property
    def is_heard(self) -> bool:
        """True if something is being played now."""
        return self._clock.monotonic() < self.ends_s

    def heard(self) -> tuple[int, str]:
        """Milliseconds of the answer that have been played, and their text, to whole words.

        Text is taken to be spread evenly over the sound. Without sound, all text has been read.
        """
        left_ms = 1000 * max(0.0, self.ends_s - self._clock.monotonic())
        heard_ms = max(0.0, self._sent_ms - left_ms)
        if not self._sent_ms or heard_ms >= self._sent_ms:
            return round(heard_ms), self._text
        most = round(len(self._text) * heard_ms / self._sent_ms)
        text = self._text[:most]
        if most < len(self._text) and not self._text[most].isspace() and " " in self._text:
            text = text[: text.rfind(" ") + 1]
        return round(heard_ms), text.rstrip()
