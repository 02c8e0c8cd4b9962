"""The program at the other end of a connection: the client's, or a proxy's in front of it.

A program on this machine that runs as the server's own user, or as root, could read the server's
files and needs no token or secret. A proxy on this machine connects from the same address for
strangers, often without a header that shows it, but packages run it as a user of its own.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from parley.protocol.networks import is_loopback

FORWARDED_HEADERS: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-proto"}
)
ROOT: Final = 0

End = tuple[str, int]
"""Address and port."""

# Messages about one socket: linux/netlink.h, sock_diag.h, inet_diag.h.
_ASKS: Final = struct.Struct("=IHHII BBBBI")
_ENDS: Final = struct.Struct("!HH16s16s 12s")
_SAYS: Final = struct.Struct("=4xH10x 4x48x 12xII")
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ANY: Final = bytes(4) + b"\xff" * 8
"""Any interface, and no cookie of the kernel's."""
_LIMIT_S: Final = 0.1


@dataclass(frozen=True)
class Peer:
    """The other end of the connection of a request.

    Args:
        address: its address; None: not known.
        is_proxy: True if the request shows that a proxy sent it.
        ends: its end and ours; None: not known.
    """

    address: str | None
    is_proxy: bool = False
    ends: tuple[End, End] | None = None

    @classmethod
    def of(cls, scope: Scope, headers: Mapping[str, str]) -> Peer:
        client, server = scope.get("client"), scope.get("server")
        # nginx as it comes sends HTTP/1.0 or, with its lines for WebSockets, an empty upgrade, as
        # no client does.
        is_nginx = scope.get("http_version") == "1.0" or (
            "upgrade" in headers.get("connection", "").lower() and "upgrade" not in headers
        )
        return cls(
            address=client[0] if client else None,
            is_proxy=is_nginx or any(name in headers for name in FORWARDED_HEADERS),
            ends=(client, server) if client and server else None,
        )

    @functools.cached_property
    def is_own_program(self) -> bool:
        """True if it runs on this machine as the server's own user or as root. On other systems
        than Linux, which do not show the user, every program on this machine counts."""
        if self.is_proxy or not is_loopback(self.address):
            return False
        if sys.platform != "linux":
            return True
        return self.ends is not None and user_of(*self.ends) in (ROOT, os.geteuid())


def user_of(client: End, server: End) -> int | None:
    """The user whose program has the client's end of a connection within this machine; None if no
    program has it any more, or if Linux does not say."""
    given = [ipaddress.ip_address(address) for address, _ in (client, server)]
    addresses = [getattr(one, "ipv4_mapped", None) or one for one in given]
    family = socket.AF_INET if addresses[0].version == 4 else socket.AF_INET6
    ends = _ENDS.pack(client[1], server[1], *(one.packed for one in addresses), _ANY)
    size = _ASKS.size + len(ends)
    about = (family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
            asking.settimeout(_LIMIT_S)
            asking.send(_ASKS.pack(size, _BY_FAMILY, _REQUEST, 0, 0, *about) + ends)
            said = asking.recv(4096)
    except OSError:
        return None
    if len(said) < _SAYS.size:
        return None
    kind, user, inode = _SAYS.unpack_from(said)
    # Without an inode: a closed connection, which has no user, and would say 0.
    return user if kind == _BY_FAMILY and inode else None
