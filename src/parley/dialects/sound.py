"""Audio in messages of dialects: base64, formats, references, pieces of at most a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from parley.dialects.base import Dialect, SessionContext
from parley.dialects.events import SessionReady, Sound
from parley.errors import InvalidPayload, TooLarge
from parley.media import coding, g711
from parley.media.pcm import (
    INPUT_RATE_HZ,
    OUTPUT_RATE_HZ,
    Pcm,
    from_pcm16_bytes,
    in_pieces,
    to_float32_bytes,
    to_pcm16_bytes,
)
from parley.media.resample import RateStream
from parley.protocol import binary, codec
from parley.protocol.values import PUBLISHED_FORMAT, AudioFormat

T = TypeVar("T")


OPUS_ON_LOOP_BYTES: Final = 512
"""About a tenth of a second in base64. A packet of one byte takes as long as one of hundreds."""


def pcm_text(pcm: Pcm | None) -> str | None:
    """Base64 of little-endian float32 samples; None for no audio."""
    if pcm is None or not len(pcm):
        return None
    return codec.to_base64(to_float32_bytes(pcm))


OPENAI_RATES: Final = {"audio/pcm": 24_000, "audio/pcmu": g711.RATE_HZ, "audio/pcma": g711.RATE_HZ}
"""Formats of OpenAI's protocols: 16-bit samples, and the two telephone codecs (µ-law, A-law)."""
_LAWS: Final[dict[str, g711.Law]] = {"audio/pcmu": "mu", "audio/pcma": "a"}


def openai_sound(text: str, form: str, *, field: str) -> Pcm:
    """Decode base64 of audio in one of OpenAI's formats.

    Raises:
        InvalidPayload: it is not in this format.
    """
    data = codec.from_base64(text, field=field)
    if form in _LAWS:
        return g711.decoded(data, _LAWS[form])
    if len(data) % 2:
        raise InvalidPayload(
            f"{field} must have whole 16-bit samples, got {len(data)} bytes.", field=field
        )
    return from_pcm16_bytes(data, OPENAI_RATES[form])


@dataclass(slots=True, eq=False)
class OpenAIInput:
    """Audio that a client of OpenAI's protocols appends."""

    form: str = "audio/pcm"
    stream: RateStream = field(default_factory=lambda: RateStream(24_000, INPUT_RATE_HZ))

    def take(self, form: str) -> None:
        """Use another format from now on."""
        if form != self.form:
            self.form, self.stream = form, RateStream(OPENAI_RATES[form], INPUT_RATE_HZ)

    def read(self, text: str, *, field: str) -> Pcm:
        """The next piece, 16 kHz.

        Raises:
            InvalidPayload: it is not in the format.
        """
        return self.stream.feed(openai_sound(text, self.form, field=field))


@dataclass(slots=True, eq=False)
class OpenAIOutput:
    """Audio for a client of OpenAI's protocols."""

    form: str = "audio/pcm"
    stream: RateStream = field(default_factory=lambda: RateStream(OUTPUT_RATE_HZ, g711.RATE_HZ))

    def text(self, pcm: Pcm) -> str:
        """The next piece, 24 kHz, as base64."""
        if self.form in _LAWS:
            return codec.to_base64(g711.encoded(self.stream.feed(pcm), _LAWS[self.form]))
        return codec.to_base64(to_pcm16_bytes(pcm))


class WireSound:
    """The audio of one connection, in each direction in the format that the client requested."""

    def __init__(self) -> None:
        self.format = PUBLISHED_FORMAT
        self._has_spoken = False
        self._encoder = coding.encoder(self.format.output, OUTPUT_RATE_HZ)
        self._decoder = coding.decoder(self.format.input, INPUT_RATE_HZ)

    def agree(self, wanted: AudioFormat, *, extensions: bool) -> None:
        """Use the requested format from now on, if this installation supports it; `format` has the
        result. Requests of clients without extensions are ignored."""
        if not extensions:
            return
        self.format = AudioFormat(
            input=wanted.input if coding.is_offered(wanted.input) else "pcm16",
            output=wanted.output if coding.is_offered(wanted.output) else "pcm16",
            binary=wanted.binary,
        )
        self._encoder = coding.encoder(self.format.output, OUTPUT_RATE_HZ)
        self._decoder = coding.decoder(self.format.input, INPUT_RATE_HZ)

    @property
    def told(self) -> AudioFormat | msgspec.UnsetType:
        """The answer to a client that requested another format than the published one."""
        return msgspec.UNSET if self.format == PUBLISHED_FORMAT else self.format

    def read(self, text: str, *, field: str) -> Pcm:
        """Decode audio of a message that is not in the published format.

        Raises:
            InvalidPayload: it cannot be read.
        """
        return self._decoder.decode(codec.from_base64(text, field=field))

    def forget(self) -> None:
        """Discard buffered audio of the encoder."""
        if self._has_spoken:
            self._encoder.forget()
            self._has_spoken = False

    def text(self, pcm: Pcm | None, *, ends: bool = False) -> str | None:
        """Audio as base64; None if there is none. `ends`: True if no more audio follows for now."""
        self._has_spoken = True
        sound = Pcm.empty(OUTPUT_RATE_HZ) if pcm is None else pcm
        return codec.to_base64(self._encoder.encode(sound, ends=ends)) or None

    def seconds(self, pcm: Pcm | None, *, ends: bool) -> list[str]:
        """Audio in pieces of at most a second, encoded as by `text`; at least one, which may be
        empty."""
        *most, last = in_pieces(pcm) or (None,)
        return [*((self.text(each) or "") for each in most), self.text(last, ends=ends) or ""]


class SoundDialect(Dialect):
    """A dialect whose clients may request another audio format than the published one."""

    heard_field: ClassVar[str]
    """Field of a client's message with its audio."""
    said_field: ClassVar[str]
    """Field of a server's message with its audio."""
    not_kept = Dialect.not_kept | {"sound", "on_loop_bytes"}

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self.sound = WireSound()

    def remembered(self) -> dict[str, Any]:
        return {**super().remembered(), "audio_format": self.sound.format}

    def restore(self, remembered: Mapping[str, Any]) -> None:
        super().restore(remembered)
        self.agree(remembered["audio_format"])

    def agree(self, wanted: AudioFormat) -> None:
        """Use the requested format from now on; see `WireSound.agree`."""
        self.sound.agree(wanted, extensions=self.extensions)
        if self.sound.format.input == "opus":
            self.on_loop_bytes = OPUS_ON_LOOP_BYTES

    def ready_fields(self, event: SessionReady) -> dict[str, Any]:
        """Fields of the message that reports a ready session, in each of these dialects."""
        return {
            "session_id": self.session_id,
            "recording_session_id": event.recording_id or msgspec.UNSET,
            "accepts": ("input_text",) if event.reads else msgspec.UNSET,
            "audio_format": self.sound.told,
        }

    def text_of(self, frame: bytes) -> str:
        if not self.sound.format.binary:
            return super().text_of(frame)
        return binary.unpack(frame, self.heard_field)

    def frame(self, message: msgspec.Struct) -> str | bytes | None:
        sound = getattr(message, self.said_field, None) if self.sound.format.binary else None
        if sound:
            message = msgspec.structs.replace(message, **{self.said_field: ""})
        text = codec.encode_for(message, extensions=self.extensions)
        if not sound or text is None:
            return text
        return binary.pack(text, codec.from_base64(sound, field=self.said_field))


def reference(data: bytes | None) -> Sound | None:
    """A reference voice, if there is one."""
    return None if data is None else Sound(data)


def within(payload: Callable[[], T]) -> T:
    """Decode a part of a message; if it is too large, only the message is refused.

    Raises:
        InvalidPayload: as raised by `payload`, and instead of `TooLarge`, which would close the
            connection.
    """
    try:
        return payload()
    except TooLarge as error:
        raise InvalidPayload(str(error), field=error.what) from error
