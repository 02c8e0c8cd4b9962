"""Encodes audio files piece by piece while the audio is being generated.

WAV and raw samples are written here; MP3, Opus, AAC and FLAC by PyAV, if it is installed. Blocking:
a second of audio takes some milliseconds.
"""

from __future__ import annotations

import importlib.util
import io
import struct
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import numpy as np

from parley.errors import InvalidRequest
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, to_pcm16_bytes

SoundFormat = Literal["pcm", "wav", "mp3", "opus", "aac", "flac"]
Compressed = Literal["mp3", "opus", "aac", "flac"]

MEDIA_TYPES: Final[Mapping[SoundFormat, str]] = {
    "pcm": "audio/pcm",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
}

_UNKNOWN_BYTES: Final = 0xFFFFFFFF
"""Length field of an unfinished WAV file, as players expect it in streams."""
_WAV_HEADER_BYTES: Final = 44


class Encoder(Protocol):
    """Encodes audio."""

    def add(self, pcm: Pcm) -> bytes:
        """Add audio at the encoder's rate; returns the bytes that are final, possibly none."""
        ...

    def finish(self) -> bytes:
        """Return the last bytes; nothing may follow."""
        ...


def open_encoder(
    form: SoundFormat, rate_hz: int = OUTPUT_RATE_HZ, file: io.BytesIO | None = None
) -> Encoder:
    """An encoder of mono audio.

    Args:
        file: see `AvEncoder`.

    Raises:
        InvalidRequest: this installation cannot write the format.
    """
    match form:
        case "pcm":
            return SampleEncoder()
        case "wav":
            return SampleEncoder(wav_header(rate_hz, None))
    if importlib.util.find_spec("av") is None:
        raise InvalidRequest(
            f"This server cannot write {form}: only wav and pcm, until PyAV is installed.",
            field="response_format",
        )
    return AvEncoder(form, rate_hz, file)


def encode_whole(form: SoundFormat, pcm: Pcm) -> bytes:
    """A complete file.

    Raises:
        InvalidRequest: see `open_encoder`.
    """
    if form == "wav":
        data = to_pcm16_bytes(pcm)
        return wav_header(pcm.rate_hz, len(data)) + data
    # Some headers contain the length: in a file, a compressed format can update them.
    whole = io.BytesIO()
    encoder = open_encoder(form, pcm.rate_hz, whole)
    data = encoder.add(pcm) + encoder.finish()
    return whole.getvalue() or data


def wav_header(rate_hz: int, data_bytes: int | None) -> bytes:
    """WAV header of 16-bit mono samples; `data_bytes` is None if the length is not known yet."""
    data = _UNKNOWN_BYTES if data_bytes is None else data_bytes
    whole = _UNKNOWN_BYTES if data_bytes is None else data_bytes + _WAV_HEADER_BYTES - 8
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16)
    return b"".join(
        (b"RIFF", struct.pack("<I", whole), b"WAVEfmt ", form, b"data", struct.pack("<I", data))
    )


class SampleEncoder:
    """16-bit little-endian samples, raw or behind a header."""

    def __init__(self, header: bytes = b"") -> None:
        self._header = header

    def add(self, pcm: Pcm) -> bytes:
        header, self._header = self._header, b""
        return header + to_pcm16_bytes(pcm)

    def finish(self) -> bytes:
        return self._header


_CODECS: Final[Mapping[str, tuple[str, str, dict[str, str]]]] = {
    # Without the first frame with tables, which is written last, at the start of the file.
    "mp3": ("mp3", "libmp3lame", {"write_xing": "0"}),
    "opus": ("ogg", "libopus", {"page_duration": "200000"}),
    "aac": ("adts", "aac", {}),
    "flac": ("flac", "flac", {}),
}
"""Container, codec and container options; Ogg pages of 200 ms instead of one second."""
_BITS_PER_S: Final = {"mp3": 64_000, "opus": 32_000, "aac": 64_000}


class AvEncoder:
    """Encodes a compressed format with FFmpeg.

    Args:
        file: a seekable file that receives the bytes instead of the caller.
    """

    def __init__(self, form: Compressed, rate_hz: int, file: io.BytesIO | None = None) -> None:
        import av

        container, codec, options = _CODECS[form]
        self._av: Any = av
        self._rate_hz = rate_hz
        self._sink = _Sink()
        self._container: Any = av.open(
            self._sink if file is None else file,
            mode="w",
            format=container,
            container_options=options,
        )
        self._stream: Any = self._container.add_stream(codec, rate=rate_hz, layout="mono")
        if form in _BITS_PER_S:
            self._stream.bit_rate = _BITS_PER_S[form]
        self._samples = 0

    def add(self, pcm: Pcm) -> bytes:
        if not len(pcm):
            return b""
        samples = np.frombuffer(to_pcm16_bytes(pcm), "<i2").reshape(1, -1)
        frame = self._av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = self._rate_hz
        frame.pts = self._samples
        self._samples += len(pcm)
        self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


class _Sink:
    """Output of FFmpeg, which cannot seek."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data
