"""WebSocket connections: framing, both ends, keepalive, limits, passing on with back-pressure.

A `Connection` is all that others see of a WebSocket: `receive`, `send_text`, `pass_on` and `join`,
`close`. Nobody outside this package knows how frames look; import-linter checks it.
"""

from parley.gateway.transport.client import ClientConnection, DialFailed, dial
from parley.gateway.transport.clients import OpenConnections
from parley.gateway.transport.connection import (
    Budget,
    Closure,
    Connection,
    ConnectionClosed,
    ConnectionLimits,
    ConnectionState,
    Keepalive,
    Traffic,
)
from parley.gateway.transport.framing import ITEMS_LIMIT, LARGE_BYTES, Message
from parley.gateway.transport.http import BoundedHttp
from parley.gateway.transport.server import ServerConnection, connection_of

__all__ = [
    "ITEMS_LIMIT",
    "LARGE_BYTES",
    "BoundedHttp",
    "Budget",
    "ClientConnection",
    "Closure",
    "Connection",
    "ConnectionClosed",
    "ConnectionLimits",
    "ConnectionState",
    "DialFailed",
    "Keepalive",
    "Message",
    "OpenConnections",
    "ServerConnection",
    "Traffic",
    "connection_of",
    "dial",
]
