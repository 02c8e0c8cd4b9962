"""Audio on the wire, in the format on which client and server agreed."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.client.access import Access
from parley.errors import InvalidPayload
from parley.media import coding
from parley.media.pcm import (
    INPUT_RATE_HZ,
    OUTPUT_RATE_HZ,
    Pcm,
    from_float32_bytes,
    to_float32_bytes,
)
from parley.media.resample import resample
from parley.protocol import binary, codec, values

COMPACT = values.AudioFormat(input="opus", output="opus", binary=True)
SAMPLES = values.AudioFormat(input="pcm16", output="pcm16", binary=True)


def fitting(access: Access) -> values.AudioFormat:
    """The format to request by default: on this machine the published one, which costs nothing
    there; over a network Opus, or 16-bit samples if PyAV is not installed."""
    if access.is_loopback():
        return values.PUBLISHED_FORMAT
    return COMPACT if coding.is_offered("opus") else SAMPLES


def heard(pcm: Pcm) -> Pcm:
    """Convert audio of any rate to 16 kHz.

    Raises:
        TypeError: it is not a `Pcm`.
    """
    if not isinstance(pcm, Pcm):
        raise TypeError(
            "Sound must be a Pcm, e.g. of parley.media.wav.load('speech.wav'), "
            f"got {type(pcm).__name__}."
        )
    return resample(pcm, INPUT_RATE_HZ)


def file_out(name: str, data: bytes) -> str:
    """A file as base64.

    Args:
        name: of the argument, for errors.

    Raises:
        TypeError: it is not bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{name} must be the bytes of a file, got {type(data).__name__}.")
    return codec.to_base64(data)


def sound_out(pcm: Pcm) -> str:
    """Audio as base64 of float32 samples at 16 kHz."""
    return codec.to_base64(to_float32_bytes(heard(pcm)))


def voice_out(voice: Pcm | bytes | None) -> str | None:
    """A reference voice as base64; the bytes of a WAV file are sent unchanged.

    Raises:
        TypeError, InvalidPayload: it is neither.
    """
    if voice is None:
        return None
    if isinstance(voice, Pcm):
        return sound_out(voice)
    if isinstance(voice, bytes) and not codec.is_wav(voice):
        raise InvalidPayload("voice must be a Pcm or the bytes of a WAV file.", field="voice")
    return file_out("voice", voice)


def voiced(prompt: str | None, voice: Pcm | bytes | None) -> tuple[values.VoicePart, ...] | None:
    """A prompt with a voice: text, sample, text, as recommended by the publishers. None: no
    voice."""
    sample = voice_out(voice)
    if sample is None:
        return None
    return (
        values.TextPart(text=values.VOICE_PROMPT),
        values.Base64Audio(data=sample),
        values.TextPart(text=prompt or "You are a helpful assistant. Reply naturally."),
    )


class ClientSound:
    """The audio of one connection; in the published format until the server has agreed to another
    one.

    Args:
        heard_field, said_field: fields of the client's and the server's messages that contain
            audio.
    """

    def __init__(self, heard_field: str, said_field: str) -> None:
        self._heard_field = heard_field
        self._said_field = said_field
        self.format = values.PUBLISHED_FORMAT
        self.received_ms = 0.0
        """Length of all received audio."""
        self._encoder = coding.encoder("float32", INPUT_RATE_HZ)
        self._decoder = coding.decoder("float32", OUTPUT_RATE_HZ)

    def agree(self, agreed: values.AudioFormat | msgspec.UnsetType) -> None:
        """The server reports the format in use."""
        if not isinstance(agreed, values.AudioFormat):
            return
        self.format = agreed
        self._encoder = coding.encoder(agreed.input, INPUT_RATE_HZ)
        self._decoder = coding.decoder(agreed.output, OUTPUT_RATE_HZ)

    def out(self, pcm: Pcm) -> str:
        """Encode audio of any rate for the wire."""
        return codec.to_base64(self._encoder.encode(heard(pcm)))

    def come_in(self, text: str | None) -> Pcm | None:
        """Decode audio from the wire, 24 kHz; None if there is none."""
        if not text:
            return None
        pcm = self._decoder.decode(codec.from_base64(text, field=self._said_field))
        self.received_ms += pcm.duration_ms
        return pcm if len(pcm) else None

    def frame(self, message: Any) -> str | bytes:
        """Encode a message of the client."""
        sound = getattr(message, self._heard_field, None) if self.format.binary else None
        if not sound:
            return codec.encode(message)
        bare: Any = msgspec.structs.replace(message, **{self._heard_field: ""})
        return binary.pack(codec.encode(bare), codec.from_base64(sound, field=self._heard_field))

    def text(self, frame: str | bytes) -> str | bytes:
        """Decode a message of the server to JSON."""
        if isinstance(frame, bytes) and self.format.binary:
            return binary.unpack(frame, self._said_field)
        return frame


def sound_in(text: str | None) -> Pcm | None:
    """Decode the audio of a chat answer, 24 kHz; None if there is none."""
    if not text:
        return None
    return from_float32_bytes(codec.pcm_bytes(text, field="audio_data"), OUTPUT_RATE_HZ)
