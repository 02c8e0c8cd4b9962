"""Pictures, audio and clips in the form in which clients sent them.

Files are not decoded here: the code that needs their content decodes them off the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.media.pcm import Pcm
from parley.protocol.values import TextPart, ToolCallPart, ToolResultPart


@dataclass(frozen=True, slots=True)
class Picture:
    """A still image: a JPEG, PNG or WebP file."""

    file: bytes


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio as it was sent: a WAV file, or raw float32 samples at `rate_hz`."""

    data: bytes
    rate_hz: int = 16_000


@dataclass(frozen=True, slots=True)
class Clip:
    """A video file. `stack_frames`: frames used per second."""

    file: bytes
    stack_frames: int = 1


Content = TextPart | Picture | Sound | Pcm | Clip | ToolCallPart | ToolResultPart
