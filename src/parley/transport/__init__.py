"""WebSocket connections: framing, both ends, keepalive, limits, forwarding with back-pressure.

`Connection` is the interface of a WebSocket for other packages: `receive`, `send_text`, `pass_on`,
`join` and `close`. Only this package knows the format of frames; import-linter checks this.
"""

from parley.transport.allowance import RateLimit as RateLimit
from parley.transport.client import ClientConnection as ClientConnection
from parley.transport.client import DialFailed as DialFailed
from parley.transport.client import dial as dial
from parley.transport.clients import Ended as Ended
from parley.transport.clients import OpenConnections as OpenConnections
from parley.transport.connection import Connection as Connection
from parley.transport.framing import ITEMS_LIMIT as ITEMS_LIMIT
from parley.transport.framing import LARGE_BYTES as LARGE_BYTES
from parley.transport.framing import Message as Message
from parley.transport.handshakes import TlsListener as TlsListener
from parley.transport.keepalive import Keepalive as Keepalive
from parley.transport.limits import ARRIVAL_LIMIT_S as ARRIVAL_LIMIT_S
from parley.transport.limits import Budget as Budget
from parley.transport.limits import ConnectionLimits as ConnectionLimits
from parley.transport.limits import Traffic as Traffic
from parley.transport.limits import link_limits as link_limits
from parley.transport.listening import UvicornServer as UvicornServer
from parley.transport.listening import listen as listen
from parley.transport.listening import listen_on_loopback as listen_on_loopback
from parley.transport.server import ServerConnection as ServerConnection
from parley.transport.server import connection_of as connection_of
from parley.transport.state import Closure as Closure
from parley.transport.state import ConnectionClosed as ConnectionClosed
from parley.transport.state import ConnectionState as ConnectionState
