"""The Python client: one class per dialect, asynchronous, with a synchronous facade (`sync`)."""

from parley.client.admin import Server
from parley.client.chat import ChatClient
from parley.client.connection import ConnectionLost, RemoteError, Unreachable
from parley.client.duplex import DuplexClient
from parley.client.half_duplex import HalfDuplexClient
from parley.client.realtime import RealtimeClient

__all__ = [
    "ChatClient",
    "ConnectionLost",
    "DuplexClient",
    "HalfDuplexClient",
    "RealtimeClient",
    "RemoteError",
    "Server",
    "Unreachable",
]
