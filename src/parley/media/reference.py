"""Decodes a client's reference voice to 16 kHz mono.

Source: service.md 4.0: raw float32 samples at 16 kHz, or a WAV file with any rate, width and number
of channels, recognised by the RIFF/WAVE header.
"""

from __future__ import annotations

from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.media.resample import resample
from parley.media.wav import decode_wav
from parley.protocol.codec import is_wav

MIN_S = 0.1
"""Minimum length; a shorter recording does not represent a voice."""


def decode_reference(data: bytes, *, limit_s: float = 60.0) -> Pcm:
    """The voice in `data`, 16 kHz mono.

    Raises:
        InvalidPayload: it is neither a readable WAV file nor float32 samples, or it is too short.
        TooLarge: it is longer than `limit_s`.
    """
    if is_wav(data):
        voice = decode_wav(data, limit_s=limit_s)
    else:
        voice = from_float32_bytes(data, INPUT_RATE_HZ)
    if voice.duration_s > limit_s:
        raise TooLarge("The reference audio", voice.duration_s, limit_s, "s")
    require_length(voice)
    return resample(voice, INPUT_RATE_HZ)


def require_length(voice: Pcm) -> None:
    """Raises `InvalidPayload` if a reference voice is too short."""
    if voice.duration_s < MIN_S:
        raise InvalidPayload(
            f"The reference audio is too short: {voice.duration_s:g} s, at least {MIN_S:g} s "
            "are needed."
        )
