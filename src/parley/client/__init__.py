"""The Python client: one class per dialect, asynchronous, with a synchronous facade (`sync`)."""

from parley.client.access import ConnectionLost, RemoteError, Unreachable
from parley.client.admin import Server
from parley.client.chat import ChatClient
from parley.client.devices import Loudspeaker, Microphone
from parley.client.duplex import DuplexClient
from parley.client.half_duplex import HalfDuplexClient
from parley.client.realtime import RealtimeClient
from parley.errors import TimedOut

__all__ = [
    "ChatClient",
    "ConnectionLost",
    "DuplexClient",
    "HalfDuplexClient",
    "Loudspeaker",
    "Microphone",
    "RealtimeClient",
    "RemoteError",
    "Server",
    "TimedOut",
    "Unreachable",
]
