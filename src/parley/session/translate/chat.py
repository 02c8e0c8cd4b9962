"""The chat dialect: messages ↔ events. Source: service.md 4.2, 4.7 rows 10-12."""

from __future__ import annotations

from typing import assert_never

import msgspec

from parley.errors import ParleyError
from parley.protocol import chat, codec, values
from parley.session.events import (
    Answered,
    ChatAsked,
    ClientEvent,
    Clip,
    Content,
    Ended,
    Failed,
    Message,
    Picture,
    Prefilled,
    Said,
    ServerEvent,
    Sound,
    StopAsked,
    Words,
)
from parley.session.life import Outgoing, Phase
from parley.session.translate.wire import closing, ending, pcm_text, spoken
from parley.views.turns import Generation


class ChatTranslator:
    """One request, one answer.

    Args:
        recording_id: told to the client when the session is recorded.
    """

    def __init__(self, *, recording_id: str | None = None) -> None:
        self._recording_id = recording_id

    def name_recording(self, recording_id: str | None) -> None:
        """See `Translator`."""
        self._recording_id = recording_id

    def read(self, frame: str, phase: Phase) -> ClientEvent | None:
        """After the request everything but `stop` is ignored, even what is no JSON."""
        if phase != "connected":
            return StopAsked() if _is_stop(frame) else None
        message = chat.decode_client(frame)
        if isinstance(message, chat.Stop):
            chat.check("opened", "stop")
            return StopAsked()
        return asked(message)

    def write(self, event: ServerEvent) -> Outgoing:
        match event:
            case Prefilled():
                return spoken(chat.PrefillDone(input_tokens=event.input_tokens))
            case Said():
                if not event.text and not event.pcm:
                    return Outgoing()
                return spoken(
                    chat.Chunk(text_delta=event.text or None, audio_data=pcm_text(event.pcm))
                )
            case Answered():
                return spoken(
                    chat.Done(
                        text=event.text,
                        generated_tokens=event.generated_tokens,
                        input_tokens=event.input_tokens,
                        audio_data=pcm_text(event.pcm),
                        stopped=event.is_stopped,
                        recording_session_id=self._recording_id or msgspec.UNSET,
                    )
                )
            case Failed():
                return closing(chat.answer(event.error))
            case Ended():
                return ending(event, chat.answer, chat.closed)
            case _:
                # Turns, units, pauses: chat has no such words.
                return Outgoing()


def asked(request: chat.Request) -> ChatAsked:
    """A request as an event; base64 is decoded, files are not opened.

    Raises:
        InvalidPayload, TooLarge: naming the field.
    """
    tts = request.tts if request.wants_speech else None
    generation = request.generation
    voice = tts.voice_bytes() if tts else None
    messages = tuple(
        Message(message.role, tuple(map(_content, message.parts))) for message in request.messages
    )
    images = sum(isinstance(part, Picture) for m in messages for part in m.content)
    return ChatAsked(
        messages=messages,
        is_streaming=request.streaming,
        wants_speech=request.wants_speech,
        voice=None if voice is None else Sound(voice),
        voice_name=tts.ref_audio_path if tts else None,
        tts_mode=tts.mode if tts else "default",
        language=tts.language if tts else None,
        generation=Generation(
            max_new_tokens=generation.max_new_tokens,
            do_sample=generation.do_sample,
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            length_penalty=generation.length_penalty,
            enable_thinking=request.enable_thinking,
        ),
        max_slices=request.image.max_slice_nums,
        numbers_images=request.image.numbers_images(images),
        is_omni=request.is_omni,
        wants_recording=request.record,
    )


def _content(part: values.Part) -> Content:
    match part:
        case values.TextPart():
            return Words(part.text)
        case values.ImagePart():
            return Picture(part.file_bytes())
        case values.AudioPart():
            return Sound(part.audio_bytes(), part.sample_rate)
        case values.VideoPart():
            return Clip(part.file_bytes(), part.stack_frames)
        case _ as never:
            assert_never(never)


def _is_stop(frame: str) -> bool:
    try:
        return codec.type_of(frame) == "stop"
    except ParleyError:
        return False
