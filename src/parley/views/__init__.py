"""One model used in three ways, over one seat; the public in-process Python API."""

from parley.views.chat import ChatAnswer, ChatView
from parley.views.content import AudioPart, ImagePart, Message, Part, TextPart, VideoPart
from parley.views.duplex import DuplexView, UnitHeard, UnitResult
from parley.views.half_duplex import HalfDuplexView, Rollback, TurnRequest
from parley.views.processor import UnifiedProcessor
from parley.views.turns import Generation, StreamingChunk

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
    "UnitHeard",
    "UnitResult",
    "VideoPart",
]
