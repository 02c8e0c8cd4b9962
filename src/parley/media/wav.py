"""WAV files and bytes ↔ `Pcm`.

libsndfile does the reading, so every sample width and rate it knows is welcome. It is loaded at
first use: a client that never touches a file never pays for it. `N` samples, `C` channels.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import Pcm, Samples
from parley.protocol.codec import is_wav

CHANNELS_MOST: Final = 8
CHUNKS_MOST: Final = 100
"""Parts of a file in which its samples are looked for; a hostile one has a million empty ones."""
RATE_LEAST_HZ: Final = 1000
RATE_MOST_HZ: Final = 192_000
"""A file beyond this is not a recording of a voice, but a small file that becomes large."""

_WAV_FORMATS = ("WAV", "WAVEX", "RF64")
_BLOCK_FRAMES: Final = 65_536
_HEADER_BYTES: Final = 12


def decode_wav(data: bytes, *, limit_s: float | None = None) -> Pcm:
    """Any width, any rate; channels are averaged. The rate stays as it is in the file.

    Raises:
        InvalidPayload: not a WAV file that can be read.
        TooLarge: longer than `limit_s`; nothing has been decoded then.
    """
    return _decode(io.BytesIO(with_length(data)), limit_s)


def with_length(data: bytes) -> bytes:
    """A WAV file that was written to a pipe, where some (Python's `wave`) leave 0 as the length of
    what follows, with the length that others write: unknown. Any other file as it is."""
    at = _HEADER_BYTES
    for _ in range(CHUNKS_MOST if is_wav(data) else 0):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if data[at - 8 : at - 4] == b"data":
            is_open = size == 0 and int.from_bytes(data[4:8], "little") <= at - 8
            unknown = b"\xff" * 4
            return data[:4] + unknown + data[8 : at - 4] + unknown + data[at:] if is_open else data
        at += size + size % 2
    return data


def _decode(source: BinaryIO, limit_s: float | None) -> Pcm:
    import soundfile

    if not is_wav(source.read(_HEADER_BYTES)):
        raise InvalidPayload("The audio is not a WAV file.")
    source.seek(0)
    try:
        with soundfile.SoundFile(source) as file:
            if file.format not in _WAV_FORMATS:
                raise InvalidPayload("The audio is not a WAV file.")
            if limit_s is not None and file.frames / file.samplerate > limit_s:
                raise TooLarge("The audio", file.frames / file.samplerate, limit_s, "s")
            return clipped(read_blocks(file))
    except soundfile.LibsndfileError as error:
        raise InvalidPayload("The WAV file cannot be read.") from error


def read_blocks(file: Any, limit_s: float = math.inf, what: str = "The audio") -> Pcm:
    """The channels of an open sound file averaged, block by block: they are never there together as
    a whole. What is not finite stays so.

    Raises:
        InvalidPayload: a rate or number of channels that no recording of a voice has.
        TooLarge: longer than `limit_s`.
    """
    rate_hz, channels = int(file.samplerate), file.channels
    if not RATE_LEAST_HZ <= rate_hz <= RATE_MOST_HZ or channels > CHANNELS_MOST:
        raise InvalidPayload(
            f"Audio must have at most {CHANNELS_MOST} channels and {RATE_LEAST_HZ} to "
            f"{RATE_MOST_HZ} samples per second, got {channels} and {rate_hz}."
        )
    blocks: list[Samples] = []
    count = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        count += len(block)
        if count > limit_s * rate_hz:
            raise TooLarge(what, max(file.frames, count) / rate_hz, limit_s, "s")
        with np.errstate(invalid="ignore", over="ignore"):
            blocks.append(block.mean(axis=1, dtype=np.float32))
    return Pcm(np.concatenate(blocks) if blocks else np.zeros(0, np.float32), rate_hz)


def clipped(pcm: Pcm) -> Pcm:
    """Sound within ±1.

    Raises:
        InvalidPayload: a sample is not a finite number.
    """
    if not np.isfinite(pcm.samples).all():
        raise InvalidPayload("Audio contains samples that are not finite numbers.")
    return Pcm(np.clip(pcm.samples, -1.0, 1.0), pcm.rate_hz)


def encode_wav(pcm: Pcm, bits: Literal[16, 24, 32] = 16) -> bytes:
    """A mono WAV file with 16 or 24 bit integers, or 32 bit floats, which are lossless."""
    import soundfile

    subtype = {16: "PCM_16", 24: "PCM_24", 32: "FLOAT"}[bits]
    buffer = io.BytesIO()
    soundfile.write(buffer, pcm.samples, pcm.rate_hz, format="WAV", subtype=subtype)
    return buffer.getvalue()


def load(path: Path | str, *, limit_s: float | None = None) -> Pcm:
    """Read a WAV file; see `decode_wav`. Stops reading if it is not one or is too long."""
    with Path(path).open("rb") as file:
        return _decode(file, limit_s)


def save(path: Path | str, pcm: Pcm, bits: Literal[16, 24, 32] = 16) -> None:
    """Write a WAV file; see `encode_wav`."""
    Path(path).write_bytes(encode_wav(pcm, bits))
