"""Converts a chat request to an event, for the dialects with chats."""

from __future__ import annotations

from typing import assert_never

import msgspec

from parley.dialects.events import ChatRequested, Clip, Content, Picture, Sound
from parley.protocol import chat, values
from parley.protocol.content import Message
from parley.protocol.values import Generation, TextPart, media_path


def requested(request: chat.Request) -> ChatRequested:
    """A request as an event; base64 is decoded, but files are not.

    Raises:
        InvalidPayload, TooLarge: naming the field.
    """
    tts = request.tts if request.wants_speech else None
    voice = tts.voice_bytes() if tts else None
    messages = tuple(
        Message(
            message.role,
            tuple(_content(part, at, index) for index, part in enumerate(message.parts)),
        )
        for at, message in enumerate(request.messages)
    )
    images = sum(isinstance(part, Picture) for m in messages for part in m.parts)
    return ChatRequested(
        messages=messages,
        is_streaming=request.streaming,
        wants_speech=request.wants_speech,
        voice=None if voice is None else Sound(voice),
        voice_name=tts.ref_audio_path if tts else None,
        tts_mode=tts.mode if tts else "default",
        language=tts.language if tts else None,
        generation=Generation(
            **msgspec.structs.asdict(request.generation),
            enable_thinking=request.enable_thinking,
            say=request.say,
        ),
        max_slices=request.image.max_slice_nums,
        numbers_images=request.image.numbers_images(images),
        is_omni=request.is_omni,
        wants_recording=request.record,
        seed=request.seed,
        tools=request.tools,
        drops_oldest=request.truncation == "auto",
    )


def _content(part: values.Part, at: int, index: int) -> Content:
    match part:
        case values.TextPart():
            return TextPart(part.text)
        case values.Base64Image():
            return Picture(part.file_bytes(field=media_path(at, index)))
        case values.Base64Audio():
            data = part.audio_bytes(field=media_path(at, index))
            return Sound(data, part.sample_rate)
        case values.Base64Video():
            return Clip(part.file_bytes(field=media_path(at, index)), part.stack_frames)
        case values.ToolCallPart() | values.ToolResultPart():
            return part
        case _ as never:
            assert_never(never)
