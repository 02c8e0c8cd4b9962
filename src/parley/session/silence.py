"""Reports the reason if nothing happens for a long time while the user waits.

There is one reason at a time. While it lasts, it is sent again, each time after twice the interval,
up to `MOST_S`. Source: docs/protocols/README.md, "Delays".
"""

from __future__ import annotations

from typing import Final

from parley import logs
from parley.dialects.events import SilenceExplained
from parley.protocol.values import SilenceReason
from parley.session.session import Session

DEADLINE: Final = "silence_explained"
MODEL_S: Final = 2.0
"""Time without output after which the model counts as slow."""
SPEECH_S: Final = 10.0
"""Speech of this length may be a noise that the detector mistakes for speech."""
LATE_EVERY_S: Final = 10.0
"""Minimum interval between reports of late units."""
MOST_S: Final = 30.0

_log = logs.get(__name__)


class SilenceWatch:
    """Tracks why one conversation is silent. Its deadline, `DEADLINE`, is one of the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reason: SilenceReason | None = None
        self._since_s = 0.0
        self._after_s = 0.0
        self._told_late_s: float | None = None

    def begin(self, reason: SilenceReason, after_s: float) -> None:
        """From now on the client waits for this reason, which is sent after `after_s`."""
        self._reason = reason
        self._since_s = self._session.clock.monotonic()
        self._after_s = after_s
        self._session.deadlines.set(DEADLINE, self._since_s + after_s)

    def end(self) -> None:
        """There is output, or the client is not waiting. Safe to repeat."""
        self._reason = None
        self._session.deadlines.clear(DEADLINE)

    def expire(self) -> None:
        if self._reason is None:
            return
        now_s = self._session.clock.monotonic()
        self.report(self._reason, now_s - self._since_s)
        self._after_s = min(2 * self._after_s, MOST_S)
        self._session.deadlines.set(DEADLINE, now_s + self._after_s)

    def late(self, late_s: float) -> None:
        """A unit was late."""
        now_s = self._session.clock.monotonic()
        if self._told_late_s is not None and now_s - self._told_late_s < LATE_EVERY_S:
            return
        self._told_late_s = now_s
        self.report("unit_late", late_s)

    def report(self, reason: SilenceReason, elapsed_s: float = 0.0) -> None:
        """Send the reason now."""
        elapsed_ms = round(1000 * elapsed_s)
        _log.info("silence_explained", reason=reason, elapsed_ms=elapsed_ms)
        self._session.emit(SilenceExplained(reason, elapsed_ms))
