"""Binary WebSocket messages: JSON followed by audio.

    4 bytes length of the JSON, big-endian n bytes the JSON, whose field of the sound is empty the
    rest the sound, in the coding that was agreed on

For clients that request it in `audio_format`. Source: docs/protocols/README.md, "Audio format".
"""

from __future__ import annotations

from parley.errors import InvalidPayload
from parley.protocol import codec

_HEAD_BYTES = 4


def pack(text: str, sound: bytes) -> bytes:
    """JSON and audio as one binary message."""
    data = text.encode()
    return len(data).to_bytes(_HEAD_BYTES, "big") + data + sound


def split(frame: bytes) -> tuple[bytes, bytes]:
    """JSON and audio of a binary message.

    Raises:
        InvalidPayload: it is none.
    """
    end = _HEAD_BYTES + int.from_bytes(frame[:_HEAD_BYTES], "big")
    if len(frame) < end:
        raise InvalidPayload(
            "A binary message must begin with the length of its JSON in four bytes."
        )
    return frame[_HEAD_BYTES:end], frame[end:]


def unpack(frame: bytes, field: str) -> str:
    """A binary message as the text it stands for: the sound as base64 in its `field`.

    Raises:
        InvalidPayload: it is none.
        InvalidJson: there is no JSON in it.
    """
    head, sound = split(frame)
    value = codec.parse(head)
    if not isinstance(value, dict):
        raise InvalidPayload("The message must be a JSON object.")
    value[field] = codec.to_base64(sound)
    return codec.encode(value)
