"""Encodes and decodes audio in the formats that a client may request: float32, pcm16, Opus.

A coder belongs to one direction of one connection and holds the state of Opus. Opus consists of
packets of 20 ms, mono, at most `OPUS_BITS_PER_S`; each is preceded by its length in two bytes,
big-endian, because a message contains several. PyAV does the coding, if it is installed.

Source: RFC 6716; docs/protocols/README.md, "Audio format".
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from parley.errors import InvalidPayload
from parley.media.pcm import (
    Pcm,
    Samples,
    from_float32_bytes,
    from_pcm16_bytes,
    join,
    to_float32_bytes,
    to_pcm16_bytes,
)
from parley.media.resample import RateStream
from parley.protocol.values import AudioCoding

OPUS_BITS_PER_S: Final = 24_000
OPUS_PACKET_S: Final = 0.02
OPUS_RATE_HZ: Final = 48_000
"""Output rate of an Opus decoder, regardless of the input rate."""
OPUS_TAIL_PACKETS: Final = 1
"""Number of packets of silence after the last audio, because encoder, decoder and resampler buffer
a few milliseconds."""
MOST_S: Final = 10.0
"""Maximum length of the audio in one message."""


def is_offered(coding: AudioCoding) -> bool:
    """True if this installation supports it."""
    return coding != "opus" or importlib.util.find_spec("av") is not None


def encoder(coding: AudioCoding, rate_hz: int) -> _Samples | _OpusEncoder:
    """An encoder for audio at `rate_hz`, used piece by piece."""
    return _OpusEncoder(rate_hz) if coding == "opus" else _Samples(coding, rate_hz)


def decoder(coding: AudioCoding, rate_hz: int) -> _Samples | _OpusDecoder:
    """A decoder that returns audio at `rate_hz`, message by message.

    Its `decode` raises `InvalidPayload`: the bytes are not audio in this coding, or longer than
    `MOST_S`.
    """
    return _OpusDecoder(rate_hz) if coding == "opus" else _Samples(coding, rate_hz)


class _Samples:
    """A format without state: each message is complete."""

    def __init__(self, coding: Literal["float32", "pcm16"], rate_hz: int) -> None:
        is_float = coding == "float32"
        self._rate_hz = rate_hz
        self._to_bytes = to_float32_bytes if is_float else to_pcm16_bytes
        self._from_bytes = from_float32_bytes if is_float else from_pcm16_bytes

    def encode(self, pcm: Pcm, *, ends: bool = False) -> bytes:
        del ends
        return self._to_bytes(pcm)

    def decode(self, data: bytes) -> Pcm:
        return self._from_bytes(data, self._rate_hz)

    def forget(self) -> None:
        """Does nothing, because no samples are buffered."""


class _OpusEncoder:
    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._packet_samples = round(rate_hz * OPUS_PACKET_S)
        self._waiting = Pcm.empty(rate_hz)
        self._has_started = False
        self._position = 0
        self._context = self._begin()

    def _begin(self) -> Any:
        import av

        context: Any = av.CodecContext.create("libopus", "w")
        context.sample_rate = self._rate_hz
        context.layout = "mono"
        context.format = "flt"
        context.bit_rate = OPUS_BITS_PER_S
        context.time_base = Fraction(1, self._rate_hz)
        context.options = {
            "application": "voip",
            "frame_duration": "20",
            "vbr": "constrained",
            # Half the work of the best setting; in speech the difference is inaudible.
            "compression_level": "5",
        }
        return context

    def encode(self, pcm: Pcm, *, ends: bool = False) -> bytes:
        """Encode a piece; samples that do not fill a packet are buffered until more arrive or it
        `ends`."""
        sound = join([self._waiting, pcm], self._rate_hz)
        size = self._packet_samples
        self._has_started = self._has_started or bool(len(sound))
        if ends and self._has_started:
            missing = -len(sound) % size + OPUS_TAIL_PACKETS * size
            sound = join([sound, Pcm.silence(missing, self._rate_hz)], self._rate_hz)
        whole = len(sound) - len(sound) % size
        self._waiting = Pcm(sound.samples[whole:].copy(), self._rate_hz)
        packets: bytes = b"".join(
            self._packet(sound.samples[start : start + size]) for start in range(0, whole, size)
        )
        if ends:
            self._has_started = False
        return packets

    def forget(self) -> None:
        """Drop buffered samples."""
        self._waiting = Pcm.empty(self._rate_hz)
        self._has_started = False

    def _packet(self, samples: Samples) -> bytes:
        import av

        frame = av.AudioFrame.from_ndarray(samples[np.newaxis, :], format="flt", layout="mono")
        frame.sample_rate = self._rate_hz
        frame.pts = self._position
        self._position += len(samples)
        packets = [bytes(packet) for packet in self._context.encode(frame)]
        return b"".join(len(packet).to_bytes(2, "big") + packet for packet in packets)


class _OpusDecoder:
    def __init__(self, rate_hz: int) -> None:
        import av

        self._rate_hz = rate_hz
        self._resampler = RateStream(OPUS_RATE_HZ, rate_hz)
        self._context: Any = av.CodecContext.create("libopus", "r")
        self._context.layout = "mono"
        self._context.sample_rate = OPUS_RATE_HZ

    def decode(self, data: bytes) -> Pcm:
        import av

        pieces: list[Samples] = []
        most = round(MOST_S * OPUS_RATE_HZ)
        try:
            for packet in _packets(data):
                for frame in self._context.decode(av.Packet(packet)):
                    block = frame.to_ndarray()
                    scale = 1 / 32768 if block.dtype == np.int16 else 1.0
                    piece = block.reshape(-1).astype(np.float32) * np.float32(scale)
                    pieces.append(piece)
                    most -= len(piece)
                if most < 0:
                    raise InvalidPayload(f"A message may contain at most {MOST_S:g} s of sound.")
        except av.FFmpegError as error:
            raise InvalidPayload("Audio contains a packet that is not Opus.") from error
        samples = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
        return self._resampler.feed(Pcm(samples, OPUS_RATE_HZ))


def _packets(data: bytes) -> Iterator[bytes]:
    """The packets of a message.

    Raises:
        InvalidPayload: a length is not that of a packet.
    """
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        packet = data[at + 2 : at + 2 + size]
        if not size or len(packet) < size:
            raise InvalidPayload(
                "Each Opus packet must follow its length in two bytes, big-endian."
            )
        yield packet
        at += 2 + size
