"""Decodes audio files of any common format to 16 kHz mono.

Nothing is trusted: lengths in headers are ignored, and decoded data is bounded before it is stored.
A server calls it only in a decoder's child process (see `decoder`).
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np

from parley.errors import InvalidPayload, TooLarge
from parley.media.container import open_container
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.media.resample import resample
from parley.media.wav import clipped, read_blocks, with_length


class _File(io.BytesIO):
    """A file for libsndfile, which may seek before the start because of damaged headers. Such a
    seek is ignored, because an error would be printed with a traceback instead of being raised."""

    def seek(self, offset: int, whence: int = 0) -> int:
        with contextlib.suppress(ValueError):
            return super().seek(offset, whence)
        return self.seek(0, io.SEEK_CUR)


def decode_sound(data: bytes, *, limit_s: float, what: str = "The audio") -> Pcm:
    """Decode an audio file of any common format (WAV, FLAC, Ogg, MP3; M4A and WebM if PyAV is
    installed), or raw float32 samples at 16 kHz, to 16 kHz mono.

    Args:
        what: its name in errors.

    Raises:
        InvalidPayload: it is not audio.
        TooLarge: longer than `limit_s`.
    """
    import soundfile

    try:
        with soundfile.SoundFile(_File(with_length(data))) as file:
            pcm = read_blocks(file, limit_s, what)
    except (soundfile.LibsndfileError, RuntimeError, OverflowError) as error:
        pcm = _decode_with_av(data, limit_s, what, error)
    return resample(clipped(pcm), INPUT_RATE_HZ)


def _decode_with_av(data: bytes, limit_s: float, what: str, failure: Exception) -> Pcm:
    """Decode files that libsndfile cannot read; raw samples in the wire format are tried last."""
    try:
        import av
    except ModuleNotFoundError:
        return _raw(data, limit_s, what, failure)
    blocks: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    count = 0
    try:
        with open_container(data) as container:
            stream = next(iter(container.streams.audio), None)
            if stream is None:
                raise InvalidPayload("The file contains no sound.")
            # Channels are averaged here: FFmpeg's own mixing makes equal channels louder.
            resampler = av.AudioResampler("fltp", None, INPUT_RATE_HZ)
            for frame in container.decode(stream):
                for piece in resampler.resample(frame):
                    block = piece.to_ndarray().mean(axis=0, dtype=np.float32)
                    count += len(block)
                    if count > limit_s * INPUT_RATE_HZ:
                        raise TooLarge(what, count / INPUT_RATE_HZ, limit_s, "s")
                    blocks.append(block)
    except (av.FFmpegError, ValueError) as error:
        return _raw(data, limit_s, what, error)
    return Pcm(np.concatenate(blocks) if blocks else np.zeros(0, np.float32), INPUT_RATE_HZ)


def _raw(data: bytes, limit_s: float, what: str, failure: Exception) -> Pcm:
    sentence = "The audio has an unknown format. Send WAV, FLAC, MP3, Ogg, MP4 or WebM."
    if len(data) % 4 or not data:
        raise InvalidPayload(sentence) from failure
    # Text or a picture, read as float32, contains extreme numbers; audio does not.
    samples = np.frombuffer(data, "<f4")
    if not np.isfinite(samples).all() or np.abs(samples).max() > 8:
        raise InvalidPayload(sentence) from failure
    if len(samples) > limit_s * INPUT_RATE_HZ:
        raise TooLarge(what, len(samples) / INPUT_RATE_HZ, limit_s, "s")
    return from_float32_bytes(data, INPUT_RATE_HZ)
