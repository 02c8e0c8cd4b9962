"""One end of an open WebSocket, built for forwarding messages.

A `Connection` reads whole messages from its transport and either keeps them for `receive()` (a
bounded number: if there are more, the socket is not read) or, once `join`ed to another connection,
immediately writes their wire bytes there. This gives back-pressure: while the other transport is
full, this socket is not read. Ping, pong and the closing handshake are answered here. The content
of messages is never examined.

No peer can monopolise the event loop: only a limited number of frames of each connection is handled
before the others get a turn. A client that sends more pings or small messages than any program
needs is closed with 1008; one that sends more bytes than its share is read later.

Source: RFC 6455, sections 5.5 (control frames) and 7 (closing).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import cast

from parley.protocol.values import SLOWEST_BYTES_PER_S
from parley.transport.acknowledged import acknowledged_bytes
from parley.transport.allowance import Allowance
from parley.transport.framing import (
    BINARY,
    CLOSE,
    LARGE_BYTES,
    PING,
    PONG,
    SMALL_MESSAGE_BYTES,
    TEXT,
    Bytes,
    Control,
    FrameError,
    FrameReader,
    Message,
    can_travel,
    close_payload,
    frame,
    parse_close,
)
from parley.transport.keepalive import Keepalive
from parley.transport.limits import Arrival, Budget, ConnectionLimits, Traffic
from parley.transport.state import Closure, ConnectionClosed, ConnectionState

INBOX_MESSAGES = 32
INBOX_BYTES = 1 << 20
TURN_FRAMES = 64
"""Number of frames handled in one iteration of the event loop: well below a millisecond."""
TURN_BYTES = 256_000
"""A read of this size ends the connection's turn: uvloop, whose buffer it fills, would read the
same connection again immediately."""
CLOSE_LIMIT_S = 5.0
"""Time for the peer to answer a close frame that is not behind other output."""
HIGH_WATER_BYTES = 1 << 20
LOW_WATER_BYTES = 1 << 18

CONNECTING, OPEN, CLOSING, CLOSED = ConnectionState


class Connection(asyncio.Protocol):
    """One end of a WebSocket. Subclasses perform the handshake and then call `_opened`.

    All methods must be called on the event loop. Writing never blocks; a peer that does not read is
    dropped by the limits.
    """

    def __init__(
        self,
        *,
        is_server: bool,
        limits: ConnectionLimits,
        keepalive: Keepalive,
        budget: Budget | None = None,
    ) -> None:
        self._is_server = is_server
        self._is_guarded = is_server and not limits.is_trusted
        self.owner: str | None = None
        """Owner of the budget share against which large messages count."""
        self._budget = budget
        self._claimed_bytes = 0
        self._limits = limits
        self._keepalive = keepalive
        self._reader = FrameReader(
            masked=is_server,
            checks_text=self._is_guarded,
            limit_bytes=limits.message_bytes,
            claim=self._claim,
        )
        self.state = CONNECTING
        """Written by `_enter` alone."""
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._transport: asyncio.Transport | None = None
        now = self._now()
        self._small = Allowance(limits.message_burst, limits.messages_per_s, now)
        self._controls = Allowance(limits.control_burst, limits.controls_per_s, now)
        self._bytes = Allowance(limits.byte_burst, limits.bytes_per_s, now)
        self._counted_controls = self._counted_small = 0
        self._turn: asyncio.Handle | None = None
        self._rate_timer: asyncio.TimerHandle | None = None
        self._inbox: deque[Message] = deque()
        self._inbox_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._joined: Connection | None = None
        self._traffic: Traffic | None = None
        self._incoming: Arrival | None = None
        """Of a message that was unfinished at the last tick."""
        self.on_slow_message: Callable[[], object] = lambda: None
        """Called once a second while a message arrives that has taken more than that."""
        self._close_sent = False
        self._close_timer: asyncio.TimerHandle | None = None
        self._closure: Closure | None = None
        self._read_holds: set[str] = set()
        self._is_congested = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._sources: list[Connection] = []
        self._written = 0
        self._drained = 0
        self._progress_at = 0.0
        self._acknowledged: int | None = None
        self._acknowledged_at = 0.0
        self._look_at = 0.0
        self._is_heard = False
        self._heard_at = self._sent_at = 0.0
        self._sent = 0
        self._pong_due_at = math.inf
        self.closed: asyncio.Future[Closure] = self._loop.create_future()
        """Completes when nothing more will be received. Wait with `asyncio.wait`; do not cancel
        it."""
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Completes when the transport is released."""

    # Public interface

    @property
    def is_open(self) -> bool:
        """True if sending still makes sense."""
        return self.state is OPEN

    @property
    def is_in_message(self) -> bool:
        """True if a message has arrived in part. If the rest is too slow, the connection ends."""
        return bool(self._reader.opcode)

    def set_message_limit(self, limit_bytes: int) -> None:
        """Set the maximum size of later messages."""
        self._reader.limit_bytes = limit_bytes

    def forget(self, message: Message) -> None:
        """The receiver no longer keeps a message."""
        if message.size > LARGE_BYTES:
            self._give(message.size)

    async def receive(self) -> Message:
        """The next message. Cancelling is safe: nothing is lost.

        Raises:
            ConnectionClosed: the connection has ended and everything was delivered.
        """
        while not self._inbox:
            if self._closure is not None:
                raise ConnectionClosed(self._closure)
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        message = self._inbox.popleft()
        self._inbox_bytes -= message.size
        if "inbox" in self._read_holds and not self._is_inbox_full:
            self._hold_reading("inbox", False)
        return message

    @property
    def _is_inbox_full(self) -> bool:
        return len(self._inbox) >= INBOX_MESSAGES or self._inbox_bytes > INBOX_BYTES

    def send_text(self, payload: bytes) -> None:
        """Queue a text message; silently dropped if the connection is closing."""
        if self.is_open:
            self._write(frame(TEXT, payload, mask=not self._is_server))

    def send_binary(self, payload: bytes) -> None:
        """Queue a binary message; silently dropped if the connection is closing."""
        if self.is_open:
            self._write(frame(BINARY, payload, mask=not self._is_server))

    async def room(self) -> None:
        """Wait until more may be sent; returns immediately while the peer keeps up, or without a
        peer."""
        await self._has_room.wait()

    def pass_on(self, message: Message) -> None:
        """Queue a message received on another connection without changing its bytes."""
        for part in message.parts:
            if self.state is OPEN:
                self._write(part)

    def join(self, other: Connection, traffic: Traffic) -> None:
        """From now on forward every message to `other`, starting with those already received."""
        self._traffic = traffic
        self._joined = other
        other._sources.append(self)
        while self._inbox:
            self._forward(self._inbox.popleft(), other, traffic)
        self._inbox_bytes = 0
        self._hold_reading("inbox", False)
        self._hold_reading("congestion", other._is_congested)

    def part(self) -> None:
        """Undo `join`: later messages are kept for `receive()`."""
        if self._joined is not None:
            self._joined._sources.remove(self)
            self._joined = None
            self._hold_reading("congestion", False)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Start or answer the closing handshake (RFC 6455, 7.1.2 and 5.5.1) after sending what is
        queued. Safe to repeat."""
        if self.state is CONNECTING:
            self.abort()
            return
        if self._transport is None or self._close_sent or self.state is CLOSED:
            return
        self._close_sent = True
        self._enter(CLOSING)
        if not self._transport.is_closing():
            code = code if can_travel(code) else 1000
            payload = close_payload(code, reason)
            self._transport.write(frame(CLOSE, payload, mask=not self._is_server))
        if self._closure is not None:
            self._leave()
        else:
            self._read_holds -= {"inbox", "congestion"}
            self._apply_reading()
            now = self._now()
            until = now + self._limits.stall_s + self._limits.output_bytes / SLOWEST_BYTES_PER_S
            self._close_timer = self._loop.call_later(
                CLOSE_LIMIT_S, self._end_closing, self._unread(), now, until
            )

    def abort(self) -> None:
        """Drop the connection now."""
        self._end(Closure(1006, "aborted"))
        self._enter(CLOSED)
        # A transport that was never connected does not report its loss.
        self._keepalive.discard(self)
        if self._transport is not None:
            self._transport.abort()

    # Called by the transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._keepalive.discard(self)
        self._give(self._claimed_bytes)
        for timer in (self._close_timer, self._rate_timer, self._turn):
            if timer is not None:
                timer.cancel()
        self._end(Closure(1006))
        self._enter(CLOSED)
        self._has_room.set()
        if not self.gone.done():
            self.gone.set_result(None)
        for source in self._sources:
            source._hold_reading("congestion", False)

    def pause_writing(self) -> None:
        self._is_congested = True
        self._has_room.clear()
        for source in self._sources:
            source._hold_reading("congestion", True)

    def resume_writing(self) -> None:
        self._is_congested = False
        self._has_room.set()
        for source in self._sources:
            source._hold_reading("congestion", False)

    def data_received(self, data: bytes) -> None:
        # The most frequent case of a relay, in as little code as possible: between two messages the
        # processor runs other code and must fetch this again.
        self._is_heard = True
        if (
            self.state is OPEN
            and not self._read_holds
            and len(data) < TURN_BYTES
            and (size := self._reader.whole_bytes(data))
            and (not self._is_guarded or self._bytes.take_at_hand(len(data)))
            and (not self._is_guarded or size >= SMALL_MESSAGE_BYTES or self._small.take_at_hand(1))
        ):
            joined, traffic = self._joined, self._traffic
            if joined is not None and traffic is not None:
                traffic.messages += 1
                traffic.bytes += size
                if joined.state is OPEN:
                    joined._write(data)
            else:
                self._keep(Message(data[0] & 0x0F, (data,), size))
        else:
            self._received(data)

    def _received(self, data: bytes) -> None:
        """Handle bytes of the connection."""
        if self.state is not OPEN and self._is_deaf:
            return
        self._reader.add(data)
        if self._is_guarded and (excess := self._bytes.take(len(data), self._now)):
            self._read_later(excess / self._limits.bytes_per_s)
        if len(data) >= TURN_BYTES:
            self._read_holds.add("turn")
        if self._read_holds and (self._blocked or self._turn is not None):
            self._read_holds.add("turn")
            self._apply_reading()
        else:
            self._read()

    def forgive(self, late_s: float) -> None:
        """This process was suspended for `late_s`: give the peer that much more time."""
        self._progress_at += late_s
        self._acknowledged_at += late_s
        self._heard_at += late_s
        self._sent_at += late_s
        self._pong_due_at += late_s
        if self._incoming is not None:
            self._incoming.wait_until(self._now() + self._pause_s)

    def tick(self, now: float) -> None:
        """Called once a second: keepalive; drop a peer that has stopped reading, and a path that
        delivers nothing."""
        transport = self._transport
        if transport is None or self.state not in (OPEN, CLOSING):
            return
        waiting = transport.get_write_buffer_size()
        drained = self._written - waiting
        if not waiting or drained != self._drained:
            self._drained, self._progress_at = drained, now
        elif now - self._progress_at >= self._limits.stall_s:
            self._give_up(waiting)
            return
        if self._is_cut_off(transport, now):
            self._end(Closure(1006, f"nothing acknowledged for {self._limits.in_flight_s:g} s"))
            transport.abort()
            return
        if not self._close_sent:
            self._keep_alive(transport, now, waiting)
            if self._is_guarded and self._reader.opcode:
                self._check_arrival(now)

    # Private

    def _keep_alive(self, transport: asyncio.Transport, now: float, waiting_bytes: int) -> None:
        """Send a ping if one direction was silent: any received data proves that the peer is alive,
        and any sent data keeps proxies from closing the connection."""
        if self._is_heard:
            self._is_heard = False
            self._heard_at, self._pong_due_at = now, math.inf
        if self._written != self._sent:
            self._sent, self._sent_at = self._written, now
        if self._pong_due_at == math.inf:
            if now - min(self._heard_at, self._sent_at) >= self._limits.ping_every_s:
                self._pong_due_at = now + self._limits.ping_limit_s
                self._write(frame(PING, b"parley", mask=not self._is_server))
        elif now >= self._pong_due_at and not self._read_holds and not waiting_bytes:
            # While we do not read, or our ping waits behind other output, a missing pong means
            # nothing; output that does not advance has its own limit.
            self._end(Closure(1006, "no pong"))
            self.close(1011, "keepalive ping timeout")
            transport.abort()

    def _check_arrival(self, now: float) -> None:
        """End the connection of a client whose message arrives too slowly."""
        if self._incoming is None:
            # A client that is silent altogether is first given up for not answering pings.
            self._incoming = Arrival(now, self._pause_s)
        else:
            self.on_slow_message()
        self._incoming.advance(self._reader.arrived_bytes, now)
        if self._read_holds:
            self._incoming.wait_until(now + 1.0)
        if now >= self._incoming.due and self.is_open:
            self._starved()

    @property
    def _pause_s(self) -> float:
        """Time for which a message may pause."""
        return self._limits.ping_every_s + self._limits.ping_limit_s

    def _is_cut_off(self, transport: asyncio.Transport, now: float) -> bool:
        """True if data has been in flight for too long."""
        limit_s = self._limits.in_flight_s
        if limit_s is None or now < self._look_at:
            return False
        self._look_at = now + limit_s / 2
        acknowledged = acknowledged_bytes(transport)
        if acknowledged is None or acknowledged != self._acknowledged:
            self._acknowledged, self._acknowledged_at = acknowledged, now
            return False
        return now - self._acknowledged_at >= limit_s

    @property
    def _is_deaf(self) -> bool:
        """True if further input no longer matters."""
        return self.state is CLOSED or (self._close_sent and self._closure is not None)

    @property
    def _blocked(self) -> bool:
        return bool(self._read_holds - {"turn"})

    def _read(self) -> None:
        """Parse received data, as much as one turn of the event loop allows."""
        try:
            events = self._reader.read(TURN_FRAMES)
        except FrameError as error:
            if error.code == 1008:
                self._flooded()
            self._fail(error.code, str(error))
            return
        for event in events:
            if isinstance(event, Control):
                self._control(event)
                continue
            self._incoming = None
            if self.state is not OPEN:
                continue  # after a close frame nothing else counts (RFC 6455, 5.5.1)
            if self._joined is not None and self._traffic is not None:
                self._forward(event, self._joined, self._traffic)
            else:
                self._keep(event)
        if self._is_guarded and self._floods():
            self._flooded()
            self._fail(1008, "too many messages")
            return
        if self._reader.is_behind:
            self._read_holds.add("turn")
        if "turn" in self._read_holds:
            self._apply_reading()

    def _floods(self) -> bool:
        controls = self._reader.control_frames - self._counted_controls
        small = self._reader.small_frames - self._counted_small
        if not controls and not small:
            return False
        self._counted_controls += controls
        self._counted_small += small
        return bool(self._controls.take(controls, self._now) or self._small.take(small, self._now))

    def _flooded(self) -> None:
        """Report the flood to the owner of the connections, which remembers the address."""

    def _next_turn(self) -> None:
        """Continue reading after other connections had their turn."""
        self._turn = None
        if self._is_deaf or self._blocked:
            return
        self._read_holds.discard("turn")
        self._read()
        self._apply_reading()

    def _read_later(self, seconds: float) -> None:
        if self._rate_timer is None:
            self._rate_timer = self._loop.call_later(seconds, self._read_again)
            self._read_holds.add("rate")

    def _read_again(self) -> None:
        self._rate_timer = None
        self._hold_reading("rate", False)

    def _opened(self, transport: asyncio.Transport) -> None:
        """The handshake is complete; from now on `data_received` receives frames."""
        self._transport = transport
        if self.state is not CONNECTING:
            # Aborted during the handshake.
            transport.abort()
            return
        self._enter(OPEN)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        now = self._now()
        self._progress_at = self._heard_at = self._sent_at = now
        self._keepalive.add(self)

    def _enter(self, state: ConnectionState) -> None:
        """Change to a later `state`, never to an earlier one."""
        self.state = max(self.state, state)

    def _claim(self, size_bytes: int) -> None:
        if self._budget is None:
            return
        if not self._budget.take(size_bytes, self.owner):
            raise FrameError(1013, "Other large messages use all memory: try again later.")
        self._claimed_bytes += size_bytes

    def _give(self, size_bytes: int) -> None:
        # All is given back when the connection is lost; what is forgotten later was in it.
        size_bytes = min(size_bytes, self._claimed_bytes)
        if self._budget is not None and size_bytes:
            self._budget.give(size_bytes, self.owner)
            self._claimed_bytes -= size_bytes

    def _write(self, data: Bytes) -> None:
        assert self._transport is not None
        if self._is_congested:
            waiting = self._transport.get_write_buffer_size()
            if waiting > self._limits.output_bytes:
                self._give_up(waiting)
                return
        self._written += len(data)
        self._transport.write(data)

    def _forward(self, message: Message, other: Connection, traffic: Traffic) -> None:
        traffic.messages += 1
        traffic.bytes += message.size
        other.pass_on(message)
        self.forget(message)

    def _keep(self, message: Message) -> None:
        self._inbox.append(message)
        self._inbox_bytes += message.size
        if self._is_inbox_full:
            self._hold_reading("inbox", True)
        self._wake()

    def _control(self, event: Control) -> None:
        if event.opcode == PING:
            if self.is_open:
                self._write(frame(PONG, event.payload, mask=not self._is_server))
        elif event.opcode == CLOSE:
            try:
                code, reason = parse_close(event.payload)
            except FrameError as error:
                self._fail(error.code, str(error))
                return
            self._end(Closure(code, reason))
            if self._close_sent:
                self._leave()
            else:
                # The answer repeats the code; the relay may have sent its own by now.
                self._loop.call_soon(self.close, code, "")

    def _fail(self, code: int, reason: str) -> None:
        self._end(Closure(code, reason))
        if self._close_sent:
            self._leave()
        else:
            self.close(code, reason)

    def _give_up(self, waiting_bytes: int) -> None:
        self._end(Closure(1008, f"{waiting_bytes} bytes unread", is_slow=True))
        self.close(1008, "too slow")
        if self._transport is not None:
            self._transport.abort()

    def _starved(self) -> None:
        self._fail(1008, "The message was not received in time.")

    def _end(self, closure: Closure) -> None:
        if self._closure is None:
            self._enter(CLOSING)
            self._closure = closure
            self.closed.set_result(closure)
            self._wake()

    def _leave(self) -> None:
        """Both close frames were exchanged: flush and close the transport."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._close_timer = self._loop.call_later(CLOSE_LIMIT_S, self.abort)
        if self._transport is not None:
            self._transport.close()

    def _end_closing(self, seen: tuple[int, int | None], moved_at: float, until: float) -> None:
        """The peer has not answered the close frame: perhaps it is still reading what comes before.

        Args:
            seen: what `_unread` returned when it last changed, at `moved_at`.
            until: time at which the connection ends in any case.
        """
        now, unread = self._now(), self._unread()
        if unread != seen:
            moved_at = now
        if unread == (0, None) or now >= until or now - moved_at >= self._limits.stall_s:
            self.abort()
            return
        self._close_timer = self._loop.call_later(
            CLOSE_LIMIT_S, self._end_closing, unread, moved_at, until
        )

    def _unread(self) -> tuple[int, int | None]:
        """Output that waits here, and what was acknowledged of output in flight. With TLS, output
        may wait where only the second one shows it."""
        if self._transport is None:
            return 0, None
        return self._transport.get_write_buffer_size(), acknowledged_bytes(self._transport)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _hold_reading(self, why: str, is_held: bool) -> None:
        if is_held:
            self._read_holds.add(why)
        else:
            self._read_holds.discard(why)
        self._apply_reading()

    def _apply_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._read_holds:
            transport.resume_reading()
            return
        transport.pause_reading()
        if self._turn is None and not self._blocked:
            self._turn = self._loop.call_soon(self._next_turn)


def as_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """The transport of a stream; the type of `connection_made`'s parameter is too general."""
    return cast(asyncio.Transport, transport)
