"""Serves a client until its session starts.

Sends the client its place in the queue in its dialect, reads its messages, and notices immediately
when it leaves. Only the type of early messages is read: those that the dialect keeps go to the
worker unchanged, a request to stop cancels the ticket, and the dialect answers the others. Source:
service.md 2.4, 2.6, 4.2-4.5.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

import msgspec

from parley.dialects.base import Dialect, Reply, close_reason
from parley.dialects.registry import DialectRegistry
from parley.errors import InvalidJson, ParleyError, ServiceUnavailable, TooLarge, WrongPhase
from parley.gateway.acquisition import ClientWatch, Departed
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.large_json import read_aside
from parley.gateway.queue import Ticket
from parley.protocol import codec, openai
from parley.protocol.resume import AGAIN_CODE
from parley.settings import LimitSettings
from parley.transport import LARGE_BYTES, Closure, Connection, ConnectionClosed, Message

SHUTTING_DOWN: Final = "The server is shutting down."


class QueueWaiter(ClientWatch[Message]):
    """A waiting client of a socket. Use as an async context manager.

    Args:
        limits: early messages together may be as large as one message.
        total_s: time limit since the handshake; None: the dialect has none.
        closing: completed when the server shuts down; its result is true if another gateway takes
            over.
    """

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        *,
        dialects: DialectRegistry,
        dispatcher: Dispatcher,
        limits: LimitSettings,
        update_every_s: float,
        total_s: float | None,
        closing: asyncio.Future[bool],
    ) -> None:
        super().__init__(closing)
        self._connection = connection
        self.dialect = dialect
        """The client's dialect, as far as it is known."""
        self._dialects = dialects
        self._is_settled = False
        self._dispatcher = dispatcher
        self._clock = dispatcher.clock
        self._first_message_s = limits.chat_first_message_s
        self._kept_bytes = int(limits.frame_mb * (1 << 20))
        self._update_every_s = update_every_s
        self._total_s = total_s
        self._began_at = self._clock.monotonic()
        self._told_position = 0
        self._told_at = 0.0
        self.request: Message | None = None
        """The message that precedes the queue, in dialects that have one."""
        self.kept: list[Message] = []
        """Early messages for the worker."""
        self.had_to_wait = False

    async def first_request(self) -> None:
        """Wait for the first request (`Dialect.asks_first`) and check everything that does not need
        the model. One that has arrived in part may take as long as the connection gives it.

        Raises:
            Departed: the client left or was refused.
        """
        deadline = self._clock.monotonic() + self._first_message_s
        while self.request is None:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 and not self._connection.is_in_message:
                elapsed_s = self._first_message_s
                self._last_word(self.dialect.closed("timeout", elapsed_s=elapsed_s), "timeout")
            await self._event(None, timeout_s=left_s if left_s > 0 else None)

    def cancelled(self) -> NoReturn:
        """Tell the client that its ticket was cancelled.

        Raises:
            Departed: always.
        """
        self._last_word(self.dialect.cancelled(), "cancelled")

    async def hand_over(self, worker: Connection) -> None:
        """Start the session: notify the client if its dialect has a message for that, stop reading,
        and return the early messages for the worker. Later messages stay in the connection."""
        await self._stop_receiving()
        if self.dialect.announces_assignment or self.had_to_wait:
            self._send(self.dialect.queue_done())
        for message in (self.request, *self.kept):
            if message is not None:
                worker.pass_on(message)
                self._connection.forget(message)
        self.request = None
        self.kept.clear()

    # Called by the watch

    def inform(self, ticket: Ticket) -> float | None:
        now = self._clock.monotonic()
        is_first = not self.had_to_wait
        is_due = now - self._told_at >= self._update_every_s
        if is_first or is_due or ticket.position != self._told_position:
            self.had_to_wait = True
            self._dispatcher.refresh()
            place = ticket.place(len(self._dispatcher.queue))
            phrase = self.dialect.queued if is_first else self.dialect.queue_update
            self._send(phrase(place))
            self._told_at = now
            self._told_position = ticket.position
        return max(0.0, self._told_at + self._update_every_s - self._clock.monotonic())

    async def received(self, what: Message) -> None:
        try:
            await self._settle(what)
            if not what.is_text:
                raise InvalidJson("The message must be JSON in a text frame, got a binary one.")
            if self.dialect.asks_first and self.request is None:
                check = self.dialect.check_request
                await read_aside(what.size, lambda: check(_content(what)))
                self.request = what
            else:
                await self._early(what)
        except ParleyError as error:
            answer = self.dialect.answer(error)
            send_answer(self._connection, self.dialect, answer)
            if answer.close_code is not None:
                raise Departed(error.code, is_error=True) from error
        finally:
            if not any(what is each for each in (self.request, *self.kept)):
                self._connection.forget(what)

    def server_closes(self) -> None:
        if self._closing.result() and self.had_to_wait and self.dialect.extensions:
            # At the next gateway its ticket gets it the same place.
            self._connection.close(AGAIN_CODE, "try again")
            raise Departed("server_shutdown")
        self._last_word(
            self.dialect.shutting_down(ServiceUnavailable(SHUTTING_DOWN)), "server_shutdown"
        )

    def deadline_s(self) -> float | None:
        if self._total_s is None:
            return None
        return max(0.0, self._began_at + self._total_s - self._clock.monotonic())

    def expired(self) -> None:
        elapsed_s = self._clock.monotonic() - self._began_at
        answer = self.dialect.closed("timeout", elapsed_s=elapsed_s)
        self._last_word(answer, "timeout")

    # Messages

    async def next(self) -> Message:
        try:
            return await self._connection.receive()
        except ConnectionClosed as end:
            why, is_cut_off = _why(end.closure), not end.closure.is_clean
            raise Departed(why, is_cut_off=is_cut_off) from None

    async def _settle(self, first: Message) -> None:
        """The dialect of the path if only the first message determines it."""
        if self._is_settled or not first.is_text:
            return
        self._is_settled = True
        if self._dialects.is_provisional(self.dialect):
            self.dialect = await read_aside(
                first.size, lambda: self._dialects.settle(self.dialect, first.payload())
            )

    async def _early(self, message: Message) -> None:
        """Handle a message that arrives before the session."""
        dialect = self.dialect
        try:
            name = await read_aside(message.size, lambda: codec.type_of(_content(message)))
        except ParleyError:
            if dialect.asks_first:
                return
            raise
        try:
            found = dialect.early(name)
            if found == "keep":
                self._keep(name, message)
        except ParleyError as error:
            error.client_event_id = await read_aside(
                message.size, lambda: openai.event_id_of(message.payload())
            )
            raise
        if found == "stop":
            self._last_word(dialect.closed("stopped"), "stopped")

    def _keep(self, name: str, message: Message) -> None:
        if len(self.kept) >= self.dialect.keeps_most:
            raise WrongPhase(name, "queued")
        size = sum(each.size for each in self.kept) + message.size
        if size > self._kept_bytes:
            raise TooLarge("What was sent before the session began", size, self._kept_bytes)
        self.kept.append(message)

    # Answers and refusals

    def _last_word(self, answer: Reply, why: str) -> NoReturn:
        send_answer(self._connection, self.dialect, answer)
        raise Departed(why)

    def _send(self, message: msgspec.Struct | None) -> None:
        frame = None if message is None else self.dialect.frame(message)
        if frame is not None:
            _send_frame(self._connection, frame)


def send_answer(connection: Connection, dialect: Dialect, answer: Reply) -> None:
    """Send an answer's messages; close the connection if the answer does."""
    for frame in dialect.frames(answer):
        _send_frame(connection, frame)
    if answer.close_code is not None:
        connection.close(answer.close_code, close_reason(answer.reason))


def _send_frame(connection: Connection, frame: str | bytes) -> None:
    # Binary audio is negotiated with a worker, so this answer does not mention it.
    assert isinstance(frame, str)
    connection.send_text(frame.encode())


def _content(message: Message) -> bytes | bytearray:
    return message.payload() if message.size <= LARGE_BYTES else message.large_payload()


def _why(closure: Closure) -> str:
    return "slow client" if closure.is_slow else f"closed with {closure.code}"
