"""Sound that is sent when it is to be played, to clients that cannot discard it.

Whatever such a client has when an answer is interrupted it plays to the end, so it never has more
than `LEAD_S`. Pure: it reads no clock. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

LEAD_S: Final = 0.2
"""How far ahead of playback a client may be: more than the usual lateness of a network."""


class PacedOutput:
    """Messages that wait for their time, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[float, str | bytes, float]] = deque()
        """When they are due, and the milliseconds of their sound."""
        self._ends_s = 0.0

    def put(self, frames: Sequence[str | bytes], sound_ms: Sequence[float], now_s: float) -> None:
        """Add messages, each with the milliseconds of its sound."""
        for frame, duration_ms in zip(frames, sound_ms, strict=True):
            starts_s = max(self._ends_s, now_s)
            self.waiting.append((starts_s - LEAD_S, frame, duration_ms))
            self._ends_s = starts_s + duration_ms / 1000

    @property
    def next_due_s(self) -> float | None:
        """When the next one is due; None: none waits."""
        return self.waiting[0][0] if self.waiting else None

    def take_due(self, now_s: float) -> list[str | bytes]:
        due: list[str | bytes] = []
        while self.waiting and self.waiting[0][0] <= now_s:
            due.append(self.waiting.popleft()[1])
        return due

    def take_all(self) -> list[str | bytes]:
        frames = [frame for _, frame, _ in self.waiting]
        self.waiting.clear()
        return frames

    def drop(self, now_s: float) -> float:
        """Forget them: nothing more is played. Returns the milliseconds of their sound."""
        dropped_ms = sum(duration_ms for _, _, duration_ms in self.waiting)
        self.waiting.clear()
        self._ends_s = now_s
        return dropped_ms
