"""Typed model input: what a view appends to a context before a model turns it into tokens.

A view describes the layout of a conversation with these four types; the model maps them to its own
tokens. The tokenizer sees adjacent texts as one, so a view may split text anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
import numpy.typing as npt

from parley.media.pcm import Pcm
from parley.protocol.values import Role

Hearing = Literal["clip", "turn", "voice", "live"]
"""Purpose of audio: a clip inside a request, a finished user turn, the reference voice in a system
prompt, or one unit of a live conversation. Models encode these differently (spec: three attention
patterns)."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Audio for the audio encoder; mono, 16 kHz."""

    pcm: Pcm
    hearing: Hearing = "clip"


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture for the vision encoder.

    Args:
        pixels: uint8, shape (height, width, 3), RGB.
        max_slices: maximum number of tiles, without the overview; None: the model's default for the
            mode.
        with_id: number the pictures in the prompt; None: the model decides.
    """

    pixels: npt.NDArray[np.uint8]
    max_slices: int | None = None
    with_id: bool | None = None


class Mark(Enum):
    """Marks in a conversation that are not content."""

    TURN_START = "turn_start"
    """Start of a turn of `role`. In half-duplex the model also closes an open turn before it."""
    TURN_END = "turn_end"
    """The turn of `role` is complete."""
    UNIT = "unit"
    """Start of a duplex unit of one second."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A mark in the conversation; `role` belongs to turn marks."""

    mark: Mark
    role: Role | None = None


Segment = Text | Audio | Image | Marker
