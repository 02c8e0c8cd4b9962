"""Base of the three live clients: connect, wait, get ready, talk, leave.

    async with HalfDuplexClient("https://localhost:8006") as talk:
        async for event in talk:
            ...

Iterating drives everything: events arrive as the server sends them, and the opening message is sent
automatically when a worker is assigned. A broken connection is reopened (`Reconnecting`); during a
conversation the session is resumed (`Reconnected`) for as long as the server keeps it, and
`ConnectionLost` is raised if that is impossible.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from types import ModuleType
from typing import Any, ClassVar, Final, Self

import msgspec

from parley.client import events
from parley.client.access import Access, ConnectionLost, SocketClosed, as_error
from parley.client.connection import LIVE_S, LONGEST_WAIT_S, Attempts, Link, Outgoing, open_socket
from parley.client.pace import Collected
from parley.client.resuming import FINAL_CODES, Returning, end_session, with_query
from parley.client.sound import ClientSound, file_out
from parley.clock import Clock, SystemClock
from parley.errors import NotReady, ParleyError, Refused, SetupError, TimedOut, UnknownEvent
from parley.media.pcm import Pcm
from parley.protocol import legacy, realtime, resume
from parley.protocol.resume import QUERY as RESUME_QUERY
from parley.protocol.values import PlaybackReport
from parley.tasks import end_tasks

IN_VAIN_LIMIT: Final = 3
"""Number of connections without a message after which no other one is tried."""
SHORTEST_WAIT_S: Final = 0.1
"""Pause between the first attempts to resume a session."""


_warning = msgspec.json.Decoder(resume.GoingAway)


def _going_away(frame: str | bytes) -> events.EndsSoon | None:
    """The warning that a session will end; None: the message belongs to a later version."""
    try:
        message = _warning.decode(frame)
    except msgspec.MsgspecError:
        return None
    return events.EndsSoon(message.time_left_s, message.reason)


def common_event(message: Any) -> events.Event | None:
    """The event for a message that several dialects share; None if there is none."""
    match message:
        case legacy.PlaceFields():
            return events.Waiting(
                message.position, message.estimated_wait_s, message.ticket_id, message.queue_length
            )
        case legacy.QueueDone() | realtime.SessionQueueDone():
            return events.Assigned()
        case legacy.InterruptionFields():
            return events.Interruption(message.state, message.heard_ms, message.text)
        case legacy.InputTranscript(text=text):
            return events.Transcript(text)
        case realtime.InputTranscriptionCompleted(transcript=text):
            return events.Transcript(text)
        case legacy.LossFields():
            return events.RecordingIncomplete(message.entries)
        case legacy.Stopped():
            return events.Ended("stopped")
        case legacy.Error():
            return events.Problem(as_error(message.code, message.error or message.message))
        case realtime.RealtimeError(error=body):
            return events.Problem(as_error(body.code, body.message))
        case _:
            return None


class LiveClient(ABC):
    """A live conversation. Use one of the subclasses."""

    chunk_samples: ClassVar[int] = 512
    """Number of samples at 16 kHz to send at a time, e.g. from a microphone. Half a window of the
    server's detector, so that it quickly detects ends of turns and interruptions."""

    _messages: ModuleType
    """The module of `parley.protocol` with the messages of this dialect."""
    _opening: Outgoing
    """The message that prepares the session."""
    _closing: Outgoing | None = None
    """The message that ends the session; None: the dialect has none."""
    _live_s = LIVE_S
    _sound_fields: ClassVar[tuple[str, str]]
    """Fields with audio in this dialect's messages: of the client, of the server."""
    _error_ends = False
    """True if an error is always the last message in this dialect."""

    def __init__(
        self, access: Access, path: str, *, clock: Clock | None = None, resume: bool = True
    ) -> None:
        self._access = access
        self._path = path
        self._clock = clock or SystemClock()
        self._sound = ClientSound(*self._sound_fields)
        self._link: Link | None = None
        self._problem: ParleyError | None = None
        self._attempts = Attempts(access, self._clock)
        self._returning = Returning() if resume else None
        self._lost: ConnectionLost | None = None
        self._lost_at = 0.0
        self._in_vain = 0
        """Number of connections since the server's last message."""
        self._coming_back: asyncio.Task[events.Event] | None = None
        """The pending read, which is kept if the iterating task stops waiting."""
        self._leaving = False
        self._was_opened = False
        self._kept: deque[events.Event | Exception] = deque()
        self._reading = asyncio.Lock()
        self._news = asyncio.Event()
        self.loudspeaker: Callable[[], float] | None = None
        """If `interruption` is on: returns the seconds of received audio that were not played yet.
        This is sent to the server with all audio, so that it knows which part of an interrupted
        answer was heard; without it, the server assumes that audio is played as it arrives."""
        self.phase: str = "closed"
        """Phase of the session: `queued`, `connected`, `active` or `closed`."""

    # -- overridden by dialects --

    def _decode(self, frame: str | bytes) -> Any:
        """Decodes a message of the server.

        Raises:
            UnknownEvent: the message belongs to a later version.
        """
        return self._messages.decode_server(self._sound.text(frame))

    def _translate(self, message: Any) -> events.Event | None:
        """A message of this dialect as an event; None if clients do not need it."""
        return common_event(message)

    # -- public methods --

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> events.Event:
        """The next event.

        Raises:
            ParleyError: the server refused or ended the conversation; the class shows the reason.
            ConnectionLost: the connection broke during the conversation.
        """
        async with self._reading:
            if not self._kept:
                return await self._read()
            kept = self._kept.popleft()
        if isinstance(kept, Exception):
            raise kept
        return kept

    async def turns(self) -> AsyncGenerator[events.Turn, None]:
        """Answers, each when it is complete; ends with the session. Other events are skipped.

        Raises:
            ParleyError: as when iterating.
        """
        collected = Collected()
        async for event in self:
            turn = collected.take(event)
            if turn is not None:
                yield turn

    async def send_from(self, source: AsyncIterable[Pcm]) -> None:
        """Send audio of a microphone (chunks of `chunk_samples`) until it ends, the session ends,
        or the task is cancelled. Iterate in another task meanwhile."""
        async for chunk in source:
            if self.phase != "active":
                return
            self.send_chunk(chunk)

    @abstractmethod
    def send_chunk(self, pcm: Pcm) -> None:
        """Send the next audio of a microphone, normally `chunk_samples`. If the network cannot keep
        up, the oldest waiting audio is dropped (`dropped`).

        Raises:
            NotReady: before `Ready`.
            ConnectionLost: the connection is gone.
        """

    async def ready(self, *, timeout_s: float | None = None) -> events.Ready:
        """Wait until the session is ready; queue events are skipped.

        Raises:
            TimedOut: `timeout_s` was not enough.
            ParleyError: the session did not become ready.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async for event in self:
                    if isinstance(event, events.Ready):
                        return event
                    if isinstance(event, events.Problem):
                        raise event.error
        except TimeoutError:
            raise TimedOut("Waiting for a place", timeout_s or 0) from None
        raise ConnectionLost(1000, "the session ended before it was ready", 0)

    def write(self, text: str, *pictures: bytes) -> None:
        """Add written text to the conversation, and up to four pictures (JPEG, PNG or WebP files);
        they are answered aloud. Pictures alone belong to the next speech or text.

        If the model does not support this, there is a `Problem` (half-duplex: an error at the end).

        Raises:
            NotReady: before `Ready`.
            ConnectionLost: the connection is gone.
        """
        images = tuple(file_out("pictures", picture) for picture in pictures)
        self._active("text").post(self._written(text, images))

    def _written(self, text: str, images: tuple[str, ...]) -> msgspec.Struct:
        return legacy.InputText(text=text, images=images)

    async def stop(self) -> None:
        """Request the end of the session; keep iterating until `Ended`."""
        self._leaving = True
        if self._closing is not None:
            self._connected().post(self._closing)

    async def close(self) -> None:
        """Leave. Requests the end first, unless that was done; safe to repeat. If the connection is
        broken, the request is sent by HTTP, so that the session's slot is free immediately."""
        link, self._link = self._link, None
        if link is None:
            return
        is_running, is_cut = self.phase == "active", self._lost is not None
        closing = None if self._leaving or is_cut or self.phase == "closed" else self._closing
        if closing is not None:
            try:
                link.post(closing)
            except ConnectionLost:
                self._leaving = True  # The connection is closed.
        self._lost, self.phase = None, "closed"
        coming, self._coming_back = self._coming_back, None
        if coming is not None:
            await end_tasks(coming)
        if is_cut:
            await asyncio.gather(link.abandon(), self._say_goodbye())
        elif not await link.close() and is_running:
            await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        if (returning := self._resumable) is not None:
            await end_session(self._access, returning.session_id)

    @property
    def dropped(self) -> int:
        """Number of live messages that were dropped because the network could not keep up."""
        return 0 if self._link is None else self._link.dropped

    # -- sending, even if no task iterates --

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Read during the block, so that the server's messages take effect. Events and errors are
        kept for a task that iterates now or later."""
        reading = asyncio.create_task(self._keep(), name="parley-client-reader")
        try:
            yield
        finally:
            await end_tasks(reading)

    async def _keep(self) -> None:
        while True:
            async with self._reading:
                try:
                    self._kept.append(await self._read())
                except (ParleyError, StopAsyncIteration) as error:
                    self._kept.append(error)
                    return

    async def _next_event(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _until_active(self) -> None:
        """Within `_listening`: wait until the session is ready.

        Raises:
            ParleyError: the session does not become ready.
        """
        while self.phase != "active":
            self._check_opened()
            if self.phase == "closed":
                failed = self._kept.pop() if self._kept else None
                raise failed if isinstance(failed, ParleyError) else NotReady("sound", self.phase)
            await self._next_event()

    # -- private --

    async def _read(self) -> events.Event:
        self._check_opened()
        while True:
            if self.phase == "closed":
                raise StopAsyncIteration
            try:
                is_cut = self._lost is not None or self._coming_back is not None
                event = await self._returned() if is_cut else await self._next()
            except ConnectionLost as lost:
                event = await self._after(lost)
            finally:
                self._news.set()
            if event is not None:
                return event

    def _check_opened(self) -> None:
        if not self._was_opened:
            raise SetupError("The conversation has not been opened.", hint="Use `async with`.")

    async def _open(self) -> None:
        self._was_opened = True
        while True:
            try:
                path = self._attempts.path(self._path)
                self._link = await Link.open(self._access, path, live_s=self._live_s)
                self._link.frame = self._sound.frame
                if self._returning is not None:
                    # Numbers start again with each session.
                    self._returning = Returning()
                self.phase = "queued"
                return
            except ParleyError as error:
                await self._attempts.pause(error)

    def _connected(self) -> Link:
        if self._link is None:
            raise NotReady("message", self.phase)
        return self._link

    async def _next(self) -> events.Event | None:
        link = self._connected()
        returning = self._resumable
        frame = await link.receive(question=None if returning is None else returning.question)
        self._in_vain = 0
        if self._returning is not None and link.sent is not None:
            if not self._returning.take(frame):
                return None
            if (ack := self._returning.due_ack()) is not None:
                link.post_aside(ack)
        try:
            message = self._decode(frame)
        except UnknownEvent:
            return _going_away(frame)
        event = self._translate(message)
        match event:
            case events.Waiting(ticket_id=ticket_id):
                self._attempts.waits(ticket_id)
            case events.Assigned():
                self.phase = "connected"
                if self._returning is not None:
                    link.sent = self._returning.sent
                link.post(self._opening)
                return event
            case events.Ready(session_id=session_id):
                if self._returning is not None:
                    self._returning.session_id = session_id
                self.phase = "active"
                self._problem = None
            case events.Ended():
                self.phase = "closed"
            case events.Problem(error):
                if self._error_ends or isinstance(error, Refused):
                    self.phase = "closed"
                    raise error
                # If the connection closes next, this is the reason.
                self._problem = error
            case _ if event is not None:
                self._problem = None
        return event

    async def _returned(self) -> events.Event | None:
        """Wait for `_come_back`; None if the client has left meanwhile. Cancelling loses
        nothing."""
        coming = self._coming_back
        if coming is None:
            coming = asyncio.create_task(self._come_back(), name="parley-client-return")
            self._coming_back = coming
        await asyncio.wait({coming})
        self._coming_back = None
        return None if coming.cancelled() else coming.result()

    async def _come_back(self) -> events.Event:
        """Continue the session over another connection.

        Raises:
            ParleyError: it does not continue: the lost connection, or the reason.
        """
        link, returning, lost = self._connected(), self._returning, self._lost
        assert returning is not None
        assert lost is not None
        resuming = with_query(self._path, f"{RESUME_QUERY}=true")
        wait_s, due_s = 0.0, self._lost_at + returning.window_s
        while True:
            now_s = self._clock.monotonic()
            if returning.waits_s:
                due_s, returning.waits_s = max(due_s, now_s + returning.waits_s), 0.0
            if now_s > due_s:
                raise self._gone(lost) from None
            await asyncio.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s + SHORTEST_WAIT_S)
            try:
                socket = await open_socket(self._access, resuming)
            except ParleyError:
                # Any response, or none, may be due to a server that is restarting.
                continue
            try:
                async with asyncio.timeout(self._access.open_timeout_s):
                    again = await returning.open(socket)
            except (SocketClosed, TimeoutError):
                await socket.close()
                continue
            except ParleyError as error:
                await socket.close()
                raise self._gone(error) from None
            except asyncio.CancelledError:
                await socket.close()
                raise
            await link.move(socket, again)
            self._lost = None
            self._in_vain += 1
            return events.Reconnected(self._clock.monotonic() - self._lost_at)

    def _gone(self, why: ParleyError) -> ParleyError:
        self._lost, self.phase = None, "closed"
        return why

    def _may_come_back(self, lost: ConnectionLost) -> bool:
        return (
            self._resumable is not None
            and self.phase == "active"
            and not self._leaving
            and self._problem is None
            and lost.ended_with not in FINAL_CODES
            and self._in_vain < IN_VAIN_LIMIT
        )

    @property
    def _resumable(self) -> Returning | None:
        """Token and numbers of a session that the server can resume; else None."""
        returning = self._returning
        return returning if returning is not None and returning.is_possible else None

    async def _after(self, lost: ConnectionLost) -> events.Event | None:
        if self._may_come_back(lost):
            self._lost, self._lost_at = lost, self._clock.monotonic()
            return events.Reconnecting(1, lost)
        link, self._link = self._link, None
        phase, self.phase = self.phase, "closed"
        if link is not None:
            await link.close()
        if self._problem is not None:
            raise self._problem from None
        if self._leaving and phase == "active" and lost.ended_with not in FINAL_CODES:
            # It is unknown if the request for the end was received.
            await self._say_goodbye()
        if self._leaving or lost.ended_with == 1000:
            return None
        if phase not in ("queued", "connected"):
            raise lost from None
        await self._attempts.pause(lost)
        await self._open()
        return events.Reconnecting(self._attempts.made, lost)

    def _playback(self) -> PlaybackReport | msgspec.UnsetType:
        if self.loudspeaker is None:
            return msgspec.UNSET
        buffered_ms = 1000 * max(0.0, self.loudspeaker())
        return PlaybackReport(received_ms=self._sound.received_ms, buffered_ms=buffered_ms)

    def _active(self, what: str) -> Link:
        if self.phase != "active":
            raise NotReady(what, self.phase)
        return self._connected()


def given(value: str | msgspec.UnsetType) -> str | None:
    """A field that may be missing."""
    return value if isinstance(value, str) else None
