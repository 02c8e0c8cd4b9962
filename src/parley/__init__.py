"""parley: real-time voice and video conversation with one model and many people.

    import parley

    async with parley.HalfDuplexClient("https://localhost:8006") as talk: ...

The names below are imported when they are first used; importing `parley` is cheap and never imports
torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.client import (
        ChatClient,
        DuplexClient,
        HalfDuplexClient,
        Loudspeaker,
        Microphone,
        RealtimeClient,
        Server,
        sync,
    )
    from parley.errors import ParleyError
    from parley.media.pcm import Pcm

__version__ = "0.1.0"

# Before anything imports ONNX Runtime, which otherwise collects events for its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "ChatClient",
    "DuplexClient",
    "HalfDuplexClient",
    "Loudspeaker",
    "Microphone",
    "ParleyError",
    "Pcm",
    "RealtimeClient",
    "Server",
    "__version__",
    "sync",
]

_HOMES = {
    "ChatClient": "parley.client",
    "DuplexClient": "parley.client",
    "HalfDuplexClient": "parley.client",
    "Loudspeaker": "parley.client",
    "Microphone": "parley.client",
    "ParleyError": "parley.errors",
    "Pcm": "parley.media.pcm",
    "RealtimeClient": "parley.client",
    "Server": "parley.client",
}


def __getattr__(name: str) -> Any:
    if name == "sync":
        return importlib.import_module("parley.client.sync")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'parley' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
