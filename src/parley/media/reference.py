"""Reference voices: recordings of a voice that a model imitates, at 16 kHz, mono."""

from __future__ import annotations

from pathlib import Path

from parley.errors import InvalidPayload
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.resample import resample
from parley.media.wav import load

MIN_S = 0.1
"""Minimum length; a shorter recording does not represent a voice."""


def read_voice(path: Path | str, *, limit_s: float) -> Pcm:
    """Read a voice file of any rate and width; mono at 16 kHz.

    Raises:
        InvalidPayload, TooLarge: not a voice of at most `limit_s`.
        OSError: the file cannot be read.
    """
    return resample(load(path, limit_s=limit_s), INPUT_RATE_HZ)


def require_length(voice: Pcm) -> None:
    """Raises `InvalidPayload` if a reference voice is too short."""
    if voice.duration_s < MIN_S:
        raise InvalidPayload(
            f"The reference audio is too short: {voice.duration_s:g} s, at least {MIN_S:g} s "
            "are needed."
        )
