"""The connection as its session sees it."""

from __future__ import annotations

from typing import Protocol

from parley.protocol.control import LEAVING_CODES


class Disconnected(Exception):
    """The other side of the socket is gone. `code`: its close code."""

    def __init__(self, code: int = 1006) -> None:
        super().__init__(f"closed with {code}")
        self.code = code

    @property
    def is_leaving(self) -> bool:
        """True if the client closed the connection to end the session."""
        return self.code in LEAVING_CODES


class SessionSocket(Protocol):
    """A message connection to one client."""

    async def receive(self) -> str | bytes:
        """The next message.

        Raises:
            Disconnected: there will be none.
        """
        ...

    async def send(self, frame: str | bytes) -> None:
        """Send one message; returns when the network has accepted it.

        Raises:
            Disconnected: it can no longer be sent.
        """
        ...

    async def close(self, code: int, reason: str) -> bool:
        """Close the connection and wait a moment for the other side's confirmation. Returns True if
        it arrived: the other side has then received everything. Safe to repeat."""
        ...
