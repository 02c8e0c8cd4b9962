"""Three ways to use a model, over one slot; the public in-process Python API."""

from parley.protocol.values import Generation, TextPart
from parley.results import UnitResult
from parley.views.chat import ChatAnswer, ChatView
from parley.views.content import AudioPart, ImagePart, Message, Part, VideoPart
from parley.views.duplex import DuplexView, UnitPrefill
from parley.views.half_duplex import HalfDuplexView, Rollback, TurnRequest
from parley.views.processor import UnifiedProcessor
from parley.views.turns import StreamingChunk

__all__ = [
    "AudioPart",
    "ChatAnswer",
    "ChatView",
    "DuplexView",
    "Generation",
    "HalfDuplexView",
    "ImagePart",
    "Message",
    "Part",
    "Rollback",
    "StreamingChunk",
    "TextPart",
    "TurnRequest",
    "UnifiedProcessor",
    "UnitPrefill",
    "UnitResult",
    "VideoPart",
]
