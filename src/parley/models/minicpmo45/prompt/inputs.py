"""Conversion of engine segments to a prompt and its media.

Views describe the contents of a conversation in segments; this module converts them to messages,
placeholders and lists of pictures and clips, by the rules of each mode. Only `fuse` uses the
device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.errors import BadInput
from parley.models.minicpmo45.audio_encoder.mel import HOP, PIECE_SAMPLES, Samples, token_count
from parley.models.minicpmo45.llm.network import LanguageModel
from parley.models.minicpmo45.prompt.layout import (
    Part,
    Prompt,
    PromptMessage,
    PromptPicture,
    PromptSound,
    Role,
)
from parley.models.minicpmo45.vision_encoder.pictures import Pixels

PICTURES_PER_STEP = 4
"""Maximum number of pictures of one request that one step cuts and encodes."""

CLIPS_PER_STEP = 4
"""Maximum number of 30-second pieces of one request that one step encodes."""


@dataclass(slots=True)
class Media:
    """Pictures and audio of one request, in the order of their placeholders, and the tokens encoded
    so far.

    Args:
        pictures: pixels and slice limit; `seen` their tokens so far.
        groups: audio clips; those of one group are one signal to the encoder.
        clips: these signals, cut every 30 s (`cut_clips`); `heard` their tokens so far.
        chunked: True if the encoder's one-second chunk mask applies to them.
        live: the next piece of a live stream, or None.
        is_last: True if the live stream ends with it.
    """

    pictures: list[tuple[Pixels, int | None]] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    groups: list[list[Samples]] = field(default_factory=list)
    clips: list[Samples] = field(default_factory=list)
    heard: list[Tensor] = field(default_factory=list)
    chunked: bool = True
    live: Samples | None = None
    live_tokens: Tensor | None = None
    is_last: bool = False

    def add_picture(self, image: Image, *, max_slices: int | None, with_id: bool) -> PromptPicture:
        """Add a picture; its own options override the mode's defaults."""
        limit = image.max_slices if image.max_slices is not None else max_slices
        numbered = image.with_id if image.with_id is not None else with_id
        height, width = image.pixels.shape[:2]
        self.pictures.append((image.pixels, limit))
        return PromptPicture(len(self.pictures) - 1, width, height, limit, numbered)

    def begin_group(self) -> None:
        """Start a group: later clips are not joined to earlier ones."""
        self.groups.append([])

    def add_clip(self, samples: Samples, *, pool_step: int) -> PromptSound:
        if not self.groups:
            self.begin_group()
        self.groups[-1].append(samples)
        return PromptSound(token_count(len(samples), pool_step))

    def signals(self) -> list[Samples]:
        """Input of the encoder: the clips of each group as one signal."""
        return [np.concatenate(group) for group in self.groups if group]

    def cut_clips(self) -> None:
        self.clips = [
            signal[first : first + PIECE_SAMPLES]
            for signal in self.signals()
            for first in range(0, max(1, len(signal)), PIECE_SAMPLES)
        ]

    @property
    def is_done(self) -> bool:
        return (
            len(self.seen) == len(self.pictures)
            and len(self.heard) == len(self.clips)
            and not self.is_live_due
        )

    @property
    def is_live_due(self) -> bool:
        """True if the piece of a live stream has not been encoded yet."""
        return self.live is not None and self.live_tokens is None

    @property
    def next_pictures(self) -> list[tuple[Pixels, int | None]]:
        return self.pictures[len(self.seen) : len(self.seen) + PICTURES_PER_STEP]

    @property
    def next_clips(self) -> list[Samples]:
        return self.clips[len(self.heard) : len(self.heard) + CLIPS_PER_STEP]

    @property
    def longest_frames(self) -> int:
        """Number of mel frames of the longest clip, to which all clips of a request are padded."""
        return max((math.ceil(len(clip) / HOP) for clip in self.clips), default=0)

    @property
    def audio(self) -> Tensor | None:
        if self.live_tokens is not None:
            return self.live_tokens
        return torch.cat(self.heard) if self.heard else None


def turns(segments: Iterable[Segment]) -> list[tuple[Role, list[Text | Image | Audio]]]:
    """Group segments by turn. Segments outside of any turn form a user's turn."""
    found: list[tuple[Role, list[Text | Image | Audio]]] = []
    is_open = False
    for segment in segments:
        if isinstance(segment, Marker):
            if segment.mark is Mark.UNIT:
                raise BadInput("A turn-based conversation has no units.")
            is_open = segment.mark is Mark.TURN_START
            if is_open:
                found.append((segment.role or "user", []))
            continue
        if not is_open:
            found.append(("user", []))
            is_open = True
        found[-1][1].append(segment)
    return found


def chat_messages(
    segments: Iterable[Segment],
    media: Media,
    *,
    max_slices: int | None,
    with_id: bool,
    pool_step: int,
) -> list[PromptMessage]:
    """A whole request as messages for the template. Clips of one message are joined for the
    encoder."""
    messages: list[PromptMessage] = []
    for role, content in turns(segments):
        media.begin_group()
        parts: list[Part] = []
        for segment in content:
            match segment:
                case Text(text):
                    parts.append(text)
                case Image():
                    parts.append(media.add_picture(segment, max_slices=max_slices, with_id=with_id))
                case Audio():
                    parts.append(media.add_clip(segment.pcm.samples, pool_step=pool_step))
        messages.append(PromptMessage(role, tuple(parts)))
    return messages


def fuse(
    llm: LanguageModel, prompt: Prompt, pictures: Sequence[Tensor], audio: Tensor | None
) -> Tensor:
    """Embeddings (n, H) of a prompt: token embeddings, and media tokens at their placeholders.

    Audio tokens fill the audio placeholders in order, regardless of their clip: joined clips have a
    few more tokens than their placeholders, and the surplus is not used.

    Args:
        pictures: per picture (pieces, query_num, H).
        audio: all audio tokens of the request (n, H).

    Raises:
        BadInput: there are fewer audio tokens than placeholders.
    """
    embeds = llm.embed(prompt.ids)
    pieces = iter([piece for picture in pictures for piece in picture])
    heard = embeds[:0] if audio is None else audio
    for place in prompt.places:
        if place.kind == "image":
            rows = next(pieces)
        else:
            rows, heard = heard[: place.count], heard[place.count :]
        if rows.shape[0] != place.count:
            raise BadInput("The encoder returned fewer tokens for a clip than its length requires.")
        embeds[place.start : place.end] = rows.to(embeds.dtype)
    return embeds
