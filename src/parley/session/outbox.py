"""Queue of a session's messages to its client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from parley.errors import SlowClient

SLOWEST_BYTES_PER_S = 131_072
"""A client that reads at least this fast is not considered stalled, even by a very large
message."""

LEAD_S: Final = 0.2
"""Maximum audio that a client may have ahead of playback; longer than the usual delay of a
network."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of the messages that wait for a client that does not read."""

    waiting_bytes: int
    stall_s: float

    def send_s(self, size: int) -> float:
        """Time limit for one message of `size` bytes."""
        return self.stall_s + size / SLOWEST_BYTES_PER_S


class Outbox:
    """Messages to one client, in order.

    `SlowClient` is raised if the queue is full (more than `waiting_bytes` behind the message that
    is being sent) or stalled (one message takes longer than a reading client needs). If nothing
    waits, a message of any size is accepted.
    """

    def __init__(self, limits: OutputLimits) -> None:
        self._limits = limits
        self.waiting: deque[tuple[str | bytes, float | None]] = deque()
        """Messages; those of an answer, which an interruption drops, with the milliseconds of their
        audio. Read-only for others."""
        self._waiting_bytes = 0
        self._last_bytes = 0
        self._changed = asyncio.Event()
        self._sent = asyncio.Event()
        self._is_closed = False

    def put(self, frames: Sequence[str | bytes], *, output_ms: float | None = None) -> None:
        """Queue messages.

        Args:
            output_ms: milliseconds of audio in them; set if they are part of an answer, which may
                be interrupted.

        Raises:
            SlowClient: too much is already waiting; these messages are not queued.
        """
        size = sum(map(len, frames))
        if self.waiting and self._waiting_bytes + size > self._limits.waiting_bytes:
            raise SlowClient
        each_ms = None if output_ms is None else output_ms / max(1, len(frames))
        self.waiting.extend((frame, each_ms) for frame in frames)
        self._waiting_bytes += size
        self._changed.set()

    def drop_output(self) -> float:
        """Drop the waiting messages of an answer; returns the milliseconds of audio in them."""
        dropped_ms = sum(output_ms for _, output_ms in self.waiting if output_ms is not None)
        self.waiting = deque(item for item in self.waiting if item[1] is None)
        self._waiting_bytes = sum(len(frame) for frame, _ in self.waiting)
        self._sent.set()
        return dropped_ms

    async def room(self) -> None:
        """Let the queued messages be sent, and wait until the queue is at most half full. For
        runners that generate faster than a client reads, who would otherwise be disconnected."""
        await asyncio.sleep(0)
        while self.waiting and self._waiting_bytes > self._limits.waiting_bytes // 2:
            self._sent.clear()
            await self._sent.wait()

    def close(self) -> None:
        """End the queue: `pump` returns once the rest is sent. Safe to repeat."""
        self._is_closed = True
        self._changed.set()

    @property
    def patience_s(self) -> float:
        """Time in which a client that reads should have received everything queued and in
        flight."""
        return self._limits.stall_s + (self._waiting_bytes + self._last_bytes) / SLOWEST_BYTES_PER_S

    async def pump(self, send: Callable[[str | bytes], Awaitable[None]]) -> None:
        """Send until closed and empty. `send` must raise `TimeoutError` if a message is not read in
        time.

        Raises:
            SlowClient: a message was not read in time.
            Disconnected: from `send`.
        """
        while True:
            while self.waiting:
                frame, _ = self.waiting.popleft()
                self._waiting_bytes -= len(frame)
                self._last_bytes = len(frame)
                try:
                    await send(frame)
                except TimeoutError as error:
                    raise SlowClient from error
                self._sent.set()
            if self._is_closed:
                return
            self._changed.clear()
            await self._changed.wait()


class PacedOutput:
    """Paces audio for clients that cannot discard it: it is sent when it is to be played.

    Such a client plays all audio that it has received, even if the answer is interrupted, so it
    never has more than `LEAD_S`. Pure: it reads no clock. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[float, str | bytes, float]] = deque()
        """Due times, messages, and the milliseconds of their audio."""
        self._ends_s = 0.0

    def put(self, frames: Sequence[str | bytes], sound_ms: Sequence[float], now_s: float) -> None:
        """Add messages, each with the milliseconds of its audio."""
        for frame, duration_ms in zip(frames, sound_ms, strict=True):
            starts_s = max(self._ends_s, now_s)
            self.waiting.append((starts_s - LEAD_S, frame, duration_ms))
            self._ends_s = starts_s + duration_ms / 1000

    @property
    def next_due_s(self) -> float | None:
        """The time at which the next message is due; None if none waits."""
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
        """Drop all waiting messages; returns the milliseconds of their audio."""
        dropped_ms = sum(duration_ms for _, _, duration_ms in self.waiting)
        self.waiting.clear()
        self._ends_s = now_s
        return dropped_ms
