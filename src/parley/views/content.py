"""Content of a message, and its layout for a model.

Only values; the caller has decoded the media. Layout rules: sessions.md 2.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parley.engine.segments import Audio, Hearing, Image, Mark, Marker, Segment, Text
from parley.media.image import Pixels
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.media.video import VideoClip
from parley.protocol import content
from parley.protocol.values import TextPart, Tool, ToolCallPart, ToolResultPart
from parley.views import tools


@dataclass(frozen=True, slots=True, eq=False)
class AudioPart:
    """Audio, any rate. Equal to another part with the same samples."""

    pcm: Pcm

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AudioPart):
            return NotImplemented
        one, two = self.pcm, other.pcm
        return one.rate_hz == two.rate_hz and np.array_equal(one.samples, two.samples)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """A picture, uint8 (height, width, 3)."""

    pixels: Pixels


@dataclass(frozen=True, slots=True, eq=False)
class VideoPart:
    """The frames and audio of a clip."""

    clip: VideoClip


@dataclass(frozen=True, slots=True)
class ToolsPart:
    """The functions that the model may call; at the end of a system message."""

    tools: tuple[Tool, ...]


Part = TextPart | AudioPart | ImagePart | VideoPart | ToolsPart | ToolCallPart | ToolResultPart


Message = content.Message[Part]
"""One contribution to a conversation, decoded."""


_SEPARATORS: Mapping[type[Part], str] = {
    ToolsPart: "\n\n",
    ToolCallPart: "\n",
    ToolResultPart: "\n",
}
"""Separator before a part that is not the first; depends on the layout."""


def with_tools(messages: Sequence[Message], tools: tuple[Tool, ...]) -> list[Message]:
    """The messages, with a description of the functions in the first one."""
    first = messages[0] if messages and messages[0].role == "system" else None
    parts = () if first is None else first.parts
    return [
        Message("system", (*parts, ToolsPart(tools))),
        *messages[0 if first is None else 1 :],
    ]


def has_audio(message: Message) -> bool:
    """True if it contains audio."""
    return any(
        isinstance(part, AudioPart) or (isinstance(part, VideoPart) and bool(part.clip.sounds))
        for part in message.parts
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of parts as segments.

    Args:
        hearing: purpose of audio.
        joins_lines: True: line breaks between parts; the omni layout has none.
        max_slices, with_id: for pictures; None: the model decides.
    """

    hearing: Hearing
    joins_lines: bool
    max_slices: int | None = None
    with_id: bool | None = None

    def message(self, message: Message, *, is_closed: bool = True) -> list[Segment]:
        """A turn: its start, its content and, unless more may follow, its end."""
        segments: list[Segment] = [Marker(Mark.TURN_START, message.role)]
        segments += self.content(message.parts)
        if is_closed:
            segments.append(Marker(Mark.TURN_END, message.role))
        return segments

    def content(self, parts: Sequence[Part]) -> list[Segment]:
        """Parts one after the other; clips are expanded first."""
        segments: list[Segment] = []
        for part in parts:
            for segment in self._expanded(part):
                between = _SEPARATORS.get(type(part), "\n" if self.joins_lines else "")
                if segments and between:
                    segments.append(Text(between))
                segments.append(segment)
        return segments

    def _expanded(self, part: Part) -> Iterable[Segment]:
        match part:
            case TextPart(text):
                yield Text(text)
            case AudioPart(pcm):
                yield self._audio(pcm)
            case ImagePart(pixels):
                yield self._image(pixels)
            case VideoPart(clip):
                for piece in clip.parts():
                    yield self._audio(piece) if isinstance(piece, Pcm) else self._image(piece)
            case ToolsPart():
                yield Text(tools.section(part.tools))
            case ToolCallPart():
                yield Text(tools.call_text(part))
            case ToolResultPart():
                yield Text(tools.result_text(part))

    def _audio(self, pcm: Pcm) -> Audio:
        return Audio(resample(pcm, INPUT_RATE_HZ), self.hearing)

    def _image(self, pixels: Pixels) -> Image:
        return Image(pixels, self.max_slices, self.with_id)
