"""No silence without a reason: reports why nothing happens when the user has waited for long.

One reason at a time; while it lasts it is sent again after twice the time, at most every
`MOST_S`. Source: docs/protocols/README.md, "Why nothing comes".
"""

from __future__ import annotations

from typing import Final

from parley import logs
from parley.dialects.events import SilenceExplained
from parley.protocol.values import SilenceReason
from parley.session.session import Session

DEADLINE: Final = "silence_explained"
MODEL_S: Final = 2.0
"""A model that has said nothing for this long keeps the user waiting."""
SPEECH_S: Final = 10.0
"""Speech of this length may be a noise that the detector takes for it."""
LATE_EVERY_S: Final = 10.0
"""Late units are reported at most this often."""
MOST_S: Final = 30.0

_log = logs.get(__name__)


class SilenceWatch:
    """Follows why one conversation is silent. Its deadline, `DEADLINE`, is the session's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reason: SilenceReason | None = None
        self._since_s = 0.0
        self._after_s = 0.0
        self._told_late_s: float | None = None

    def begin(self, reason: SilenceReason, after_s: float) -> None:
        """From now on nothing comes for this reason, which is sent after `after_s`."""
        self._reason = reason
        self._since_s = self._session.clock.monotonic()
        self._after_s = after_s
        self._session.deadlines.set(DEADLINE, self._since_s + after_s)

    def end(self) -> None:
        """Something comes, or nothing is waited for. Safe to repeat."""
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
        """A unit came later than it was due."""
        now_s = self._session.clock.monotonic()
        if self._told_late_s is not None and now_s - self._told_late_s < LATE_EVERY_S:
            return
        self._told_late_s = now_s
        self.report("unit_late", late_s)

    def report(self, reason: SilenceReason, elapsed_s: float = 0.0) -> None:
        """Say it now."""
        elapsed_ms = round(1000 * elapsed_s)
        _log.info("silence_explained", reason=reason, elapsed_ms=elapsed_ms)
        self._session.emit(SilenceExplained(reason, elapsed_ms))
