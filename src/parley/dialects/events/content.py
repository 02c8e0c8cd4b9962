"""Pictures, sound and clips as they were sent, and sound that was listened to as it came.

Files stay files here: the part that needs their content decodes them, away from the event loop.
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
    """Sound as it was sent: a WAV file, or raw float32 samples at `rate_hz`."""

    data: bytes
    rate_hz: int = 16_000


@dataclass(frozen=True, slots=True)
class Clip:
    """A video file. `stack_frames`: frames looked at per second."""

    file: bytes
    stack_frames: int = 1


Content = TextPart | Picture | Sound | Pcm | Clip | ToolCallPart | ToolResultPart
