"""Deadlines of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

RESUME: Final = "resume"
"""The deadline by which a client that was cut off has to return; the only one that runs while the
session's clock is stopped."""

GOING_AWAY: Final = "going away"
"""The deadline at which the client is warned that the session will soon reach its maximum
length."""
LAST: Final = ("session", "total")
"""Deadlines that end a session unconditionally."""
SILENT: Final = ("setup", "idle", "silence")
"""Deadlines by which the client must have sent something."""
AWAY_LEAD_S: Final = 60.0
"""Lead time of the warning. Source: Gemini Live's `goAway` is sent about this early."""


class Deadlines:
    """Deadlines by name. Pure: it reads no clock.

    The session's clock may be stopped (`stop`, `go`): meanwhile only `RESUME` can be due, and
    afterwards all other deadlines are due that much later.
    """

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._stopped_s: float | None = None
        self.changed: Callable[[], None] = lambda: None
        """Called when a deadline may be due sooner than `awaited_s`."""
        self.awaited_s: float | None = None
        """Time at which the waiting task checks again by itself; None: only when `changed` is
        called."""

    def set(self, name: str, due_s: float) -> None:
        """Set or move a deadline; `due_s` in monotonic seconds."""
        self._due_s[name] = due_s
        # A deadline that moves away is noticed at its old time: audio moves one with every
        # message, and the task need not wake for each of them.
        if self.awaited_s is None or due_s < self.awaited_s:
            self.changed()

    def clear(self, *names: str) -> None:
        """Remove deadlines; unknown names are ignored."""
        for name in names:
            self._due_s.pop(name, None)

    def get(self, name: str) -> float | None:
        """The time at which a deadline is due, if it is set."""
        return self._due_s.get(name)

    def left_s(self, now_s: float) -> dict[str, float]:
        """Time until each deadline is due, on the session's clock."""
        since_s = now_s if self._stopped_s is None else self._stopped_s
        return {name: due_s - since_s for name, due_s in self._due_s.items() if name != RESUME}

    def restore(self, left_s: dict[str, float], now_s: float) -> None:
        """Set the deadlines of another worker's session."""
        for name, seconds in left_s.items():
            self.set(name, now_s + seconds)

    def warn_of_the_last(self, now_s: float) -> None:
        """Set `GOING_AWAY` for the deadline that ends the session."""
        due_s = self.last_due_s()
        if due_s is not None:
            self.set(GOING_AWAY, max(now_s, due_s - AWAY_LEAD_S))

    def last_due_s(self) -> float | None:
        """The time at which the session ends unconditionally; None: it has no maximum length."""
        return min((self._due_s[name] for name in LAST if name in self._due_s), default=None)

    def next_due_s(self) -> float | None:
        return min(self._running().values(), default=None)

    def take_expired(self, now_s: float) -> list[str]:
        """Remove the deadlines that have passed; returns their names, earliest first."""
        passed = sorted((due, name) for name, due in self._running().items() if due <= now_s)
        for _, name in passed:
            del self._due_s[name]
        return [name for _, name in passed]

    def stop(self, now_s: float) -> None:
        """Stop the clock. Safe to repeat."""
        if self._stopped_s is None:
            self._stopped_s = now_s
            self.changed()

    def go(self, now_s: float) -> None:
        """Restart the clock. Safe to repeat."""
        if self._stopped_s is None:
            return
        late_s, self._stopped_s = max(0.0, now_s - self._stopped_s), None
        for name in self._due_s:
            if name != RESUME:
                self._due_s[name] += late_s
        self.changed()

    def _running(self) -> dict[str, float]:
        if self._stopped_s is None:
            return self._due_s
        return {name: due_s for name, due_s in self._due_s.items() if name == RESUME}
