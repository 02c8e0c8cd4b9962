"""What the translators share: sound as base64, and a dialect's answers as outgoing messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import Pcm
from parley.protocol import codec
from parley.protocol.values import Answer
from parley.session.life import Outgoing

T = TypeVar("T")


def pcm_text(pcm: Pcm | None) -> str | None:
    """Base64 of little-endian float32 samples; None for no sound."""
    if pcm is None or not len(pcm):
        return None
    return codec.to_base64(pcm.samples.astype("<f4", copy=False).tobytes())


def spoken(message: msgspec.Struct) -> Outgoing:
    """One message; the conversation goes on."""
    return Outgoing((codec.encode(message),))


def closing(answer: Answer) -> Outgoing:
    """A dialect's answer to an error or an end."""
    return Outgoing(answer.frames(), answer.close_code)


def within(payload: Callable[[], T]) -> T:
    """Decode a part of a message; one that is too large spoils this message, not the connection.

    Raises:
        InvalidPayload: as `payload` does, and instead of `TooLarge`, which closes connections.
    """
    try:
        return payload()
    except TooLarge as error:
        raise InvalidPayload(str(error), field=error.what) from error
