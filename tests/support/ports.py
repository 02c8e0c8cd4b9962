"""Ports for servers that must know theirs before they listen, or that return to it."""

import contextlib
import os
import socket
from itertools import count
from typing import Final

FIRST: Final = 10_000
COUNT: Final = 20_000
"""Below the ephemeral ports of the system: it would assign a released port again, to any other test
that connects or listens."""

# Each test process starts at another port.
_next = count(os.getpid() * 101)


def free_port() -> int:
    """A port of loopback on which no server listens, a different one each time."""
    while True:
        port = FIRST + next(_next) % COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
