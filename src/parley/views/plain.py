"""Converts messages in the format of the chat protocol (plain values with base64 media) for
programs that use the views. Files are decoded as in a server: in a process with limits if they
could be large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from parley.errors import InvalidPayload
from parley.media import decoder
from parley.media.pcm import INPUT_RATE_HZ, Pcm, from_float32_bytes
from parley.media.resample import resample
from parley.media.wav import decode_wav
from parley.protocol import chat, codec, values
from parley.protocol.content import Message
from parley.views import content

PlainMessage = Mapping[str, Any]
"""`{"role": "user", "content": "Hello!"}`, or with a list of parts as content."""


async def decoded(
    messages: Sequence[content.Message | PlainMessage],
) -> tuple[content.Message, ...]:
    """Convert messages of either form for views.

    Raises:
        InvalidRequest: a plain message does not match the chat protocol; `field` is the path.
        InvalidPayload, TooLarge: its media cannot be used.
    """
    ready: list[content.Message] = []
    for message in messages:
        if isinstance(message, Message):
            ready.append(message)
            continue
        plain = dict(message) if isinstance(message, Mapping) else message
        (read,) = chat.request_from({"messages": [plain]}).messages
        ready.append(content.Message(read.role, await decoder.aside(partial(_all, read.parts))))
    return tuple(ready)


def _all(parts: Sequence[values.Part]) -> tuple[content.Part, ...]:
    return tuple(map(_opened, parts))


def _opened(part: values.Part) -> content.Part:
    shared = decoder.shared()
    match part:
        case values.TextPart() | values.ToolCallPart() | values.ToolResultPart():
            return part
        case values.Base64Image():
            return content.ImagePart(shared.image(part.file_bytes()))
        case values.Base64Audio():
            data = part.audio_bytes()
            if codec.is_wav(data):
                pcm = decode_wav(data, limit_s=values.AUDIO_LIMIT_S)
            else:
                pcm = from_float32_bytes(data, part.sample_rate)
            return content.AudioPart(resample(pcm, INPUT_RATE_HZ))
        case values.Base64Video():
            clip = shared.video(part.file_bytes(), stack_frames=part.stack_frames)
            return content.VideoPart(clip)


def sound_of(sound: object) -> Pcm | None:
    """Convert audio for a view: 16 kHz. An array of float32 samples is assumed to have
    16 kHz. None stays None.

    Raises:
        InvalidPayload: it is neither a `Pcm` nor an array of one dimension.
    """
    if sound is None:
        return None
    if isinstance(sound, Pcm):
        return resample(sound, INPUT_RATE_HZ)
    if not isinstance(sound, np.ndarray) or sound.ndim != 1:
        raise InvalidPayload(
            "Sound must be a Pcm or an array of 16 kHz samples of shape (N,), "
            f"got {type(sound).__name__}."
        )
    return Pcm(np.asarray(sound, np.float32), INPUT_RATE_HZ)
