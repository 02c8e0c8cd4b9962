"""Plays one scripted session and checks every message of the server against its protocol.

OpenAI's events are compared with the types of the `openai` package if that is installed, else with
our own structs; all others with our structs, without additional fields. `orders.py` checks order.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec
from pydantic import TypeAdapter, ValidationError

from parley.cli.conform.orders import TABLES, LiveOrder, Order, RealtimeOrder, TableOrder
from parley.client.access import Access, Socket, SocketClosed
from parley.client.connection import NETWORK
from parley.protocol import (
    chat,
    duplex,
    half_duplex,
    minicpmo_v2,
    openai_live,
    openai_realtime,
    realtime,
)
from parley.protocol.openai import OpenAIServerEvent

Check = Callable[[str], str | None]
"""Returns the problem of a message, or None."""

_V2: Final = (
    realtime.SessionQueued,
    realtime.SessionQueueUpdate,
    realtime.SessionQueueDone,
    minicpmo_v2.Created,
    minicpmo_v2.Delta,
    minicpmo_v2.ChatResponseDone,
    minicpmo_v2.Closed,
    minicpmo_v2.ErrorMessage,
)


def _events_of(module: Any) -> tuple[type[msgspec.Struct], ...]:
    return tuple(
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, OpenAIServerEvent)
        and each.__struct_config__.tag is not None
    )


STRUCTS: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "chat": get_args(chat.ServerMessage),
    "half_duplex": get_args(half_duplex.ServerMessage),
    "duplex": get_args(duplex.ServerMessage),
    "realtime": get_args(realtime.ServerMessage),
    "minicpmo_v2": _V2,
    "openai_realtime": _events_of(openai_realtime),
    "openai_live": _events_of(openai_live),
}
PUBLISHED: Final = {
    "openai_realtime": ("openai.types.realtime", "RealtimeServerEvent"),
    "openai_live": ("openai.types.live", "ServerEvent"),
}


def check_of(dialect: str) -> tuple[Check, str]:
    """The check for events of a dialect, and the name of the schema that it uses."""
    if dialect in PUBLISHED:
        module, name = PUBLISHED[dialect]
        try:
            return _published(module, name), f"{module}.{name}"
        except ImportError:
            pass
    return _structs(STRUCTS[dialect]), "parley's own types"


def _published(module: str, name: str) -> Check:
    adapter: TypeAdapter[Any] = TypeAdapter(getattr(importlib.import_module(module), name))

    def check(text: str) -> str | None:
        raw = json.loads(text)
        try:
            event = adapter.validate_json(text, strict=True)
        except ValidationError as error:
            return f"it is not an event of {name}: {_reason(error, raw.get('type'))}"
        known = getattr(event, "type", None)
        return None if known == raw.get("type") else f"it was taken for '{known}'"

    return check


def _reason(error: Any, type_name: Any) -> str:
    """The error for the event's own type; validating a union reports errors for all types."""
    found: list[Any] = error.errors()
    others = {each["loc"][0] for each in found if each["loc"][-1] == "type"}
    own = [each for each in found if each["loc"][0] not in others] or found
    problems = (f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in own[:3])
    return f"{type_name} {'; '.join(problems)}"


def _structs(types: Iterable[type[msgspec.Struct]]) -> Check:
    by_type = {str(each.__struct_config__.tag): msgspec.json.Decoder(each) for each in types}

    def check(text: str) -> str | None:
        raw = json.loads(text)
        decoder = by_type.get(str(raw.get("type")))
        if decoder is None:
            return "there is no such event"
        fields = {field.encode_name for field in msgspec.structs.fields(decoder.type)}
        beyond = sorted(raw.keys() - fields - {"type"})
        if beyond:
            return f"it has fields that are not its own: {', '.join(beyond)}"
        try:
            decoder.decode(text)
        except msgspec.ValidationError as error:
            return str(error)
        return None

    return check


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
    events: list[dict[str, Any]] = field(default_factory=list)
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
            last = self.events[-1]["type"] if self.events else "nothing"
            raise ScenarioEnded(
                f"received nothing within {self.limit_s:g} s after {last}"
            ) from None
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
                raise ScenarioEnded(
                    f"received an error instead of {' or '.join(names)}: {json.dumps(event)}"
                )
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
            raise ScenarioEnded("received a binary message")
        try:
            event = json.loads(text)
        except ValueError:
            raise ScenarioEnded(f"received a message that is not JSON: {text[:80]!r}") from None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise ScenarioEnded(f"received a message without a type: {text[:80]!r}")
        self.events.append(event)
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
