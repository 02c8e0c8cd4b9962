"""Shared by dialects whose clients may choose the audio format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from parley.dialects.base import Dialect, SessionContext
from parley.dialects.events import SessionReady
from parley.dialects.sound import WireSound
from parley.protocol import binary, codec


class SoundDialect(Dialect):
    """A dialect whose clients may request another audio format than the published one."""

    heard_field: ClassVar[str]
    """Field of a client's message with its audio."""
    said_field: ClassVar[str]
    """Field of a server's message with its audio."""
    not_kept = Dialect.not_kept | {"sound"}

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self.sound = WireSound()

    def remembered(self) -> dict[str, Any]:
        return {**super().remembered(), "audio_format": self.sound.format}

    def restore(self, remembered: Mapping[str, Any]) -> None:
        super().restore(remembered)
        self.sound.agree(remembered["audio_format"], extensions=True)

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
