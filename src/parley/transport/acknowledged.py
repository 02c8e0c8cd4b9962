"""How much of a TCP connection's output the peer's kernel has acknowledged.

A write buffer that is empty has reached our own kernel, not the peer: a path that carries small
packets and loses large ones (an MTU that is too small along the path) leaves hundreds of kilobytes
there before a writer notices. Nothing in flight says nothing: a peer that does not read closes its
window, and then nothing is sent.
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
        # Others have an option of this name, and other fields in it.
        return None
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _FIELDS.size)
    except OSError:
        # Closed meanwhile, or no TCP.
        return None
    if len(told) < _FIELDS.size:
        return None
    in_flight, acknowledged = _FIELDS.unpack(told)
    return acknowledged if in_flight else None
