"""Reports how much of a TCP connection's output the peer's kernel has acknowledged.

If a write buffer is empty, its data has reached our own kernel, not the peer: if the path carries
small packets but loses large ones (because of a small MTU), hundreds of kilobytes remain in the
kernel before a writer notices. If nothing is in flight, there is no information: a peer that does
not read closes its window, and then nothing is sent.
"""

from __future__ import annotations

import socket
import struct
import sys
from asyncio import BaseTransport
from typing import Final

# unacked and bytes_acked of Linux's `struct tcp_info` (linux/tcp.h)
_FIELDS: Final = struct.Struct("=24xI92xQ")


def acknowledged_bytes(transport: BaseTransport) -> int | None:
    """Number of output bytes that the peer has acknowledged; None if nothing is in flight or the
    system does not report it."""
    if sys.platform != "linux":
        # Other systems have an option with this name, but with other fields.
        return None
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _FIELDS.size)
    except (OSError, ValueError):
        # Closed meanwhile (uvloop then has a negative descriptor), or not TCP.
        return None
    if len(info) < _FIELDS.size:
        return None
    in_flight, acknowledged = _FIELDS.unpack(info)
    return acknowledged if in_flight else None
