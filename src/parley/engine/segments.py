"""Typed model input: what a view appends to a context, before a model turns it into tokens.

A view writes the layout of a conversation in these four words; the model knows which of its own
tokens stand for them. Neighbouring texts are one text to the tokenizer, so a view may cut text
wherever it likes.
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
"""How sound is meant to be heard: a clip inside a request, a finished user turn, the reference
voice in a system
prompt, or one unit of a live conversation. Models encode these differently (spec: three attention
patterns)."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words, as they stand."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Sound for the audio encoder; mono, 16 kHz."""

    pcm: Pcm
    hearing: Hearing = "clip"


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture for the vision encoder.

    Args:
        pixels: uint8, shape (height, width, 3), RGB.
        max_slices: upper bound of tiles, the overview not counted; None leaves it to the model's
            own default for the mode.
        with_id: number the pictures in the prompt; None leaves it to the model.
    """

    pixels: npt.NDArray[np.uint8]
    max_slices: int | None = None
    with_id: bool | None = None


class Mark(Enum):
    """Places in a conversation that are not content."""

    TURN_START = "turn_start"
    """Start of a turn of `role`. In half-duplex the model also closes what is still open before
    it."""
    TURN_END = "turn_end"
    """The turn of `role` is complete."""
    UNIT = "unit"
    """Start of one second of duplex."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A place in the conversation; `role` belongs to turn marks."""

    mark: Mark
    role: Role | None = None


Segment = Text | Audio | Image | Marker
