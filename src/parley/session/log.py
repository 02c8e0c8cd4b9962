"""The log of one session: its entries, its messages to the client, and its state.

*Entries* (inputs and their results) and numbered *messages* to the client are append-only. The
*state* is everything else that the session must remember; an update contains the parts that have
changed. The client's connection reads the messages (`tail`), each once the update with it is
stored; another worker reads everything that is stored (`worker/rebuilding.py`). One update is in
flight at a time, with everything that is new. While there is nothing to send, the state is updated
at intervals.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Final

from parley import logs
from parley.clock import Backoff, Clock
from parley.protocol.resume import INPUT_ACK_EVERY
from parley.session_log import state_codec
from parley.session_log.contract import (
    ENTRY_LENGTH_BYTES,
    AppendResult,
    LogUpdate,
    SessionLogWriter,
    StoredOutput,
    framed,
    split_entries,
)
from parley.session_log.entries import Observed, logged

RETRY_S: Final = 0.01
"""Interval at which a session is asked again if it could not report its state."""
CURRENT_S: Final = 5.0
"""Time for which a returning client waits until the log is current; shorter than the time that it
waits for an answer."""
LATE_S: Final = 2.0
"""Maximum time for which a message waits for its update. A backend that hangs must not block a
conversation; until it answers, the session is unprotected."""
REOPEN_S: Final = 1.0
"""Delay before an update is retried that the backend did not accept."""
REFUSED_S: Final = 30.0
"""Maximum delay while it refuses updates: each retry sends it the whole log."""
QUIET_S: Final = 1.0
"""Minimum interval between updates of the state while there is nothing to send."""

COMPACT_BYTES: Final = 2 << 20
COMPACT_GROWTH: Final = 1.25
"""A log of this size (a minute of audio at 16 kHz) is compacted: audio that is no longer needed is
dropped. This is repeated when it has grown by this size and this factor."""
COMPACT_TAIL: Final = 64
"""Number of newest entries that the next compaction examines again."""

_log = logs.get(__name__)


class LogLate(Exception):
    """The log is not current in time."""


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """Limits of the messages that are kept for a client that may return.

    Args:
        limit_bytes: delivered messages beyond it are dropped, oldest first.
        limit_s: older messages count as received, even without an acknowledgement.
    """

    limit_bytes: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Output:
    """A message to the client. `ends_at`: total bytes of the session's messages up to the end of
    this one."""

    seq: int
    frame: str | bytes
    at_s: float
    ends_at: int


class SessionLog:
    """See the module. Belongs to the event loop.

    Args:
        writer: None: nothing is stored, and messages are kept in memory only.
        head: the first entry.
        limit_bytes: maximum size of the log; a session beyond it continues without one.
    """

    def __init__(
        self,
        writer: SessionLogWriter | None,
        *,
        clock: Clock,
        outputs: OutputBounds,
        head: Callable[[], Any] = lambda: None,
        limit_bytes: int = 0,
    ) -> None:
        self._writer = writer
        if writer is not None:
            writer.on_forgotten = self._write_again
        self._clock = clock
        self._bounds = outputs
        self._head = head
        self._limit_bytes = limit_bytes
        self.on_stored: Callable[[], None] = lambda: None
        """Called when an update is stored, or no longer waited for."""
        self.on_protection: Callable[[], None] = lambda: None
        """Called when `is_protecting` has changed."""
        self.on_fenced: Callable[[], None] = lambda: None
        """Called when another worker has taken over the session."""
        self.state: Callable[[], dict[str, Any] | None] = lambda: None
        """The session's state after `handled` messages; None if it is not available now."""
        self.without_old_sound: Callable[[list[Any]], list[Any]] = list
        """See `RebuildableRunner`."""
        self.is_open = False
        """True if the client has requested resuming; only then is anything kept."""
        self.handled = 0
        """Number of the client's messages that have been handled."""
        self.is_changed = False
        """True if there are changes other than messages that are not stored yet."""
        self.is_protecting = False
        """True if another worker could continue the session from this log."""
        self.is_failing = False
        """True since the backend refused an update or was late, until one is stored."""
        self.is_waited_for = False
        """True if messages to the client have to wait until they are stored."""
        self._loop = asyncio.get_running_loop()

        self._outputs: deque[Output] = deque()
        self.last_seq = 0
        """Number of the newest message."""
        self.given_up = 0
        """Highest number of a message that was dropped without an acknowledgement."""
        self._acknowledged = 0
        self._ends_at = 0
        self.waiting_bytes = 0
        """Total size of the messages that are not delivered yet."""
        self.room_bytes = outputs.limit_bytes // 2
        """No message should be added while more bytes than this are waiting."""

        self._pending: list[bytes] = []
        """Sent entries with their lengths, as in `_kept`."""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._compacted = 1
        """Number of entries, including the head, that compaction need not examine again."""
        self._compact_at = COMPACT_BYTES
        self._is_whole_due = True
        self._in_flight: LogUpdate | None = None
        self._sent_parts: dict[str, Any] = {}
        """The parts of the state as they were sent."""
        self._sent_seq = self._stored_seq = 0
        self._received = self._received_sent = 0
        self.stored_received: int = sys.maxsize
        """Number of the client's messages that are stored; all of them if they need not be
        stored."""
        self.sent_received: int = sys.maxsize
        """The same, including the update in flight."""
        self._released_seq: int = sys.maxsize
        """Number of the last message that may be sent to the client."""
        self._is_available = True
        self._is_late = False
        self._complaints = logs.Complaints()
        self._late: asyncio.TimerHandle | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._refused = Backoff(REOPEN_S, REFUSED_S)
        self._sending: asyncio.Handle | None = None
        self._is_put_off = False
        """True if `_sending` is a timer. The types of handles differ between event loops."""
        self._updated_s = clock.monotonic()
        self._answered = asyncio.Event()

    # ---- messages --------------------------------------------------------------------------

    def open(self) -> None:
        """The client requested resuming: keep messages from now on."""
        self.is_open = True

    def add(self, frame: str | bytes) -> None:
        """Number and add the next message. Older ones may be dropped, but never undelivered ones:
        the caller must wait while more than `room_bytes` are waiting."""
        now_s = self._clock.monotonic()
        self.last_seq += 1
        self._ends_at += len(frame)
        self.waiting_bytes += len(frame)
        self._outputs.append(Output(self.last_seq, frame, now_s, self._ends_at))
        while (oldest := self._outputs[0]).ends_at <= self._ends_at - self.waiting_bytes:
            kept_bytes = self._ends_at - oldest.ends_at + len(oldest.frame)
            is_old = now_s - oldest.at_s > self._bounds.limit_s
            if kept_bytes <= self._bounds.limit_bytes and not is_old:
                break
            self.given_up = oldest.seq
            self._outputs.popleft()
        self.send_soon()

    def tail(self, after: int) -> Output | None:
        """The message after number `after`, if it may be sent. Earlier messages count as delivered,
        later ones do not."""
        outputs = self._outputs
        if not outputs or outputs[-1].seq <= after:
            self.waiting_bytes = 0
            return None
        output = outputs[max(0, after + 1 - outputs[0].seq)]
        self.waiting_bytes = self._ends_at - output.ends_at + len(output.frame)
        return output if output.seq <= self._released_seq else None

    def acknowledge(self, seq: int) -> None:
        """The client has received everything up to `seq`."""
        seq = min(seq, self.last_seq)
        self._acknowledged = max(self._acknowledged, seq)
        while self._outputs and self._outputs[0].seq <= seq:
            behind = self._ends_at - self._outputs.popleft().ends_at
            self.waiting_bytes = min(self.waiting_bytes, behind)

    @property
    def is_acknowledged(self) -> bool:
        """True if the client has received everything."""
        return self._acknowledged >= self.last_seq

    # ---- entries ---------------------------------------------------------------------

    def observe(self, event: Observed, at_s: float) -> None:
        """See `Observer`. Entries are logged."""
        del at_s
        if self._writer is None or not self.is_open or (entry := logged(event)) is None:
            return
        for each in (entry,) if self._kept_bytes else (self._head(), entry):
            data = framed(state_codec.encode(each))
            self._pending.append(data)
            self._kept_bytes += len(data)
        self.is_changed = True
        if self._kept_bytes > self._compact_at and self._in_flight is None:
            self._compact()
        if self._kept_bytes > self._limit_bytes:
            self.stop("too large")

    def handle(self) -> None:
        """A message of the client has been handled."""
        if self.is_open:
            self.handled += 1
            if self._sending is None and self.handled - self._received_sent >= INPUT_ACK_EVERY:
                self.send_soon()

    def protect(self) -> None:
        """From the next message on, messages have to be stored before they are sent."""
        if self._kept_bytes and self._writer is not None:
            self._stored_seq = self._sent_seq = self.last_seq
            self._protect()

    def adopt(
        self,
        writer: SessionLogWriter,
        entries: bytes,
        outputs: Sequence[StoredOutput],
        *,
        received: int,
        last_seq: int,
    ) -> None:
        """Continue the log of another worker.

        Args:
            writer: of that log.
            outputs: messages that the client has not acknowledged.
            received: number of the client's messages that had been handled.
            last_seq: number of the last message; used if there are no `outputs`.
        """
        self.open()
        self.last_seq = outputs[0].seq - 1 if outputs else last_seq
        self.given_up = self._acknowledged = self.last_seq
        for output in outputs:
            self.add(output.frame)
        self.handled = self._received = self._received_sent = received
        self.is_changed = True
        self._writer, writer.on_forgotten = writer, self._write_again
        self._pending = [framed(each) for each in split_entries(entries)]
        self._kept_bytes = len(entries)
        self._stored_seq = self._sent_seq = self.last_seq
        self._protect()
        self.send_soon()

    # ---- is it stored? ---------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """True if everything is stored."""
        return self.is_waited_for and self.last_seq <= self._stored_seq and self._has_state

    async def until_current(self) -> None:
        """If the session is logged, wait until everything except messages is stored.

        Raises:
            LogLate: it takes longer than `CURRENT_S`.
        """
        try:
            async with asyncio.timeout(CURRENT_S):
                while self.is_waited_for and not self._has_state:
                    self.send_soon()
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            raise LogLate from None

    # ---- the end ---------------------------------------------------------------------------

    def settle(self) -> None:
        """The session has ended. Its entries are no longer needed; its last messages may be."""
        if self._kept_bytes:
            self._kept, self._pending = [*self._kept, *self._pending][:1], []
            self._compacted = 1
            self._kept_bytes = sum(map(len, self._kept))
            self.is_changed = self._is_whole_due = True
            self.send_soon()

    def leave(self) -> None:
        """Another worker continues the session: stop writing, and leave the log as it is."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.leave()
        self.end()

    def end(self) -> None:
        """The session is over: remove the log. Safe to repeat."""
        self.is_protecting = False
        self.stop("ended")
        self.forget_session()
        self.state = lambda: None

    def forget_session(self) -> None:
        """Drop all references to the session; its last messages may still be needed."""
        self._head = self.on_fenced = lambda: None
        self.without_old_sound = list

    def stop(self, why: str) -> None:
        """Remove the log; the session continues without one. Safe to repeat."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()
        self._pending.clear()
        self._kept.clear()
        self._sent_parts = {}
        self._in_flight = None
        for timer in (self._late, self._reopening):
            if timer is not None:
                timer.cancel()
        if self.is_protecting:
            _log.info("session_log_stopped", why=why, bytes=self._kept_bytes)
            self.is_protecting = False
            self.on_protection()
        self._notify()

    # ---- updates ---------------------------------------------------------------------------

    def send_soon(self, delay_s: float = 0.0) -> None:
        """Send an update in the next iteration of the event loop, or after `delay_s`."""
        if not self.is_waited_for:
            return
        if self._sending is not None:
            if delay_s or not self._is_put_off:
                return
            self._sending.cancel()
        self._is_put_off = delay_s > 0
        self._sending = (
            self._loop.call_later(delay_s, self._send)
            if delay_s
            else self._loop.call_soon(self._send)
        )

    @property
    def _has_state(self) -> bool:
        """True if everything but messages is stored."""
        return not (self.is_changed or self._in_flight is not None or self._is_whole_due)

    def _protect(self) -> None:
        self.is_protecting = True
        self._account()
        self.on_protection()

    def _account(self) -> None:
        """Something was sent or stored, or need not be stored any more."""
        self.is_waited_for = is_waited_for = self.is_protecting and self._is_available
        self.stored_received = self._received if is_waited_for else sys.maxsize
        self.sent_received = self._received_sent if is_waited_for else sys.maxsize
        is_held_back = is_waited_for and not self._is_late
        self._released_seq = self._stored_seq if is_held_back else sys.maxsize

    def _send(self) -> None:
        """Send everything that is not stored yet, unless an update is in flight."""
        self._sending = None
        if self._in_flight is not None or not self.is_waited_for:
            return
        now_s = self._clock.monotonic()
        is_due = self.last_seq > self._stored_seq or self.is_changed or self._is_whole_due
        if not is_due:
            if self.handled - self._received_sent < INPUT_ACK_EVERY:
                return
            if now_s - self._updated_s < QUIET_S:
                self.send_soon(QUIET_S - (now_s - self._updated_s))
                return
        remembered = self.state()
        if remembered is None and (self._is_whole_due or self.waiting_bytes <= self.room_bytes):
            self.send_soon(RETRY_S)
            return
        self._updated_s = now_s
        self._late = self._loop.call_later(LATE_S, self._be_late)
        self._send_update(remembered)

    def _send_update(self, remembered: dict[str, Any] | None) -> None:
        """If no state is available, entries wait for the next update; messages do not."""
        assert self._writer is not None
        is_whole, entries, state = self._is_whole_due, b"", None
        is_tail_whole = remembered is not None and (is_whole or self._writer.wants_tail)
        if remembered is not None:
            before = {} if is_tail_whole else self._sent_parts
            self._sent_parts, state = state_codec.parts(remembered, before)
            entries = b"".join((*self._kept, *self._pending) if is_whole else self._pending)
            self._kept += self._pending
            self._pending = []
            self._received_sent = self.handled
            self.is_changed = False
        since = 0 if is_tail_whole else self._sent_seq
        # Searched from the end: if a client acknowledges nothing, there are thousands before them.
        fresh = list(takewhile(lambda one: one.seq > since, reversed(self._outputs)))
        outputs = tuple(StoredOutput.of(one.seq, one.frame) for one in reversed(fresh))
        self._is_whole_due = False
        self._sent_seq = self.last_seq
        settled = max(self._acknowledged, self.given_up)
        update = LogUpdate(is_whole, is_tail_whole, entries, state, outputs, settled)
        self._in_flight = update
        self._account()
        self._writer.append(update, lambda result: self._came(update, result))

    def _came(self, update: LogUpdate, result: AppendResult) -> None:
        if update is not self._in_flight:
            return
        self._in_flight = None
        match result:
            case "stored":
                self._stored_seq, self._received = self._sent_seq, self._received_sent
                self._refused.reset()
                self.is_failing = False
                self._notify()
                self.send_soon()
            case "unavailable" | "refused":
                self._is_available, self._is_whole_due = False, True
                self.is_failing = True
                pause_s = self._refused.take() if result == "refused" else REOPEN_S
                self._reopening = self._loop.call_later(pause_s, self._reopen)
                self._notify()
            case "fenced":
                self.stop("another worker continues the session")
                self.on_fenced()
            case "dropped" | "full":
                self.stop(result)
                self.is_failing = True

    def _reopen(self) -> None:
        self._is_available = self.is_changed = True
        self._account()
        self.send_soon()

    def _write_again(self) -> None:
        self._is_whole_due = True
        self.send_soon()

    def _be_late(self) -> None:
        self._is_late = self.is_failing = True
        self._account()
        if self._complaints.is_news("late", self._clock.monotonic()):
            _log.warning("session_log_late", waited_s=LATE_S)
        self.on_stored()

    def _notify(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late, self._is_late = None, False
        self._account()
        self._answered.set()
        self.on_stored()

    # ---- compaction ------------------------------------------------------------------------

    def _compact(self) -> None:
        """Drop audio that is no longer needed. The next update replaces the whole log."""
        before, pending = self._kept_bytes, len(self._pending)
        log = [*self._kept, *self._pending]
        tail = [state_codec.decode(each[ENTRY_LENGTH_BYTES:]) for each in log[self._compacted :]]
        # Unchanged entries need not be encoded again.
        encoded = {id(each): data for each, data in zip(tail, log[self._compacted :], strict=True)}
        log[self._compacted :] = [
            encoded.get(id(each)) or framed(state_codec.encode(each))
            for each in self.without_old_sound(tail)
        ]
        self._compacted = max(self._compacted, len(log) - COMPACT_TAIL)
        count = len(log) - pending
        self._kept, self._pending = log[:count], log[count:]
        self._kept_bytes = sum(map(len, log))
        room = max(COMPACT_BYTES, (COMPACT_GROWTH - 1) * self._kept_bytes)
        self._compact_at = self._kept_bytes + round(room)
        if self._kept_bytes < before:
            self._is_whole_due = True
            _log.info("session_log_compacted", bytes=self._kept_bytes, before=before)


def decoded(entries: bytes, after: int = 0) -> Iterable[Any]:
    """The values of a log's entries, without the first `after`.

    Raises:
        LogUnreadable, InvalidPayload: they cannot be read.
    """
    return (state_codec.decode(each) for each in islice(split_entries(entries), after, None))
