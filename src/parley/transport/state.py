"""States of a connection, and the way in which it was closed."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ConnectionState(enum.IntEnum):
    """The states of RFC 6455; a connection never returns to an earlier state."""

    CONNECTING = 0
    """The opening handshake (section 4) is in progress."""
    OPEN = 1
    """Messages are exchanged (section 4.1, last paragraph)."""
    CLOSING = 2
    """A close frame was sent or received, or the peer broke the rules (7.1.3, 7.1.7)."""
    CLOSED = 3
    """The transport is gone, or about to be (7.1.4)."""


@dataclass(frozen=True, slots=True)
class Closure:
    """How a connection ended. `code` 1006: it broke; `is_slow`: we closed it because the peer did
    not read."""

    code: int
    reason: str = ""
    is_slow: bool = False

    @property
    def is_clean(self) -> bool:
        """True if the peer closed the connection properly."""
        return self.code != 1006


class ConnectionClosed(Exception):
    """End of input, with the way in which the connection ended."""

    def __init__(self, closure: Closure) -> None:
        super().__init__(f"The connection ended with {closure.code}.")
        self.closure = closure
