"""Sound as dialects carry it: base64, references, pieces of at most a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from parley.dialects.events import Sound
from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import Pcm
from parley.protocol import codec

T = TypeVar("T")


def pcm_text(pcm: Pcm | None) -> str | None:
    """Base64 of little-endian float32 samples; None for no sound."""
    if pcm is None or not len(pcm):
        return None
    return codec.to_base64(pcm.samples.astype("<f4", copy=False).tobytes())


def pcm16_of(text: str, *, field: str, rate_hz: int) -> Pcm:
    """Base64 of 16-bit little-endian samples.

    Raises:
        InvalidPayload: it is none.
    """
    data = codec.from_base64(text, field=field)
    if len(data) % 2:
        raise InvalidPayload(f"{field} must hold 16-bit samples.", field=field)
    return Pcm(np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768), rate_hz)


def pcm16_text(pcm: Pcm) -> str:
    """Base64 of 16-bit little-endian samples."""
    scaled = np.clip(np.rint(pcm.samples * 32767.0), -32768, 32767)
    return codec.to_base64(scaled.astype("<i2").tobytes())


def in_seconds(pcm: Pcm | None) -> tuple[Pcm | None, list[Pcm]]:
    """Sound in pieces of at most a second: the first, None where there is no sound, and the others.

    No delta holds more than a second, also where a model says more in one go: at the end of a turn
    the speech decoder gives up what it held back. Source: realtime video protocol, "Output Audio
    Length".
    """
    if pcm is None or not len(pcm):
        return None, []
    second = pcm.rate_hz
    first, *others = (pcm.slice(start, start + second) for start in range(0, len(pcm), second))
    return first, others


def reference(data: bytes | None) -> Sound | None:
    """A reference voice, if there is one."""
    return None if data is None else Sound(data)


def within(payload: Callable[[], T]) -> T:
    """Decode a part of a message; one that is too large spoils this message, not the connection.

    Raises:
        InvalidPayload: as `payload` does, and instead of `TooLarge`, which closes connections.
    """
    try:
        return payload()
    except TooLarge as error:
        raise InvalidPayload(str(error), field=error.what) from error
