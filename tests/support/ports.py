"""Ports for servers that need to know theirs before they listen, or that come back to it."""

import contextlib
import os
import socket
from itertools import count
from typing import Final

FIRST: Final = 10_000
COUNT: Final = 20_000
"""Below those that a system hands out by itself: what a system has handed out and taken back, it
hands out again, to whatever connects or listens meanwhile in any other test."""

# Each test process begins elsewhere.
_next = count(os.getpid() * 101)


def free_port() -> int:
    """A port of loopback on which nothing listens, another one each time."""
    while True:
        port = FIRST + next(_next) % COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
