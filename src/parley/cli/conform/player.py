"""Plays one scripted session and checks every message of the server against its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from parley.cli.conform.orders import TABLES, LiveOrder, Order, RealtimeOrder, TableOrder
from parley.cli.conform.schemas import Check, check_of
from parley.client.access import Access, Socket, SocketClosed
from parley.client.connection import NETWORK

COMPLAINTS_MOST: Final = 20


class ScenarioEnded(Exception):
    """The session cannot continue as scripted; the message gives the reason."""


def order_of(dialect: str) -> Order:
    if dialect == "openai_realtime":
        return RealtimeOrder()
    if dialect == "openai_live":
        return LiveOrder()
    return TableOrder(TABLES[dialect])


@dataclass(slots=True)
class Player:
    """One session.

    Args:
        limit_s: time limit for an answer.
    """

    dialect: str
    socket: Socket
    limit_s: float
    told: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    close_code: int | None = None
    _order: Order = field(init=False)
    _check: Check = field(init=False)

    def __post_init__(self) -> None:
        self._order = order_of(self.dialect)
        self._check, _ = check_of(self.dialect)

    async def say(self, **message: Any) -> None:
        """Send a message.

        Raises:
            ScenarioEnded: the connection is closed.
        """
        try:
            await self.socket.send(json.dumps(message))
        except SocketClosed as closed:
            self._closed(closed)

    async def next(self) -> dict[str, Any]:
        """The next event, checked.

        Raises:
            ScenarioEnded: there is none in time, or the connection has ended.
        """
        try:
            async with asyncio.timeout(self.limit_s):
                text = await self.socket.receive()
        except TimeoutError:
            last = self.told[-1]["type"] if self.told else "nothing"
            raise ScenarioEnded(f"nothing more within {self.limit_s:g} s after {last}") from None
        except SocketClosed as closed:
            self._closed(closed)
        return self._seen(text)

    async def until(self, *names: str) -> dict[str, Any]:
        """The next event of one of these types.

        Raises:
            ScenarioEnded: it does not arrive, or an error arrives instead.
        """
        while (event := await self.next())["type"] not in names:
            if event["type"] == "error":
                raise ScenarioEnded(f"error in place of {' or '.join(names)}: {json.dumps(event)}")
        return event

    async def ask(self, name: str, **message: Any) -> dict[str, Any]:
        """Send a message; returns the next event of type `name`."""
        await self.say(**message)
        return await self.until(name)

    async def end(self) -> None:
        """Receive until the server closes the connection."""
        with contextlib.suppress(ScenarioEnded):
            while self.close_code is None:
                await self.next()
        if self.close_code is None:
            self._complain("the connection was not closed")

    def expect(self, holds: bool, sentence: str) -> None:
        """Record a complaint unless the condition is true."""
        if not holds:
            self._complain(sentence)

    def finish(self) -> None:
        for problem in self._order.end() if self.close_code is not None else ():
            self._complain(problem)

    def _seen(self, text: str | bytes) -> dict[str, Any]:
        if isinstance(text, bytes):
            raise ScenarioEnded("a binary message came")
        try:
            event = json.loads(text)
        except ValueError:
            raise ScenarioEnded(f"received a message that is not JSON: {text[:80]!r}") from None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise ScenarioEnded(f"a message without a type came: {text[:80]!r}")
        self.told.append(event)
        problem = self._check(text)
        if problem is not None:
            self._complain(f"{event['type']}: {problem}")
        try:
            for sentence in self._order.see(event):
                self._complain(f"{event['type']}: {sentence}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._complain(f"{event['type']}: it cannot be read ({error!r})")
        return event

    def _complain(self, sentence: str) -> None:
        if len(self.complaints) < COMPLAINTS_MOST:
            self.complaints.append(sentence)

    def _closed(self, closed: SocketClosed) -> Any:
        self.close_code = closed.code
        raise ScenarioEnded(f"the connection closed with {closed.code} {closed.reason}".rstrip())


@contextlib.asynccontextmanager
async def playing(access: Access, path: str, dialect: str, limit_s: float) -> AsyncIterator[Player]:
    """A connection to play on; its complaints are complete when the block ends."""
    socket = await NETWORK.connect(access, access.socket_url(path))
    player = Player(dialect, socket, limit_s)
    try:
        try:
            yield player
        except ScenarioEnded as ended:
            player.expect(False, str(ended))
        player.finish()
    finally:
        await socket.close()
