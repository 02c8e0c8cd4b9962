"""WebSocket connections: framing, both ends, keepalive, limits, passing on with back-pressure.

A `Connection` is all that others see of a WebSocket: `receive`, `send_text`, `pass_on` and `join`,
`close`. Nobody outside this package knows how frames look; import-linter checks it.
"""

from parley.transport.client import ClientConnection, DialFailed, dial
from parley.transport.clients import Ended, OpenConnections
from parley.transport.connection import Connection
from parley.transport.framing import ITEMS_LIMIT, LARGE_BYTES, Message
from parley.transport.handshakes import TlsListener
from parley.transport.http import BoundedHttp
from parley.transport.keepalive import Keepalive
from parley.transport.limits import Budget, ConnectionLimits, Traffic, link_limits
from parley.transport.listening import BACKLOG, listen
from parley.transport.server import ServerConnection, connection_of
from parley.transport.state import Closure, ConnectionClosed, ConnectionState

__all__ = [
    "BACKLOG",
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
    "Ended",
    "Keepalive",
    "Message",
    "OpenConnections",
    "ServerConnection",
    "TlsListener",
    "Traffic",
    "connection_of",
    "dial",
    "link_limits",
    "listen",
]
