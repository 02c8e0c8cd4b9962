"""One end of an open WebSocket, made for passing messages on.

A `Port` reads whole messages off its transport and either keeps them for `receive()` (few, bounded:
when full the socket is no longer read) or, once `join`ed to another port, writes their wire bytes
there at once. Back-pressure follows: while the far transport is full, this socket is not read.
Ping, pong and the closing handshake are answered here. It never looks inside a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from parley.gateway.frames import (
    CLOSE,
    PING,
    PONG,
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

TICK_S = 1.0
INBOX_MESSAGES = 32
CLOSE_LIMIT_S = 5.0
"""How long the far end may take to answer a close frame."""
HIGH_WATER_BYTES = 1 << 20
LOW_WATER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Closure:
    """How a connection ended. `code` 1006: it broke off; `is_slow`: we gave up on a peer that did
    not read."""

    code: int
    reason: str = ""
    is_slow: bool = False

    @property
    def is_clean(self) -> bool:
        """The peer said goodbye."""
        return self.code != 1006


class PortClosed(Exception):
    """Nothing more will be received; says how the connection ended."""

    def __init__(self, closure: Closure) -> None:
        super().__init__(f"The connection ended with {closure.code}.")
        self.closure = closure


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What one connection may cost."""

    message_bytes: int = 16 << 20
    output_bytes: int = 8 << 20
    stall_s: float = 10.0
    ping_every_s: float = 20.0
    ping_limit_s: float = 20.0


@dataclass(slots=True)
class Budget:
    """Memory that all ports together may spend on large messages; what does not fit is refused."""

    limit_bytes: int
    used_bytes: int = 0


@dataclass(slots=True)
class Traffic:
    """Counts for all ports of a process that share it."""

    messages: int = 0
    bytes: int = 0


class Pulse:
    """One timer for all ports: keep-alive and stalled output, once a second."""

    def __init__(self) -> None:
        self._ports: set[Port] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._ports)

    def add(self, port: Port) -> None:
        self._ports.add(port)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._beat)

    def discard(self, port: Port) -> None:
        self._ports.discard(port)
        if not self._ports and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._beat)
        now = loop.time()
        for port in list(self._ports):
            port.tick(now)


class Port(asyncio.Protocol):
    """See the module. Subclasses perform the handshake and then call `_opened`.

    All methods must be called on the event loop. Writing never blocks; a peer that does not read is
    dropped by the limits.
    """

    def __init__(
        self,
        *,
        is_server: bool,
        limits: PortLimits,
        pulse: Pulse,
        budget: Budget | None = None,
    ) -> None:
        self._is_server = is_server
        self._budget = budget
        self._claimed_bytes = 0
        self._limits = limits
        self._pulse = pulse
        self._reader = FrameReader(
            masked=is_server, limit_bytes=limits.message_bytes, claim=self._claim
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[Message] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._joined: Port | None = None
        self._traffic: Traffic | None = None
        self._on_message: Callable[[], None] | None = None
        self._is_open = False
        self._close_sent = False
        self._close_timer: asyncio.TimerHandle | None = None
        self._closure: Closure | None = None
        self._read_holds: set[str] = set()
        self._is_congested = False
        self._sources: list[Port] = []
        self._written = 0
        self._drained = 0
        self._progress_at = 0.0
        self._next_ping_at = 0.0
        self._pinged_at: float | None = None
        self.closed: asyncio.Future[Closure] = self._loop.create_future()
        """Done when nothing more will be received. Wait with `asyncio.wait`, do not cancel it."""
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the transport is released."""

    # What others use

    @property
    def is_open(self) -> bool:
        """Whether sending still has a purpose."""
        return self._is_open and not self._close_sent and self._closure is None

    @property
    def unread_bytes(self) -> int:
        """What the peer has not taken yet, as far as this process knows."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def set_message_limit(self, limit_bytes: int) -> None:
        """Largest message from here on."""
        self._reader.limit_bytes = limit_bytes

    def forget_large(self) -> None:
        """The large messages that came so far are no longer kept by whoever received them."""
        if self._budget is not None and self._claimed_bytes:
            self._budget.used_bytes -= self._claimed_bytes
            self._claimed_bytes = 0

    async def receive(self) -> Message:
        """The next message. Cancelling is safe: nothing is lost.

        Raises:
            PortClosed: the connection has ended and everything was delivered.
        """
        while not self._inbox:
            if self._closure is not None:
                raise PortClosed(self._closure)
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        message = self._inbox.popleft()
        if len(self._inbox) < INBOX_MESSAGES:
            self._hold_reading("inbox", False)
        return message

    def send_text(self, payload: bytes) -> None:
        """Queue one text message; dropped silently when the connection is ending."""
        if self.is_open:
            self._write((frame(TEXT, payload, mask=not self._is_server),))

    def pass_on(self, message: Message) -> None:
        """Queue a message that arrived on another port, bytes as they are."""
        if self.is_open:
            self._write(message.parts)

    def join(self, other: Port, traffic: Traffic) -> None:
        """From here on every message goes straight to `other`, those already here first."""
        self._traffic = traffic
        self._joined = other
        other._sources.append(self)
        while self._inbox:
            self._forward(self._inbox.popleft(), other, traffic)
        self._hold_reading("inbox", False)
        self._hold_reading("congestion", other._is_congested)

    def part(self) -> None:
        """Undo `join`: messages that still come are kept for `receive()`."""
        if self._joined is not None:
            self._joined._sources.remove(self)
            self._joined = None
            self._hold_reading("congestion", False)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Begin the closing handshake; what was queued goes out first. Safe to repeat."""
        if self._transport is None or self._close_sent:
            return
        self._close_sent = True
        if self._is_open and not self._transport.is_closing():
            code = code if can_travel(code) else 1000
            payload = close_payload(code, reason)
            self._transport.write(frame(CLOSE, payload, mask=not self._is_server))
        if self._closure is not None:
            self._leave()
        else:
            self._read_holds.clear()
            self._apply_reading()
            self._close_timer = self._loop.call_later(CLOSE_LIMIT_S, self.abort)

    def abort(self) -> None:
        """Drop the connection now."""
        self._end(Closure(1006, "aborted"))
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls

    def connection_lost(self, exc: Exception | None) -> None:
        self._pulse.discard(self)
        self.forget_large()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._is_open = False
        self._end(Closure(1006))
        if not self.gone.done():
            self.gone.set_result(None)
        for source in self._sources:
            source._hold_reading("congestion", False)

    def pause_writing(self) -> None:
        self._is_congested = True
        for source in self._sources:
            source._hold_reading("congestion", True)

    def resume_writing(self) -> None:
        self._is_congested = False
        for source in self._sources:
            source._hold_reading("congestion", False)

    def data_received(self, data: bytes) -> None:
        try:
            events = self._reader.feed(data)
        except FrameError as error:
            self._fail(error.code, str(error))
            return
        for event in events:
            if isinstance(event, Control):
                self._control(event)
            elif self._closure is not None or self._close_sent:
                continue
            elif self._joined is not None and self._traffic is not None:
                self._forward(event, self._joined, self._traffic)
            else:
                self._keep(event)

    def tick(self, now: float) -> None:
        """Once a second: keep-alive, and give up on a peer that stopped reading."""
        transport = self._transport
        if transport is None or not self._is_open:
            return
        waiting = transport.get_write_buffer_size()
        drained = self._written - waiting
        if not waiting or drained != self._drained:
            self._drained, self._progress_at = drained, now
        elif now - self._progress_at >= self._limits.stall_s:
            self._give_up(waiting)
            return
        if now < self._next_ping_at or self._close_sent:
            return
        if self._pinged_at is None:
            self._pinged_at = now
            self._next_ping_at = now + self._limits.ping_limit_s
            self._write((frame(PING, b"parley", mask=not self._is_server),))
        elif not self._read_holds and not waiting:
            # While we do not read, or our ping still waits behind other output, a missing pong says
            # nothing about the peer; output that does not move has its own limit.
            self._end(Closure(1006, "no pong"))
            self.close(1011, "keepalive ping timeout")
            transport.abort()

    # Inside

    def _opened(self, transport: asyncio.Transport) -> None:
        """The handshake is done; `data_received` sees frames from here on."""
        self._transport = transport
        self._is_open = True
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        now = self._loop.time()
        self._progress_at = now
        self._next_ping_at = now + self._limits.ping_every_s
        self._pulse.add(self)

    def _claim(self, size_bytes: int) -> None:
        budget = self._budget
        if budget is None:
            return
        if budget.used_bytes + size_bytes > budget.limit_bytes:
            raise FrameError(1013, "Too many large messages at once.")
        budget.used_bytes += size_bytes
        self._claimed_bytes += size_bytes

    def _write(self, parts: Sequence[Bytes]) -> None:
        assert self._transport is not None
        if self._is_congested:
            waiting = self._transport.get_write_buffer_size()
            if waiting > self._limits.output_bytes:
                self._give_up(waiting)
                return
        for part in parts:
            self._written += len(part)
        self._transport.writelines(parts)

    def _forward(self, message: Message, other: Port, traffic: Traffic) -> None:
        traffic.messages += 1
        traffic.bytes += message.size
        other.pass_on(message)
        self.forget_large()

    def _keep(self, message: Message) -> None:
        self._inbox.append(message)
        if len(self._inbox) >= INBOX_MESSAGES:
            self._hold_reading("inbox", True)
        self._wake()

    def _control(self, event: Control) -> None:
        if event.opcode == PING:
            if self.is_open:
                self._write((frame(PONG, event.payload, mask=not self._is_server),))
        elif event.opcode == PONG:
            self._pinged_at = None
            self._next_ping_at = self._loop.time() + self._limits.ping_every_s
        else:
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
        self.close(code, reason)

    def _give_up(self, waiting_bytes: int) -> None:
        self._end(Closure(1008, f"{waiting_bytes} bytes unread", is_slow=True))
        self.close(1008, "too slow")
        if self._transport is not None:
            self._transport.abort()

    def _end(self, closure: Closure) -> None:
        if self._closure is None:
            self._closure = closure
            self.closed.set_result(closure)
            self._wake()

    def _leave(self) -> None:
        """Both close frames are exchanged: let the transport flush and go."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._close_timer = self._loop.call_later(CLOSE_LIMIT_S, self.abort)
        if self._transport is not None:
            self._transport.close()

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
        if self._read_holds:
            transport.pause_reading()
        else:
            transport.resume_reading()


def as_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Streams give full transports; the type of `connection_made` does not say so."""
    return cast(asyncio.Transport, transport)
