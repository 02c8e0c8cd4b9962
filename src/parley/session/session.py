"""The session of one conversation: joins one socket, one dialect, one runner and its observers.

Four tasks run here and end together: the reader parses messages and passes them on, the runner runs
the conversation, the writer sends messages, and the timekeeper watches deadlines. Any of them may
call `end`; the first call determines the ending. The reader never waits for the runner, so a stop
takes effect in the middle of a turn. The runner never waits for the writer, so a slow client delays
only itself, and not for long: the messages that wait for it are bounded in bytes and in time. Time
is read from the clock; tests move it and call `check_deadlines`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, runtime_checkable

from parley import logs
from parley.dialects.base import Dialect, Reply, close_reason
from parley.dialects.events import (
    ClientEvent,
    Failed,
    OutputDelta,
    ServerEvent,
    SessionEnded,
    UnitDone,
)
from parley.errors import InferenceFailed, InvalidRequest, ParleyError, SlowClient
from parley.protocol import codec
from parley.protocol.kinds import Phase
from parley.protocol.resume import AwayReason, GoingAway, InputDropped
from parley.session.deadlines import GOING_AWAY, LAST, RESUME, SILENT
from parley.session.opened import Voices
from parley.session.outbox import Outbox, PacedOutput
from parley.session.resumable import ResumableSocket
from parley.session.socket import Disconnected
from parley.session_log.entries import Entry, Observed
from parley.tasks import end_tasks, wait_for_event

NEARLY_FULL = 0.9
"""Share of the context above which a client that requested it is warned that the session will
end."""

PACE = "pace"
"""The deadline at which more audio is to be sent."""

DROPPED = "dropped"
"""The deadline at which the client is notified how much of its audio was dropped."""

DROPPED_S = 1.0
"""Delay after audio was dropped until the client is notified of its length."""

VOICES_BURST = 10
VOICE_EVERY_S = 1.0
"""Limit on how often a message may name another voice, because each is looked up and read; and the
burst that is allowed."""

ARRIVES_S = 5.0
"""Time for which a client is not silent after the gateway has reported that a message is arriving,
which it does once a second."""

CLOSING_S = 2.0
"""Time limit of the closing handshake."""

_log = logs.get(__name__)


class Observer(Protocol):
    """Receives everything that happens, in order: events for the client, and entries that another
    worker would have to replay. Must be quick and must not raise; slow work is done elsewhere."""

    def observe(self, event: Observed, at_s: float) -> None:
        """`at_s`: monotonic seconds."""
        ...


class Runner(Protocol):
    """Runs one conversation on a view."""

    def accept(self, event: ClientEvent) -> None:
        """Process an event of the client. Returns immediately.

        Raises:
            ParleyError: it is not possible now; nothing has changed.
        """
        ...

    def expire(self, deadline: str) -> None:
        """A deadline that this runner set has passed."""
        ...

    def stop_turn(self) -> bool:
        """Stop the answer in progress; returns True if there was one."""
        ...

    async def run(self) -> SessionEnded:
        """Run the conversation. Cancelled when something else ends it."""
        ...

    async def close(self) -> None:
        """Stop the model and wait until it has finished. Safe to repeat, and safe without `run`."""
        ...


@runtime_checkable
class RebuildableRunner(Protocol):
    """A runner whose conversation a runner of another worker can continue. Its history is the
    entries that it emits or logs; inputs in them are not part of its state."""

    @property
    def is_between(self) -> bool:
        """True if no answer is being generated."""
        ...

    def first_entry(self) -> Entry | None:
        """First entry of the log if the client requests resuming; None: the next entry that is
        logged."""
        ...

    def remembered(self) -> dict[str, Any] | None:
        """Its state beyond the log, as values; None if not available at the moment."""
        ...

    def without_old_sound(self, log: Sequence[Any]) -> list[Any]:
        """The entries with silence instead of audio that `redo` does not need: all its results are
        in the log, and nothing in the future depends on it."""
        ...

    async def redo(self, log: Sequence[Any]) -> None:
        """Replay the entries of the log, or further entries.

        Raises:
            ParleyError: that is not possible here.
        """
        ...

    async def restore(self, remembered: dict[str, Any]) -> None:
        """Everything has been replayed: take over that runner's state. `run` continues from there.

        Raises:
            ParleyError: as `redo`.
        """
        ...


class Session:
    """One conversation, from the accepted socket to its close.

    Args:
        dialect: of the client, as far as its request shows.
        settle: determines the dialect from its first message.
        enters: called at every change of phase.
        recorded: returns the recording's id before the client is notified that it may start;
            limited in time.
        may_roll_over: see `rolls_over`.
    """

    def __init__(
        self,
        *,
        socket: ResumableSocket,
        dialect: Dialect,
        settle: Callable[[Dialect, str], Dialect] = lambda dialect, frame: dialect,
        observers: Sequence[Observer] = (),
        enters: Callable[[Phase], None] = lambda phase: None,
        recorded: Callable[[], Awaitable[str | None]] | None = None,
        may_roll_over: bool = False,
    ) -> None:
        self._may_roll_over = may_roll_over
        self.clock, self.session_id = socket.clock, socket.session_id
        self.deadlines, self.arrivals = socket.deadlines, socket.arrivals
        self._socket = socket
        self._has_asked = False
        """True if the client has requested resuming."""
        self._dialect = dialect
        self._settle: Callable[[Dialect, str], Dialect] | None = settle
        self._observers = tuple(observers)
        self._enters = enters
        self._recorded = recorded
        self._outbox = Outbox(socket.output)
        self._paced = PacedOutput()
        self.phase = Phase.CONNECTED
        """Phase of the conversation; changed by `enter`."""
        self._announced: set[AwayReason] = set()
        self._dropped_s = 0.0
        """Seconds of dropped audio of which the client was not notified yet."""
        self._last_words: Reply | None = None
        """The close code and reason, set by the event that ended the session."""
        self._ending: asyncio.Future[SessionEnded] = asyncio.get_running_loop().create_future()
        self.voices: Voices | None = None
        """Finds voices that clients name; set by a runner that can change the voice between
        answers."""
        self._voice_due_s = -math.inf
        self._runner: Runner | None = None
        self._rebuildable: RebuildableRunner | None = None
        """The same runner, if another worker could continue its conversation."""
        self._writer: asyncio.Task[SessionEnded | None] | None = None
        self._goodbye: asyncio.Task[None] | None = None
        self._is_restored = False
        self._is_taking = False
        socket.remember, socket.is_between = self._remembered, self._is_between

    # ---- for the runner --------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """True if the ending is decided."""
        return self._ending.done()

    @property
    def rolls_over(self) -> bool:
        """True if the conversation has no maximum length and a sliding context: the operator allows
        that, and the client has requested resuming."""
        return self._may_roll_over and (self._is_restored or self._socket.is_enabled)

    def enter(self, phase: Phase) -> None:
        """Enter a phase; a conversation that has ended stays closed."""
        if phase != self.phase and not self.has_ended:
            self.phase = phase
            self._enters(phase)

    def emit(self, event: ServerEvent) -> None:
        """Send an event to the observers and the client. Nothing is sent after the end.

        An event for which the dialect has a close code ends the conversation.
        """
        if self._ending.done():
            return
        self.log(event)
        error = getattr(event, "error", None)
        if error is not None:
            _forget_frames(error)
        output_ms = event.duration_ms if isinstance(event, OutputDelta) else None
        reply = self._dialect.encode(event)
        if isinstance(event, UnitDone) and self._dialect.context_tokens is not None:
            self._watch_context(event, self._dialect.context_tokens)
        self._send(reply, SessionEnded("error", error), output_ms=output_ms)

    def _send(self, reply: Reply, ended: SessionEnded, *, output_ms: float | None = None) -> None:
        """Send the dialect's messages; if it closes the connection, the session has `ended`."""
        if reply.close_code is not None:
            self._last_words = reply
            self.end(ended)
            return
        if reply.offers_resume:
            self._put(self._with_token(reply))
            return
        frames = self._dialect.frames(reply)
        if reply.sound_ms:
            self._paced.put(frames, reply.sound_ms, self.clock.monotonic())
            self._send_due()
            return
        self._put(frames, output_ms=output_ms)

    def _send_due(self) -> None:
        """Send the audio that is due."""
        self._put(self._paced.take_due(self.clock.monotonic()))
        due_s = self._paced.next_due_s
        if due_s is not None:
            self.deadlines.set(PACE, due_s)

    def _with_token(self, reply: Reply) -> list[str | bytes]:
        """Add a token to the messages if the client has requested resuming."""
        if self.rolls_over:
            self.deadlines.clear(*LAST)
        elif self._socket.is_enabled:
            self.deadlines.warn_of_the_last(self.clock.monotonic())
        return [self._socket.with_token(text) for text in self._dialect.frames(reply)]

    def _put(self, frames: Sequence[str | bytes], *, output_ms: float | None = None) -> None:
        try:
            self._outbox.put(frames, output_ms=output_ms)
        except SlowClient as error:
            self.end(SessionEnded("error", error))

    def go_away(self, time_left_s: float, reason: AwayReason) -> None:
        """Warn a client that requested it, once for each reason, that the session will end."""
        if not self._socket.is_enabled or self.has_ended or reason in self._announced:
            return
        self._announced.add(reason)
        message = GoingAway(time_left_s=round(max(0.0, time_left_s), 1), reason=reason)
        self._put([codec.encode(message)])

    def report_dropped(self, seconds: float) -> None:
        """Audio of the client was dropped. A client that can resume is notified of its length,
        because it has kept the audio of an outage."""
        if not self._socket.is_enabled or self.has_ended:
            return
        if not self._dropped_s:
            self.deadlines.set(DROPPED, self.clock.monotonic() + DROPPED_S)
        self._dropped_s += seconds

    def _send_dropped(self) -> None:
        seconds, self._dropped_s = round(self._dropped_s, 3), 0.0
        if seconds:
            self._put([codec.encode(InputDropped(dropped_s=seconds))])

    def _watch_context(self, done: UnitDone, limit: int) -> None:
        tokens = done.result.context_tokens
        if tokens < NEARLY_FULL * limit or self.rolls_over:
            return
        self.go_away((limit - tokens) / (tokens / (done.index + 1)), "context")

    def drop_output(self) -> float:
        """Drop everything of the answer in progress that is not in flight; returns the milliseconds
        of audio that were dropped."""
        return self._outbox.drop_output() + self._paced.drop(self.clock.monotonic())

    async def room(self) -> None:
        """Wait until the client has read enough of the emitted messages; bounded, because a client
        that reads nothing is disconnected."""
        await self._outbox.room()

    @property
    def hears_what_is_past(self) -> bool:
        """True if the client sent its newest message while another worker ran the session."""
        return self._socket.is_of_before

    def log(self, event: Observed) -> None:
        """Report to the observers; the client does not see it."""
        now_s = self.clock.monotonic()
        for observer in self._observers:
            observer.observe(event, now_s)

    async def recording_id(self) -> str | None:
        """The recording's id, which the client receives when it may start; None if there is none.
        Waits until it is known."""
        return None if self._recorded is None else await self._recorded()

    def end(self, ended: SessionEnded) -> None:
        """Determine the ending; only the first call counts."""
        if not self._ending.done():
            self._ending.set_result(ended)

    # ---- for the host ----------------------------------------------------------------------

    def stop_turn(self) -> bool:
        """Stop the answer in progress; returns True if there was one."""
        return self._runner is not None and not self.has_ended and self._runner.stop_turn()

    def accept(self, event: ClientEvent) -> None:
        """Handle an event as if the client had caused it (an external stop)."""
        if self._runner is None or self.has_ended:
            return
        self._act(event)

    def await_message(self) -> None:
        """A message of the client is arriving slowly: it is not silent. The gateway ends the
        connection if it is too slow."""
        due_s = self.clock.monotonic() + ARRIVES_S
        for name in SILENT:
            if (self.deadlines.get(name) or due_s) < due_s:
                self.deadlines.set(name, due_s)

    def check_deadlines(self) -> None:
        for name in self.deadlines.take_expired(self.clock.monotonic()):
            if name == RESUME:
                self.end(SessionEnded("disconnected", elapsed_s=self._socket.expire()))
            elif name == PACE:
                self._send_due()
            elif name == DROPPED:
                self._send_dropped()
            elif name == GOING_AWAY:
                last_s = self.deadlines.last_due_s() or 0.0
                self.go_away(last_s - self.clock.monotonic(), "time")
            elif self._runner is not None and not self.has_ended:
                self._runner.expire(name)

    def restore(self, remembered: dict[str, Any]) -> None:
        """Take over the state of another worker's session. Call before `run`."""
        self._is_restored, self._settle, self._has_asked = True, None, True
        self._dialect.restore(remembered["dialect"])
        self._announced = set(remembered["announced"])
        now_s = self.clock.monotonic()
        self.deadlines.restore(remembered["left_s"], now_s)
        self.deadlines.stop(now_s)
        self.phase = remembered["phase"]
        self._enters(self.phase)

    def _is_between(self) -> bool:
        return self._rebuildable is None or self._rebuildable.is_between

    def _remembered(self) -> dict[str, Any] | None:
        runner = self._rebuildable
        is_sending = self._is_taking or self._paced.waiting or self._outbox.waiting
        # A client that requested the end but was not notified of it requests it again.
        if runner is None or is_sending or self._ending.done():
            return None
        known = runner.remembered()
        if known is None:
            return None
        return {
            "runner": known,
            "dialect_name": self._dialect.name,
            "dialect": self._dialect.remembered(),
            "announced": sorted(self._announced),
            "left_s": self.deadlines.left_s(self.clock.monotonic()),
            "phase": self.phase,
        }

    async def run(self, runner: Runner) -> SessionEnded:
        """Run until the ending is decided.

        Returns when only the last messages are still being sent: close the runner, release its
        resources, then call `finish`. Cancelling is safe.
        """
        self._runner = runner
        if isinstance(runner, RebuildableRunner):
            self._rebuildable = runner
        if not self._is_restored:
            self._send(self._dialect.greet(), SessionEnded("stopped"))
        self._writer = self._spawn("writer", self._outbox.pump(self._socket.send))
        tasks = [
            self._spawn("reader", self._read()),
            self._spawn("runner", runner.run()),
            self._spawn("timekeeper", self._keep_time()),
        ]
        try:
            return await asyncio.shield(self._ending)
        finally:
            self.end(SessionEnded("server_shutdown"))
            self.phase = Phase.CLEANUP
            self._goodbye = asyncio.create_task(
                self._say_goodbye(self._ending.result()), name=f"{self.session_id}:goodbye"
            )
            await end_tasks(*tasks)

    async def finish(self) -> None:
        """Wait until the last messages are sent and the socket is closed. Limited in time; safe to
        repeat, and safe without `run`."""
        tasks = [task for task in (self._goodbye, self._writer) if task is not None]
        try:
            if self._goodbye is not None:
                await self._goodbye
        finally:
            self._runner = self._rebuildable = None
            await end_tasks(*tasks)

    # ---- tasks -----------------------------------------------------------------------------

    def _spawn(
        self, name: str, work: Coroutine[Any, Any, SessionEnded | None]
    ) -> asyncio.Task[SessionEnded | None]:
        task = asyncio.create_task(work, name=f"{self.session_id}:{name}")
        task.add_done_callback(lambda done: self._part_ended(name, done))
        return task

    def _part_ended(self, name: str, task: asyncio.Task[SessionEnded | None]) -> None:
        """Turn a failure into the end of this conversation, so that no other is affected."""
        if task.cancelled():
            return
        error = task.exception()
        match error:
            case None:
                ended = task.result()
                if ended is not None:
                    self.end(ended)
            case Disconnected():
                self.end(SessionEnded("disconnected"))
            case ParleyError():
                if not error.is_client_error:
                    _log.warning(
                        "session_failed", session_id=self.session_id, part=name, exc_info=error
                    )
                _forget_frames(error)
                self.end(SessionEnded("error", error))
            case _:
                error_id = secrets.token_hex(4)
                _log.error(
                    "session_failed_unexpectedly",
                    session_id=self.session_id,
                    part=name,
                    error_id=error_id,
                    exc_info=error,
                )
                failed = InferenceFailed("The session failed.", error_id=error_id)
                self.end(SessionEnded("error", failed))

    async def _read(self) -> None:
        while True:
            frame = await self._socket.receive()
            # Decoding a message may change the dialect's state, such as that of its audio decoder.
            self._is_taking = True
            await self._take(frame)
            self._is_taking = False
            self._socket.handled()

    async def _take(self, frame: str | bytes) -> None:
        try:
            decoded = await self._decode(frame)
            if self.voices is not None:
                await self._check_voice(decoded, self.voices)
            meant = self._dialect.events(decoded, self.phase)
            if self._dialect.wants_resume and not self._has_asked:
                self._offer_resume()
        except ParleyError as error:
            self.emit(Failed(error))
            return
        for each in meant:
            if isinstance(each, Reply):
                if not self.has_ended:
                    self._send(each, SessionEnded("stopped"))
            elif not self._act(each):
                return

    async def _check_voice(self, decoded: Any, voices: Voices) -> None:
        """Check that a named voice exists; otherwise the first answer would fail.

        Raises:
            ParleyError: it does not exist.
        """
        named = self._dialect.voice_in(decoded)
        if named is None:
            return
        name, error = named
        now_s = self.clock.monotonic()
        due_s = max(self._voice_due_s, now_s - VOICES_BURST * VOICE_EVERY_S)
        if due_s > now_s:
            limited = InvalidRequest(
                f"A session may name another voice {VOICES_BURST} times, and then once per "
                f"{VOICE_EVERY_S:g} s.",
                field=error.field,
            )
            limited.client_event_id = error.client_event_id
            raise limited
        self._voice_due_s = due_s + VOICE_EVERY_S
        if await asyncio.to_thread(voices.find, name) is None:
            raise error

    def _offer_resume(self) -> None:
        """Let a client that requested it resume the session after a cut."""
        self._has_asked = True
        self._socket.enable()
        first = None if self._rebuildable is None else self._rebuildable.first_entry()
        if first is not None:
            self.log(first)

    def _act(self, event: ClientEvent) -> bool:
        """Handle the client's request; returns True if that was possible."""
        try:
            if self._runner is not None:
                self._runner.accept(event)
        except ParleyError as error:
            self.emit(Failed(error, event))
            return False
        return True

    async def _decode(self, frame: str | bytes) -> Any:
        """Decodes a message; see `Dialect.decode`."""
        if isinstance(frame, bytes):
            frame = self._dialect.text_of(frame)
        if self._settle is not None:
            self._dialect = self._settle(self._dialect, frame)
            self._settle = None
        # A character takes at most four bytes, and counting the exact size would take longer.
        most_bytes = len(frame) if frame.isascii() else 4 * len(frame)
        if most_bytes <= self._dialect.on_loop_bytes:
            return self._dialect.decode(frame, self.phase)
        return await asyncio.to_thread(self._dialect.decode, frame, self.phase)

    async def _keep_time(self) -> None:
        moved = asyncio.Event()
        self.deadlines.changed = moved.set
        while True:
            moved.clear()
            self.deadlines.awaited_s = due_s = self.deadlines.next_due_s()
            wait_s = None if due_s is None else max(0.0, due_s - self.clock.monotonic())
            await wait_for_event(moved, wait_s)
            self.check_deadlines()

    # ---- the end ---------------------------------------------------------------------------

    async def _say_goodbye(self, ended: SessionEnded) -> None:
        self.log(ended)
        reply = self._last_words or self._dialect.encode(ended)
        code = 1011 if reply.close_code is None else reply.close_code
        closing_s = CLOSING_S
        if ended.reason != "disconnected" and not isinstance(ended.error, SlowClient):
            with contextlib.suppress(SlowClient):
                self._outbox.put([*self._paced.take_all(), *self._dialect.frames(reply)])
            self._outbox.close()
            # The close frame queues behind data that the network has accepted but not delivered.
            closing_s += self._outbox.patience_s
            if self._writer is not None:
                await asyncio.wait([self._writer], timeout=closing_s)
        with contextlib.suppress(TimeoutError, Disconnected):
            async with asyncio.timeout(closing_s):
                await self._socket.close(code, close_reason(reply.reason) or ended.reason)


def _forget_frames(error: ParleyError) -> None:
    """The frames of an error refer to its session, and to what the client has sent."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
