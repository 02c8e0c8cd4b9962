"""A session's connection to its client, which may consist of several connections, one after the
other.

Until the client requests resuming (`enable`), messages are passed through. From then on they are
numbered and kept, and a task delivers them to the current connection. If the connection breaks, the
session does not end: its clock stops until another connection is attached or the window is over.
The last messages and the close code can be fetched after the session has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from parley import logs
from parley.clock import Clock
from parley.errors import ServiceUnavailable
from parley.protocol import codec
from parley.protocol.control import CUT_CODE
from parley.protocol.resume import (
    ACK_LIMIT_CHARS,
    ARRIVAL_ACK_EVERY,
    INPUT_ACK_EVERY,
    REPLACED_CODE,
    ConnectionReplaced,
    InputAck,
    RefusalReason,
    ResumeGranted,
    ResyncRequired,
    as_ack,
    refusal_message,
    with_fields,
)
from parley.session.arrivals import Arrivals
from parley.session.deadlines import RESUME, Deadlines
from parley.session.log import RETRY_S, LogLate, SessionLog
from parley.session.outbox import OutputLimits
from parley.session.socket import Disconnected, SessionSocket
from parley.session.tokens import ResumeTokens
from parley.session_log.contract import LogContents, SessionLogWriter

UNUSED_WINDOW_S: Final = 1.5
"""If a client is cut off and the session has received nothing since it was ready, the session waits
only this long: nothing can be lost, and the client, which may never have received the token, starts
again. Shorter than the time for which a gateway lets a new client wait for its session id. If the
gateway was lost, the client may have the token, and the session waits for the whole window."""

BETWEEN_S: Final = 20.0
"""Time limit for finishing the current answer before a session moves to another worker."""

LAST_WORDS_S: Final = 1.0
"""Time for which the log of an ended session is kept once the gateway has its last messages. If the
gateway does not have them, the log is kept for the whole window."""
RETURN_S: Final = 10.0
"""Minimum time for which a rebuilt session waits: a client that has kept trying returns within this
time, even if its window has passed meanwhile."""
LAST_WORD_S: Final = 2.0
"""Time limit for informing a replaced connection."""

_log = logs.get(__name__)


class ResumeRefused(Exception):
    """A connection may not continue a session. `why`: details beyond `reason`, or ""."""

    def __init__(self, reason: RefusalReason, why: str = "") -> None:
        super().__init__(refusal_message(reason, why))
        self.reason: RefusalReason = reason
        self.why = why


@dataclass(slots=True, eq=False)
class _Attachment:
    """One connection. `over`: completes when it is no longer the session's. `reading`: timeout that
    ends a pending read then."""

    socket: SessionSocket
    over: asyncio.Future[None]
    reading: asyncio.Timeout | None = None
    delivery: asyncio.Task[None] | None = None


class ResumableSocket:
    """See the module's text. The session's `SessionSocket`.

    Args:
        socket: the first connection.
        deadlines: of the session; they are stopped while there is no connection.
        moved: called when the client is about to receive a token, and when a connection was lost or
            attached.
        log: of the session; messages to the client wait until they are stored.
    """

    def __init__(
        self,
        socket: SessionSocket,
        *,
        session_id: str,
        window_s: float,
        output: OutputLimits,
        clock: Clock,
        log: SessionLog,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self.session_id = session_id
        self._window_s = window_s
        self.output = output
        self.clock = clock
        self._moved = moved
        self.deadlines = Deadlines()
        self._loop = asyncio.get_running_loop()
        self._first = socket
        self._attached: _Attachment | None = _Attachment(socket, self._loop.create_future())
        self._tokens = ResumeTokens()
        self._ready_text: str | bytes | None = None
        self._ready_seq = 0
        self._before = 0
        """Number of the client's messages before its request."""
        self._received = 0
        self._repeated = 0
        """Number of the next messages that are repetitions."""
        self._told = self._told_arrived = 0
        self._is_ack_due = False
        self._log = log
        log.state, log.on_protection = self._state, moved
        self.handled = log.handle
        """To be called when a received message has been handled."""
        self._is_restored = False
        self._left_s: float | None = None
        """Monotonic time at which the last connection was lost; None: at another worker."""
        self.arrivals = Arrivals(clock)
        self._sent_before: int | None = None
        """Number of messages that the client had sent when it lost another worker; None: it did
        not."""
        self._takes_input = True
        """False while the session is being handed over, and afterwards."""
        self._is_handed_over = False
        """True if another worker will continue the session: messages are no longer read or sent."""
        self.is_between: Callable[[], bool] = lambda: True
        """True if the session is between two turns or units."""
        self.remember: Callable[[], dict[str, Any] | None] = lambda: None
        """Returns the session's state; None if it is not available at the moment."""
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        log.on_stored = self._news.set
        self._closing: tuple[int, str] | None = None
        self._is_confirmed = False
        """True if the client has confirmed the close: it has received the last messages."""
        self._away_until_s: float | None = None
        """Unix time until which the session waits for its client; None while it is connected."""
        self.has_left = False
        """True if another worker has continued the session."""
        self._remembered: dict[str, Any] | None = None
        """The session's last state; unused once it has ended."""
        self._departure: Disconnected | None = None
        """How the client closed its connection, if it did so to end the session."""
        self._why_over = ""
        """The reason why no client can continue the session; "" while one can."""
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what others ask -------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        """True if the client requested resuming."""
        return self._log.is_open

    @property
    def is_of_before(self) -> bool:
        """True if the client sent its newest message while another worker ran the session."""
        return self._received <= (self._sent_before or 0)

    @property
    def left_s(self) -> float | None:
        """Time left for the client to return; None: it is connected."""
        due_s = self.deadlines.get(RESUME)
        if self._attached is not None or due_s is None:
            return None
        return max(0.0, due_s - self.clock.monotonic())

    @property
    def window_left_s(self) -> float:
        """Time left for the client to fetch the last messages. At most the whole window, because
        clocks may be changed, and those of two hosts may differ."""
        until_s = self._away_until_s
        left_s = self._window_s if until_s is None else max(0.0, until_s - self.clock.time())
        return min(left_s, self._window_s)

    @property
    def has_last_words(self) -> bool:
        """True if the session has ended and its client may return for the last messages."""
        is_kept = self.is_enabled and not (self.has_left or self._why_over)
        return self._closing is not None and is_kept and not self._log.is_acknowledged

    # ---- the session's side ----------------------------------------------------------------

    def enable(self) -> None:
        """The client requests resuming with the message that it has just sent, which counts as its
        first. Safe to repeat."""
        if self.is_enabled or self._window_s <= 0:
            return
        self._log.open()
        self._received = 1
        assert self._attached is not None
        self._begin_delivery(self._attached, [], 0)

    def with_token(self, text: str | bytes) -> str | bytes:
        """The message that reports the session as ready, with the first token."""
        if not self.is_enabled or self._tokens.is_issued:
            return text
        token, window_s = self._tokens.issue(), self._window_s
        fields = f'"resume_token":"{token}","resume_window_s":{window_s:g}'
        self._ready_text = ready = with_fields(text, fields)
        self._log.protect()
        self._moved()
        return ready

    async def receive(self) -> str | bytes:
        """The client's next message; waits while there is no connection.

        Raises:
            Disconnected: the client has left.
        """
        if not self._log.is_open:
            message = await self._first.receive()
            self._before += 1
            return message
        while True:
            attached = self._attached
            if attached is None:
                if self._departure is not None:
                    raise self._departure
                self._changed.clear()
                await self._changed.wait()
                continue
            frame = await self._next_of(attached)
            if frame is None or attached is not self._attached:
                # Not counted, so the client sends it again.
                continue
            if len(frame) <= ACK_LIMIT_CHARS and (ack := as_ack(frame)) is not None:
                self._log.acknowledge(ack.seq)
                self._tokens.confirm(ack.generation)
                if ack.ask:
                    self._is_ack_due = True
                    self._news.set()
                continue
            while not self._takes_input:
                self._changed.clear()
                await self._changed.wait()
            if attached is not self._attached:
                continue
            if self._repeated:
                self._repeated -= 1
                continue
            self._received += 1
            safe = min(self._received, self._log.stored_received)
            has_arrived = self._received - self._told_arrived
            if safe - self._told >= INPUT_ACK_EVERY or has_arrived >= ARRIVAL_ACK_EVERY:
                self._is_ack_due = True
                self._news.set()
            return frame

    async def send(self, frame: str | bytes) -> None:
        """Send one message, or keep it for a client that returns. Waits while too much is kept.

        Raises:
            Disconnected, TimeoutError: it cannot be sent, and the client cannot resume.
        """
        log = self._log
        if not log.is_open:
            async with asyncio.timeout(self.output.send_s(len(frame))):
                await self._first.send(frame)
            return
        is_ready = frame is self._ready_text
        # It is sent when the update that contains it is stored, and so after that state.
        self._told = min(self._received, log.sent_received)
        fields = f'"seq":{log.last_seq + 1},"received":{self._told}'
        log.add(with_fields(frame, fields))
        if is_ready:
            self._ready_text, self._ready_seq = None, log.last_seq
        self._news.set()
        while log.waiting_bytes > log.room_bytes and not self._why_over:
            self._changed.clear()
            await self._changed.wait()

    async def close(self, code: int, reason: str) -> bool:
        """Close when everything has been delivered. Returns immediately if there is no connection:
        a client that returns receives the last messages then."""
        if not self.is_enabled:
            return await self._first.close(code, reason)
        self._closing = (code, reason)
        if self._is_handed_over:
            # Another worker sends its last messages.
            self._finish_log()
        else:
            self._log.settle()
        self._news.set()
        if self._attached is None:
            with contextlib.suppress(LogLate):
                await self._log.until_current()
        while (attached := self._attached) is not None:
            await asyncio.wait({attached.over})
        return self._is_confirmed

    def expire(self) -> float:
        """The client did not return in time: refuse it from now on, even while the session is being
        cleaned up. Returns the seconds since it left."""
        self._refuse_from_now(f"No client returned within {self._window_s:g} s.")
        return math.inf if self._left_s is None else self.clock.monotonic() - self._left_s

    def end(self) -> None:
        """Close both directions. Safe to repeat."""
        how = "" if self._closing is None else " ({1}, close code {0})".format(*self._closing)
        self._refuse_from_now(f"It is over{how}, and no messages are left.")
        self._finish_log()
        self._log.acknowledge(self._log.last_seq)
        self._detach(self._attached)
        self._changed.set()
        for task in list(self._tasks):
            task.cancel()

    def forget_session(self) -> None:
        """The session is over: release its state, which is large. A client may still fetch the last
        messages, which are kept here."""
        self.remember, self.is_between = lambda: None, lambda: True
        self.deadlines.changed = lambda: None
        if self.has_last_words and not self._is_handed_over:
            # Until then the gateway may not know that the session has ended.
            self._log.forget_session()
            kept_s = LAST_WORDS_S if self._is_confirmed else self.window_left_s
            self._loop.call_later(kept_s, self._finish_log)
        else:
            self._finish_log()

    # ---- another connection ----------------------------------------------------------------

    def check(self, token_hash: str, seq: int) -> None:
        """Check that a connection with this token may continue after message `seq`.

        Raises:
            ResumeRefused: it may not continue; has the reason.
            ServiceUnavailable: another worker continues the session.
        """
        if self.has_left:
            raise ServiceUnavailable("The session continues at another worker.")
        if (reason := self._tokens.refusal(token_hash)) is not None:
            raise ResumeRefused(reason)
        if self._why_over:
            raise ResumeRefused("expired", self._why_over)
        first, last = self._ready_seq, self._log.last_seq
        if self._is_restored and self._sent_before is None and seq > last:
            # The lost worker sent more while its log could not be written.
            raise ResumeRefused("lost", f"Nothing after message {last} was stored.")
        if not first <= seq <= last:
            raise ResumeRefused("gap", f"It must be between {first} and {last}, got {seq}.")

    async def attach(self, socket: SessionSocket, token_hash: str, seq: int, sent: int = 0) -> None:
        """Continue over `socket`, which replaces the current connection if there is one. Returns
        when the new connection is over.

        Args:
            sent: number of messages that the client had sent when it lost its connection.

        Raises:
            ResumeRefused: as `check`.
        """
        self.check(token_hash, seq)
        self._takes_input, self._is_handed_over = True, False
        if self._is_restored and self._sent_before is None:
            self._sent_before = sent
        log = self._log
        before, self._attached = self._attached, None
        received = min(self._received, log.stored_received)
        self._repeated = self._received - received
        self._told_arrived = self._received
        if before is not None:
            self._let_go(before)
            self._spawn(self._replace(before.socket))
        log.acknowledge(seq)
        # Later messages must be delivered again.
        log.tail(seq)
        first: list[msgspec.Struct] = [
            ResumeGranted(
                session_id=self.session_id,
                resume_token=self._tokens.issue(token_hash),
                resume_window_s=self._window_s,
                generation=self._tokens.generation,
                seq=log.last_seq,
                received=received,
            )
        ]
        log.is_changed = True
        if log.given_up > seq:
            first.append(ResyncRequired(from_seq=seq + 1, to_seq=log.given_up))
        attached = self._attached = _Attachment(socket, self._loop.create_future())
        self._begin_delivery(attached, [codec.encode(each) for each in first], seq)
        self.deadlines.clear(RESUME)
        self._away_until_s = None
        now_s = self.clock.monotonic()
        # Another worker may have been blocked for a long time before its connections were closed.
        away_s = 2 * self._window_s if self._left_s is None else now_s - self._left_s
        self.arrivals.end_gap(away_s)
        self.deadlines.go(now_s)
        self._changed.set()
        _log.info(
            "session_resumed",
            session_id=self.session_id,
            generation=self._tokens.generation,
            after=seq,
        )
        self._moved()
        await asyncio.wait({attached.over})

    # ---- inside ----------------------------------------------------------------------------

    async def _next_of(self, attached: _Attachment) -> str | bytes | None:
        """The next message of a connection; None if the connection is no longer the session's."""
        try:
            async with asyncio.timeout(None) as attached.reading:
                try:
                    return await attached.socket.receive()
                finally:
                    attached.reading = None
        except TimeoutError:
            return None
        except Disconnected as error:
            self._lose(attached, error)
            return None

    def _lose(self, attached: _Attachment, error: Disconnected) -> None:
        """The other side of a connection is gone."""
        if error.is_leaving and attached is self._attached:
            self._departure = error
            self._refuse_from_now(f"The client closed it with code {error.code}.")
        self._detach(attached, is_client_cut=error.code == CUT_CODE)

    def _begin_delivery(self, attached: _Attachment, first: list[str], seq: int) -> None:
        attached.delivery = self._spawn(self._deliver(attached, first, seq))

    async def _deliver(self, attached: _Attachment, first: list[str], seq: int) -> None:
        """Send the messages that the client does not have, then new ones, until this connection is
        over."""
        log = self._log
        try:
            if first:
                # The token in it must be valid at other workers, too. If it is not stored
                # in time, the client reconnects with the token that it has.
                await log.until_current()
            for text in first:
                await self._send_to(attached.socket, text)
            while True:
                self._news.clear()
                while not self._is_handed_over and (output := log.tail(seq)) is not None:
                    await self._send_to(attached.socket, output.frame)
                    seq = output.seq
                    if seq == self._ready_seq:
                        # It contains a token; a client that has the token has this message.
                        log.acknowledge(seq)
                    self._changed.set()
                safe = min(self._received, log.stored_received)
                # Nothing may follow the dialect's last message.
                is_due = self._is_ack_due or safe - self._told >= INPUT_ACK_EVERY
                if self._closing is None and is_due:
                    self._told, self._told_arrived = safe, self._received
                    self._is_ack_due = False
                    ack = InputAck(received=safe, arrived=self._received)
                    await self._send_to(attached.socket, codec.encode(ack))
                if self._closing is not None and not log.waiting_bytes:
                    self._is_confirmed = await attached.socket.close(*self._closing)
                    break
                await self._news.wait()
        except Disconnected as error:
            if not error.is_leaving:
                _log.info("client_cut_off", session_id=self.session_id, sent=seq)
            self._lose(attached, error)
        except TimeoutError:
            _log.info("client_cut_off", session_id=self.session_id, sent=seq)
            self._spawn(self._drop(attached.socket))
        except LogLate:
            _log.warning("session_log_late", sent_seq=seq)
            self._spawn(self._drop(attached.socket))
        self._detach(attached)

    # ---- the log ---------------------------------------------------------------------------

    @property
    def is_protected(self) -> bool:
        """True if another worker could continue the session."""
        return self._log.is_protecting

    @property
    def lacks_log(self) -> bool:
        """True if its log cannot be written: the session would be lost with this worker."""
        return self._log.is_failing

    def _state(self) -> dict[str, Any] | None:
        """State in the log beyond entries and messages."""
        remembered = self._remembered if self._closing is not None else self.remember()
        if remembered is None:
            return None
        self._remembered = remembered
        own = {
            "tokens": self._tokens,
            "ready_seq": self._ready_seq,
            "last_seq": self._log.last_seq,
            "received": self._log.handled,
            "closing": self._closing,
            "away_until_s": self._away_until_s,
        }
        return {**remembered, **own}

    def _finish_log(self) -> None:
        self._remembered = None
        if self._is_handed_over:
            self._log.leave()
        else:
            self._log.end()

    async def hand_over(self) -> bool:
        """Bring the log up to date between two turns or units, and stop there. Returns True if that
        was possible. The client hears the turn to its end. If a client is attached later, the
        session continues here."""
        if not self._log.is_waited_for:
            return False
        self._takes_input = False
        began_s = self._loop.time()
        while not self.is_between() and self._loop.time() - began_s < BETWEEN_S:
            await asyncio.sleep(RETRY_S)
            # Also if a client has returned meanwhile.
            self._takes_input = False
        self._is_handed_over = self._log.is_changed = True
        with contextlib.suppress(LogLate):
            await self._log.until_current()
        if not self._log.is_current:
            self._takes_input, self._is_handed_over = True, False
            self._changed.set()
            self._news.set()
            return False
        _log.info("session_handed_over", session_id=self.session_id, after=self._log.last_seq)
        return True

    def leave(self) -> None:
        """Another worker continues the session: leave its log as it is, and send its client nothing
        more."""
        self._takes_input, self._is_handed_over, self.has_left = False, True, True
        self._log.leave()
        if self._attached is not None:
            self._spawn(self._drop(self._attached.socket))
            self._detach(self._attached)

    def log_nothing(self) -> None:
        """Stop logging: no other worker could continue this session."""
        self._log.stop("cannot be rebuilt")

    def restore(
        self, state: dict[str, Any], contents: LogContents, writer: SessionLogWriter
    ) -> None:
        """Take over another worker's state. There is no connection, and the resume window is
        running.

        Args:
            state: as it was logged.
            contents: of the other worker's log.
            writer: continues that log.
        """
        self._tokens = state["tokens"]
        self._ready_seq = state["ready_seq"]
        self._closing = state["closing"]
        self._remembered = state
        self._received = self._told = state["received"]
        self._log.adopt(
            writer,
            contents.entries,
            contents.outputs,
            received=self._received,
            last_seq=state["last_seq"],
        )
        self._is_restored = True
        self._away_until_s = state["away_until_s"]
        self._detach(self._attached)
        self._left_s = None

    def _refuse_from_now(self, why: str) -> None:
        """Refuse clients from now on; only the first reason counts."""
        self._why_over = self._why_over or why

    async def _send_to(self, socket: SessionSocket, frame: str | bytes) -> None:
        async with asyncio.timeout(self.output.send_s(len(frame))):
            await socket.send(frame)

    def _detach(self, attached: _Attachment | None, *, is_client_cut: bool = False) -> None:
        """A connection is over; if it was the session's, the clock stops.

        Args:
            is_client_cut: True if the gateway reported that the client was cut off.
        """
        if attached is None:
            return
        self._let_go(attached)
        if attached is not self._attached:
            return
        self._attached = None
        self._left_s = now_s = self.clock.monotonic()
        self.deadlines.stop(now_s)
        waits_s = self._waits_s(is_client_cut)
        self.deadlines.set(RESUME, now_s + waits_s)
        self._away_until_s = self.clock.time() + waits_s
        self._log.is_changed = True
        self._log.send_soon()
        self._changed.set()
        self._moved()

    def _waits_s(self, is_client_cut: bool) -> float:
        if not self._tokens.is_issued:
            return 0.0
        if self._away_until_s is not None:
            # Its client was already away at the previous worker.
            least_s = RETURN_S if self._closing is None else 0.0
            return min(self._window_s, max(self.window_left_s, least_s))
        is_used = max(self._received, self._before) > 1 or self._tokens.generation > 0
        if is_used or self._is_restored or not is_client_cut:
            return self._window_s
        return min(self._window_s, UNUSED_WINDOW_S)

    def _let_go(self, attached: _Attachment) -> None:
        if not attached.over.done():
            attached.over.set_result(None)
        if attached.reading is not None:
            attached.reading.reschedule(self._loop.time())
            attached.reading = None
        delivery = attached.delivery
        if delivery is not None and delivery is not asyncio.current_task():
            delivery.cancel()

    async def _replace(self, socket: SessionSocket) -> None:
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await socket.send(codec.encode(ConnectionReplaced()))
                await socket.close(REPLACED_CODE, "replaced")

    async def _drop(self, socket: SessionSocket) -> None:
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await socket.close(CUT_CODE, "try again")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{self.session_id}:resume")
        return logs.keep(task, self._tasks)
