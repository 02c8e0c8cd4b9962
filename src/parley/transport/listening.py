"""The socket on which a server listens."""

from __future__ import annotations

import errno
import socket
import sys
from typing import Final

from parley.errors import SetupError

BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        SetupError: the address is taken or not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise SetupError(
            f"'{host}' is not an address of this machine.",
            hint="Use --host 0.0.0.0 for all addresses or --host 127.0.0.1 for this machine only.",
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return SetupError(
            f"Port {port} is in use.",
            hint=f"Stop the other program, or choose a port: --port {port + 1}",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return SetupError(
            f"Port {port} may not be used by this user.",
            hint="Choose a port above 1023: --port 8006",
        )
    return SetupError(
        f"Cannot listen on {host}:{port}: {error.strerror}.",
        hint="Use --host 0.0.0.0 for all addresses or --host 127.0.0.1 for this machine only.",
    )
