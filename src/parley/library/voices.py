"""The voice used when a client brings none, kept as a WAV file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.media.wav import load


@dataclass(frozen=True, slots=True)
class Voice:
    """Reference audio and what people call it; mono at 16 kHz."""

    name: str
    pcm: Pcm


def read_voice(path: Path, *, limit_s: float) -> Voice:
    """Read a voice file; any rate and width.

    Raises:
        InvalidPayload, TooLarge: not a voice of at most `limit_s`.
        OSError: the file cannot be read.
    """
    return Voice(path.stem, resample(load(path, limit_s=limit_s), INPUT_RATE_HZ))
