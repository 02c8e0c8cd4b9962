"""Deadlines of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

RESUME: Final = "resume"
"""The deadline by which a client that was cut off has to be back; the only one that runs while the
session's clock is stopped."""

GOING_AWAY: Final = "going away"
"""When the client is warned that the session will soon reach its longest time."""
LAST: Final = ("session", "total")
"""Deadlines that end a session, whatever happens in it."""
AWAY_LEAD_S: Final = 60.0
"""Lead time of the warning. Source: Gemini Live's `goAway` comes about that early."""


class Deadlines:
    """Deadlines by name. Pure: it reads no clock.

    The session's clock may be stopped (`stop`, `go`): meanwhile nothing is due but `RESUME`, and
    afterwards everything is due that much later.
    """

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._stopped_s: float | None = None
        self.changed: Callable[[], None] = lambda: None
        """Called when something may be due sooner than `awaited_s`."""
        self.awaited_s: float | None = None
        """When the task that waits looks again by itself; None: only when `changed` is called."""

    def set(self, name: str, due_s: float) -> None:
        """Set or move a deadline; `due_s` in monotonic seconds."""
        self._due_s[name] = due_s
        # One that moves away is noticed when it would have been due: sound moves one with every
        # message, and the task need not wake for each of them.
        if self.awaited_s is None or due_s < self.awaited_s:
            self.changed()

    def clear(self, *names: str) -> None:
        """Forget deadlines; unknown names are fine."""
        for name in names:
            self._due_s.pop(name, None)

    def get(self, name: str) -> float | None:
        """When it is due, if it is set."""
        return self._due_s.get(name)

    def left_s(self, now_s: float) -> dict[str, float]:
        """Time until each is due, on the session's clock."""
        since_s = now_s if self._stopped_s is None else self._stopped_s
        return {name: due_s - since_s for name, due_s in self._due_s.items() if name != RESUME}

    def restore(self, left_s: dict[str, float], now_s: float) -> None:
        """Set those of another worker's session."""
        for name, seconds in left_s.items():
            self.set(name, now_s + seconds)

    def warn_of_the_last(self, now_s: float) -> None:
        """Set `GOING_AWAY` for the one that ends the session."""
        due_s = self.last_due_s()
        if due_s is not None:
            self.set(GOING_AWAY, max(now_s, due_s - AWAY_LEAD_S))

    def last_due_s(self) -> float | None:
        """When the session ends, whatever happens in it; None: it may last for ever."""
        return min((self._due_s[name] for name in LAST if name in self._due_s), default=None)

    def next_due_s(self) -> float | None:
        return min(self._running().values(), default=None)

    def take_expired(self, now_s: float) -> list[str]:
        """Remove and name those that have passed, earliest first."""
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
        """Let the clock run on. Safe to repeat."""
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
