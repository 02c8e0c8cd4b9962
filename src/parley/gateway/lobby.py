"""Keeps a client company until its session begins.

Tells it its place in its own dialect, reads what it sends meanwhile, and notices at once when it
leaves. Of the messages that may come early only the type is looked at: one `prepare` or
`session.update` is kept as it is for the worker, a wish to stop is a cancellation, and the rest
gets the dialect's answer. Source: service.md 2.4, 2.6, 4.2-4.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from parley.clock import Clock
from parley.errors import (
    InvalidJson,
    InvalidRequest,
    ParleyError,
    ServiceUnavailable,
    UnknownEvent,
    WrongPhase,
)
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.frames import Message
from parley.gateway.port import Closure, Port, PortClosed
from parley.gateway.queue import Ticket
from parley.protocol import chat, codec
from parley.protocol.dialects import Dialect
from parley.protocol.values import Answer

T = TypeVar("T")

KEPT: Final = frozenset({"prepare", "session.update"})
STOPS: Final = frozenset({"stop", "session.close"})
IGNORED: Final = frozenset({"client_diagnostic"})


class Departed(Exception):
    """The client left, or was told the last word: nothing more to do for it."""

    def __init__(self, why: str, *, is_error: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_error = is_error
        """Whether `why` is the code of an error that the client was told."""


@dataclass(frozen=True, slots=True)
class LobbyLimits:
    """`total_s` counts from the accept and is None where the dialect has no such limit."""

    update_every_s: float = 3.0
    first_message_s: float = 30.0
    total_s: float | None = None


class Lobby:
    """One waiting client. Use as an async context manager; `closing` is shared by all lobbies and
    done when the server shuts down."""

    def __init__(
        self,
        port: Port,
        dialect: Dialect,
        *,
        session_id: str,
        dispatcher: Dispatcher,
        clock: Clock,
        limits: LobbyLimits,
        closing: asyncio.Future[None],
    ) -> None:
        self._port = port
        self._dialect = dialect
        self._session_id = session_id
        self._dispatcher = dispatcher
        self._clock = clock
        self._limits = limits
        self._closing = closing
        self._began_at = clock.monotonic()
        self._receiving: asyncio.Task[Message] | None = None
        self._ticket: Ticket | None = None
        self._poke: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told_position = 0
        self._told_at = 0.0
        self.request: Message | None = None
        """Chat's one message."""
        self.kept: Message | None = None
        """An early `prepare` or `session.update`."""
        self.had_to_wait = False

    async def __aenter__(self) -> Lobby:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop_receiving()

    async def first_request(self) -> Message:
        """Chat: wait for the request and check it as far as words go.

        Raises:
            Departed: the client left or got its answer.
        """
        deadline = self._clock.monotonic() + self._limits.first_message_s
        while self.request is None:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                elapsed_s = self._limits.first_message_s
                self._last_word(self._dialect.closed("timeout", elapsed_s=elapsed_s), "timeout")
            await self._event(None, timeout_s=left_s)
        return self.request

    async def until_leased(self, ticket: Ticket) -> None:
        """Wait for `ticket` to become a lease.

        Raises:
            Departed: the client left or got its answer.
            ParleyError: the ticket was refused.
        """
        if self._ticket is not ticket:
            self._ticket = ticket
            ticket.changed = self._wake
        while ticket.state == "waiting":
            self._tell(ticket)
            await self._event(None, timeout_s=self._next_update_s())
        if ticket.state == "cancelled":
            self._last_word(self._dialect.cancelled(), "cancelled")
        if ticket.refusal is not None:
            raise ticket.refusal

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` while the client is being listened to.

        Raises:
            Departed: the client left; `work` was cancelled and has ended.
        """
        task = asyncio.create_task(work, name="lobby work")
        try:
            while not task.done():
                await self._event(task, timeout_s=None)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def hand_over(self) -> None:
        """The session begins: say so if the dialect does, and stop reading. What the client sends
        from here on stays in the port."""
        self._stop_receiving()
        if self._dialect.announces_assignment or self.had_to_wait:
            self._port.send_text(codec.encode(self._dialect.queue_done()).encode())

    # Telling

    def _tell(self, ticket: Ticket) -> None:
        now = self._clock.monotonic()
        is_first = not self.had_to_wait
        is_due = now - self._told_at >= self._limits.update_every_s
        if not (is_first or is_due or ticket.position != self._told_position):
            return
        self.had_to_wait = True
        self._dispatcher.refresh()
        place = ticket.place(len(self._dispatcher.queue))
        phrase = self._dialect.queued if is_first else self._dialect.queue_update
        self._port.send_text(codec.encode(phrase(place)).encode())
        self._told_at = now
        self._told_position = ticket.position

    def _next_update_s(self) -> float:
        return max(0.0, self._told_at + self._limits.update_every_s - self._clock.monotonic())

    def _wake(self) -> None:
        if not self._poke.done():
            self._poke.set_result(None)

    # Listening

    async def _event(self, task: asyncio.Task[Any] | None, *, timeout_s: float | None) -> None:
        """Wait until something happened and deal with what the client did."""
        if self._receiving is None:
            self._receiving = asyncio.create_task(self._port.receive(), name="lobby reader")
        waited: set[asyncio.Future[Any]] = {self._receiving, self._poke, self._closing}
        if task is not None:
            waited.add(task)
        left_s = self._left_s()
        limits_s = [seconds for seconds in (timeout_s, left_s) if seconds is not None]
        await asyncio.wait(
            waited,
            timeout=min(limits_s, default=None),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._poke.done():
            self._poke = asyncio.get_running_loop().create_future()
        if self._receiving.done():
            receiving, self._receiving = self._receiving, None
            try:
                message = receiving.result()
            except PortClosed as end:
                raise Departed(_why(end.closure)) from None
            self._heard(message)
        if self._closing.done():
            self._say_closing()
        if left_s is not None and self._left_s() == 0:
            elapsed_s = self._clock.monotonic() - self._began_at
            answer = self._dialect.closed(
                "timeout", session_id=self._session_id, elapsed_s=elapsed_s
            )
            self._last_word(answer, "timeout")

    def _left_s(self) -> float | None:
        if self._limits.total_s is None:
            return None
        return max(0.0, self._began_at + self._limits.total_s - self._clock.monotonic())

    def _heard(self, message: Message) -> None:
        try:
            if self._dialect.name == "chat" and self.request is None:
                self._check_request(message)
                self.request = message
            else:
                self._early(message)
        except ParleyError as error:
            answer = (
                self._dialect.refuse(error)
                if self._dialect.name == "chat"
                else self._dialect.answer(error)
            )
            self._say(answer)
            if answer.close_code is not None:
                raise Departed(error.code, is_error=True) from error

    def _check_request(self, message: Message) -> None:
        if not message.is_text:
            raise InvalidJson
        request = self._dialect.decode_client(message.payload())
        if not isinstance(request, chat.Request):
            raise InvalidRequest("The first message must be a chat request.")

    def _early(self, message: Message) -> None:
        """A message that comes while there is no session yet."""
        if not message.is_text:
            raise InvalidJson
        is_chat = self._dialect.name == "chat"
        try:
            name = codec.type_of(message.payload())
        except ParleyError:
            if is_chat:
                return
            raise
        if name in STOPS and any(name in names for names in self._dialect.accepts.values()):
            self._last_word(self._dialect.closed("stopped", session_id=self._session_id), "stopped")
        if is_chat or name in IGNORED:
            return
        if not any(name in names for names in self._dialect.accepts.values()):
            raise UnknownEvent(name)
        self._dialect.check("queued", name)
        if name in KEPT:
            if self.kept is not None:
                raise WrongPhase(name, "queued")
            self.kept = message

    # Last words

    def _say_closing(self) -> None:
        if self._dialect.name == "realtime":
            answer = self._dialect.closed("server_shutdown", session_id=self._session_id)
        else:
            answer = self._dialect.refuse(ServiceUnavailable("The server is shutting down."))
        self._last_word(answer, "server_shutdown")

    def _say(self, answer: Answer) -> None:
        say(self._port, answer)

    def _last_word(self, answer: Answer, why: str) -> None:
        self._say(answer)
        raise Departed(why)

    def _stop_receiving(self) -> None:
        if self._receiving is None:
            return
        receiving, self._receiving = self._receiving, None
        receiving.cancel()


def say(port: Port, answer: Answer) -> None:
    """Send an answer's messages, and close if it says so."""
    for text in answer.frames():
        port.send_text(text.encode())
    if answer.close_code is not None:
        port.close(answer.close_code)


def _why(closure: Closure) -> str:
    return "slow client" if closure.is_slow else f"closed with {closure.code}"
