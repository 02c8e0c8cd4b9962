"""The shipped dialects for tests: objects of one connection, and their messages."""

from types import ModuleType
from typing import Any, Literal

from parley.clock import Clock, ManualClock
from parley.dialects.base import Dialect, SessionContext
from parley.dialects.registry import installed
from parley.protocol import chat, duplex, half_duplex, realtime
from parley.protocol.kinds import Kind

DialectName = Literal["chat", "half_duplex", "duplex", "realtime"]

NAMES: tuple[DialectName, ...] = ("chat", "half_duplex", "duplex", "realtime")

MESSAGES: dict[str, ModuleType] = {
    "chat": chat,
    "half_duplex": half_duplex,
    "duplex": duplex,
    "realtime": realtime,
}


def connection(
    name: str,
    session_id: str = "s",
    *,
    kind: Kind | None = None,
    extensions: bool = False,
    clock: Clock | None = None,
) -> Dialect:
    """A shipped dialect for one client."""
    spoken = installed().find(name)
    assert spoken is not None
    return spoken(
        SessionContext(
            session_id, kind or spoken.kind, extensions=extensions, clock=clock or ManualClock()
        )
    )


def decode_client(dialect: Dialect, raw: bytes | str) -> Any:
    """Parse a client's message, in any phase."""
    return MESSAGES[dialect.name].decode_client(raw)


def decode_server(dialect: Dialect, raw: bytes | str) -> Any:
    """A server's message."""
    return MESSAGES[dialect.name].decode_server(raw)
