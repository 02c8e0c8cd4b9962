"""The life of one conversation: joins one socket, one translator, one driver and its observers.

Four tasks live here and end together: the reader (parses messages and hands them over), the
driver (does what the conversation does), the writer (sends what was said) and the timekeeper.
Whatever happens first decides the ending: `end` may be called by any of them, and counts once.

The reader never waits for the driver, so a stop is heard in the middle of a turn; the driver never
waits for the writer, so a slow client delays nobody but itself, and not for long: what waits for it
is bounded in bytes and in time. Time comes from the clock; a test moves it and calls
`check_deadlines`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from parley import logs
from parley.clock import Clock
from parley.errors import InferenceFailed, InvalidJson, ParleyError, SlowClient
from parley.session.events import ClientEvent, Ended, Event, Failed, ServerEvent

Phase = Literal["connected", "preparing", "active", "generating", "paused", "closed"]

PARSE_ON_LOOP_CHARS = 262_144
"""Longer messages are parsed in a thread, so that a large one holds nobody else up. A duplex unit
with a frame has half of this."""

SLOWEST_BYTES_PER_S = 131_072
"""A client that reads at least this fast is not stalled, however large one message is."""

CLOSING_S = 2.0
"""How long the closing handshake may take."""

_log = logs.get(__name__)


class Disconnected(Exception):
    """The other side of the socket went away."""


class Socket(Protocol):
    """A message connection to one client."""

    async def receive(self) -> str | bytes:
        """The next message.

        Raises:
            Disconnected: there will be none.
        """
        ...

    async def send(self, text: str) -> None:
        """Send one message; returns when the network took it.

        Raises:
            Disconnected: it cannot be sent any more.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the connection. Harmless when it is closed."""
        ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What a translator makes of an event: messages, then perhaps a close code."""

    frames: tuple[str, ...] = ()
    close_code: int | None = None


class Translator(Protocol):
    """One dialect: messages ↔ events, and errors ↔ its words. Knows no sockets and no model."""

    def read(self, frame: str, phase: Phase) -> ClientEvent | None:
        """A message as an event; None when the dialect ignores it. Called from any thread.

        Raises:
            ParleyError: it makes no sense, or not in this phase; the message is dropped.
        """
        ...

    def write(self, event: ServerEvent) -> Outgoing:
        """An event as messages. `Ended` always has a close code, except for `disconnected`."""
        ...

    def name_recording(self, recording_id: str | None) -> None:
        """What the client is to be told; None when nothing is kept."""
        ...


class Observer(Protocol):
    """Sees everything that happens. Quick, and never raises: what is slow it does elsewhere."""

    def observe(self, event: Event, at_s: float) -> None:
        """`at_s`: monotonic seconds."""
        ...


class Driver(Protocol):
    """What runs one conversation on a view."""

    def accept(self, event: ClientEvent) -> None:
        """Take what the client did. Returns at once.

        Raises:
            ParleyError: it does not fit; nothing has changed.
        """
        ...

    def expire(self, deadline: str) -> None:
        """A deadline that this driver set has passed."""
        ...

    def stop_turn(self) -> bool:
        """Silence the answer in progress; whether there was one."""
        ...

    async def run(self) -> Ended:
        """Hold the conversation. Cancelled when something else ends it."""
        ...

    async def close(self) -> None:
        """Stop the model and wait until it has let go. Safe to repeat, safe without `run`."""
        ...


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """What may wait for a client that does not read."""

    waiting_bytes: int = 8 * 1024 * 1024
    stall_s: float = 10.0


class Deadlines:
    """Moments by which something must have happened, by name. Pure: it reads no clock."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self.changed: Callable[[], None] = lambda: None

    def set(self, name: str, due_s: float) -> None:
        """Set or move a deadline; `due_s` in monotonic seconds."""
        self._due_s[name] = due_s
        self.changed()

    def clear(self, *names: str) -> None:
        """Forget deadlines; unknown names are fine."""
        for name in names:
            self._due_s.pop(name, None)

    def get(self, name: str) -> float | None:
        """When it is due, if it is set."""
        return self._due_s.get(name)

    def next_due_s(self) -> float | None:
        """The earliest."""
        return min(self._due_s.values(), default=None)

    def take_expired(self, now_s: float) -> list[str]:
        """Remove and name those that have passed, earliest first."""
        passed = sorted((due, name) for name, due in self._due_s.items() if due <= now_s)
        for _, name in passed:
            del self._due_s[name]
        return [name for _, name in passed]


class Outbox:
    """Messages on their way to one client, in order.

    Full (more than `waiting_bytes` behind the message that is being sent) or stalled (one message
    takes longer than a reading client needs) raises `SlowClient`. A single message of any size is
    taken when nothing waits.
    """

    def __init__(self, limits: OutputLimits) -> None:
        self._limits = limits
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._last_bytes = 0
        self._changed = asyncio.Event()
        self._sent = asyncio.Event()
        self._is_closed = False

    def put(self, frames: Sequence[str]) -> None:
        """Queue messages.

        Raises:
            SlowClient: too much waits already; these are not queued.
        """
        size = sum(map(len, frames))
        if self._waiting and self._waiting_bytes + size > self._limits.waiting_bytes:
            raise SlowClient(self._waiting_bytes)
        self._waiting.extend(frames)
        self._waiting_bytes += size
        self._changed.set()

    async def room(self) -> None:
        """Until less than half of what may wait does. For those who can speak faster than a client
        can read, and would be cut off for it."""
        while self._waiting and self._waiting_bytes > self._limits.waiting_bytes // 2:
            self._sent.clear()
            await self._sent.wait()

    def close(self) -> None:
        """Nothing will follow: `pump` returns once the rest is sent. Safe to repeat."""
        self._is_closed = True
        self._changed.set()

    @property
    def patience_s(self) -> float:
        """How long a client that reads may need for all that waits and is being sent."""
        return self._limits.stall_s + (self._waiting_bytes + self._last_bytes) / SLOWEST_BYTES_PER_S

    async def pump(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send until closed and empty.

        Raises:
            SlowClient: a message was not read in time.
            Disconnected: from `send`.
        """
        while True:
            while self._waiting:
                frame = self._waiting.popleft()
                self._waiting_bytes -= len(frame)
                self._last_bytes = len(frame)
                limit_s = self._limits.stall_s + len(frame) / SLOWEST_BYTES_PER_S
                try:
                    async with asyncio.timeout(limit_s):
                        await send(frame)
                except TimeoutError as error:
                    raise SlowClient(self._waiting_bytes + len(frame)) from error
                self._sent.set()
            if self._is_closed:
                return
            self._changed.clear()
            await self._changed.wait()


class Life:
    """One conversation, from the accepted socket to the closed one.

    Args:
        session_id: for logs and for messages that carry it.
        enters: told about every change of phase.
    """

    def __init__(
        self,
        *,
        socket: Socket,
        translator: Translator,
        clock: Clock,
        session_id: str,
        output: OutputLimits = OutputLimits(),
        observers: Sequence[Observer] = (),
        enters: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        self.clock = clock
        self.deadlines = Deadlines()
        self.session_id = session_id
        self._socket = socket
        self._translator = translator
        self._observers = tuple(observers)
        self._enters = enters
        self._outbox = Outbox(output)
        self._phase: Phase = "connected"
        self._ending: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._driver: Driver | None = None
        self._writer: asyncio.Task[None] | None = None
        self._goodbye: asyncio.Task[None] | None = None

    # ---- for the driver --------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the conversation is."""
        return self._phase

    @property
    def has_ended(self) -> bool:
        """Whether the ending is decided."""
        return self._ending.done()

    def enter(self, phase: Phase) -> None:
        """Go to a phase; a conversation that has ended stays closed."""
        if phase != self._phase and not self.has_ended:
            self._phase = phase
            self._enters(phase)

    def emit(self, event: ServerEvent) -> None:
        """Tell observers and the client. Nothing is told after the end.

        An event that the dialect answers with a close code ends the conversation.
        """
        if self.has_ended:
            return
        self._observe(event)
        outgoing = self._translator.write(event)
        if outgoing.close_code is not None:
            self.end(Ended("error", event.error if isinstance(event, Failed) else None))
            return
        try:
            self._outbox.put(outgoing.frames)
        except SlowClient as error:
            self.end(Ended("error", error))

    async def room(self) -> None:
        """Until the client has read enough of what was emitted; bounded, because a client that
        reads nothing is disconnected."""
        await self._outbox.room()

    def end(self, ended: Ended) -> None:
        """Decide the ending; only the first call counts."""
        if not self._ending.done():
            self._ending.set_result(ended)

    # ---- for the host ----------------------------------------------------------------------

    def stop_turn(self) -> bool:
        """Silence the answer in progress; whether there was one."""
        return self._driver is not None and not self.has_ended and self._driver.stop_turn()

    def accept(self, event: ClientEvent) -> None:
        """Act as if the client had done this (an external stop)."""
        if self._driver is None or self.has_ended:
            return
        self._observe(event)
        try:
            self._driver.accept(event)
        except ParleyError as error:
            self.emit(Failed(error))

    def check_deadlines(self) -> None:
        """Act on what is due by now."""
        for name in self.deadlines.take_expired(self.clock.monotonic()):
            if self._driver is not None and not self.has_ended:
                self._driver.expire(name)

    async def run(self, driver: Driver) -> Ended:
        """Live until the ending is decided.

        Returns when nothing of the conversation runs any more but its last words, which are under
        way: close the driver, free what it held, then `finish`. Cancelling is safe.
        """
        self._driver = driver
        self._writer = self._spawn("writer", self._outbox.pump(self._socket.send))
        tasks = [
            self._spawn("reader", self._read()),
            self._spawn("driver", self._drive(driver)),
            self._spawn("timekeeper", self._keep_time()),
        ]
        try:
            return await asyncio.shield(self._ending)
        finally:
            self.end(Ended("server_shutdown"))
            self._phase = "closed"
            self._goodbye = asyncio.create_task(
                self._say_goodbye(self._ending.result()), name=f"{self.session_id}:goodbye"
            )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Wait until the last words are out and the socket is closed. Bounded in time; safe to
        repeat, safe without `run`."""
        tasks = [task for task in (self._goodbye, self._writer) if task is not None]
        try:
            if self._goodbye is not None:
                await self._goodbye
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- tasks -----------------------------------------------------------------------------

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(name, work), name=f"{self.session_id}:{name}")

    async def _guard(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """The edge where a failure becomes the end of this conversation, and of no other."""
        try:
            await work
        except Disconnected:
            self.end(Ended("disconnected"))
        except ParleyError as error:
            if not error.is_client_error:
                _log.warning("session failed", session_id=self.session_id, part=name, exc_info=True)
            self.end(Ended("error", error))
        except Exception:
            error_id = secrets.token_hex(4)
            _log.exception(
                "session broken", session_id=self.session_id, part=name, error_id=error_id
            )
            self.end(Ended("error", InferenceFailed("The session failed.", error_id=error_id)))

    async def _drive(self, driver: Driver) -> None:
        self.end(await driver.run())

    async def _read(self) -> None:
        while True:
            frame = await self._socket.receive()
            try:
                event = await self._parse(frame)
                if event is not None:
                    self._observe(event)
                    if self._driver is not None:
                        self._driver.accept(event)
            except ParleyError as error:
                self.emit(Failed(error))

    async def _parse(self, frame: str | bytes) -> ClientEvent | None:
        if isinstance(frame, bytes):
            raise InvalidJson("Messages are JSON text; binary messages are not part of this.")
        if len(frame) <= PARSE_ON_LOOP_CHARS:
            return self._translator.read(frame, self._phase)
        return await asyncio.to_thread(self._translator.read, frame, self._phase)

    async def _keep_time(self) -> None:
        moved = asyncio.Event()
        self.deadlines.changed = moved.set
        while True:
            moved.clear()
            due_s = self.deadlines.next_due_s()
            wait_s = None if due_s is None else max(0.0, due_s - self.clock.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await moved.wait()
            self.check_deadlines()

    # ---- the end ---------------------------------------------------------------------------

    async def _say_goodbye(self, ended: Ended) -> None:
        self._observe(ended)
        outgoing = self._translator.write(ended)
        code = 1011 if outgoing.close_code is None else outgoing.close_code
        closing_s = CLOSING_S
        if ended.reason != "disconnected" and not isinstance(ended.error, SlowClient):
            with contextlib.suppress(SlowClient):
                self._outbox.put(outgoing.frames)
            self._outbox.close()
            # The close frame stands in line behind what the network has taken but not delivered.
            closing_s += self._outbox.patience_s
            if self._writer is not None:
                await asyncio.wait([self._writer], timeout=closing_s)
        with contextlib.suppress(TimeoutError, Disconnected):
            async with asyncio.timeout(closing_s):
                await self._socket.close(code, ended.reason)

    def _observe(self, event: Event) -> None:
        now_s = self.clock.monotonic()
        for observer in self._observers:
            observer.observe(event, now_s)
