"""`POST /v1/audio/speech`: a given text, spoken in a registered voice.

Source: OpenAI API reference, create speech.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from parley.errors import InvalidRequest
from parley.gateway.http.bodies import json_body, read_body
from parley.gateway.http.chat_forwarder import ChatForwarder, PendingAnswer
from parley.gateway.http.openai import docs
from parley.gateway.http.openai.answering import sound_of
from parley.gateway.http.openai.completions import object_in, refused
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.stream import EVENTS, PiecesResponse, event
from parley.gateway.http.openai.voices import find_voice
from parley.gateway.http.routing import Router
from parley.library.voices import VoiceLibrary
from parley.media.encoder import MEDIA_TYPES, Encoder, SoundFormat, open_encoder
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.media.tempo import Tempo
from parley.protocol import chat, codec, values
from parley.transport import Message

PATH: Final = "/v1/audio/speech"
PIECE_CHARS: Final = 600
"""Maximum text of one request; the smallest context here fits three times as much."""
TOKEN_SAMPLES: Final = OUTPUT_RATE_HZ // 25
"""Length of the audio of one speech token, by which usage is counted. Source: MiniCPM-o 4.5's
vocoder."""
SENTENCE_END: Final = re.compile(r"[.!?…。！？;:\n]+[\"'”’)]*(?=\s|$)|[。！？]")


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Text to speak, and options."""

    model: Annotated[str, Meta(max_length=200)]
    input: Annotated[str, Meta(min_length=1, max_length=4096)]
    voice: str | dict[str, Any]
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    instructions: str = ""
    stream_format: Literal["audio", "sse"] = "audio"


SHAPE: Final = codec.Shape(SpeechRequest, failed=refused)


def read(raw: bytes | bytearray) -> SpeechRequest:
    """A request's body.

    Raises:
        BadInput: it is not a request, or asks for something that this server cannot do.
    """
    asked: SpeechRequest = codec.read(object_in(raw), SHAPE)
    if not asked.input.strip():
        raise InvalidRequest("input must not be empty.", field="input")
    return asked


def routes(forwarder: ChatForwarder, models: ModelList, voices: VoiceLibrary) -> Router:
    metrics = forwarder.metrics
    router = Router(tag="openai")

    @router.post(
        PATH,
        answer=docs.SPEECH_ANSWER,
        errors=(403, 502, 503, 504),
        body=json_body(
            SpeechRequest,
            {
                "model": "pocket",
                "input": "The capital of Italy is Rome.",
                "voice": "default",
                "response_format": "wav",
            },
        ),
    )
    async def speak(request: Request) -> Response:
        """Speak a text; the audio is sent while it is generated. 400 if the model cannot read
        aloud."""
        forwarder.check(request)
        asked = read(await read_body(request))
        if not models.can("reading"):
            raise InvalidRequest("The loaded model cannot read text aloud.", field="model")
        encoder: Encoder = open_encoder(asked.response_format)
        if asked.speed != 1.0:
            encoder = Hurried(encoder, Tempo(asked.speed, OUTPUT_RATE_HZ))
        voice = await find_voice(voices, request, asked.voice)
        used = SpeechUsage()
        pieces = _spoken(forwarder, request, asked, voice, encoder, used)
        if asked.stream_format == "sse":
            return PiecesResponse(_events(pieces, used), media_type=EVENTS, metrics=metrics)
        form: SoundFormat = asked.response_format
        return PiecesResponse(pieces, media_type=MEDIA_TYPES[form], metrics=metrics)

    return router


@dataclass(slots=True)
class SpeechUsage:
    """Tokens of the text, and samples of its sound as the model made it."""

    input_tokens: int = 0
    samples: int = 0

    def told(self) -> dict[str, int]:
        spoken = -(-self.samples // TOKEN_SAMPLES)
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": spoken,
            "total_tokens": self.input_tokens + spoken,
        }


class Hurried:
    """An encoder of sound that is made faster or slower first."""

    def __init__(self, encoder: Encoder, tempo: Tempo) -> None:
        self._encoder, self._tempo = encoder, tempo

    def add(self, pcm: Pcm) -> bytes:
        return self._encoder.add(self._tempo.add(pcm))

    def finish(self) -> bytes:
        last = self._encoder.add(self._tempo.finish())
        return last + self._encoder.finish()


def pieces_of(text: str, limit: int = PIECE_CHARS) -> list[str]:
    """A text in pieces that fit into any model's context: cut behind sentences, else between words,
    else anywhere."""
    pieces: list[str] = []
    rest = text.strip()
    while len(rest) > limit:
        head = rest[:limit]
        ends = [found.end() for found in SENTENCE_END.finditer(head)]
        place = ends[-1] if ends else head.rfind(" ") + 1 or limit
        pieces.append(rest[:place].strip())
        rest = rest[place:].strip()
    return [piece for piece in [*pieces, rest] if piece]


def request_of(text: str, voice: str | None) -> chat.Request:
    """The request for the worker: an answer that is given already."""
    return chat.Request(
        messages=(values.Message(role="user", content=text),),
        tts=values.ChatTts(ref_audio_path=voice),
        say=text,
        # A text that is read aloud is not a conversation.
        record=False,
    )


async def _spoken(
    forwarder: ChatForwarder,
    request: Request,
    asked: SpeechRequest,
    voice: str | None,
    encoder: Encoder,
    used: SpeechUsage,
) -> AsyncGenerator[bytes, None]:
    for text in pieces_of(asked.input):
        body = Message.client_text(bytearray(msgspec.json.encode(request_of(text, voice))))
        with forwarder.visit(request, "http speech") as session_id:
            async with (
                forwarder.forward(request, session_id, body) as answer,
                contextlib.aclosing(_encoded(answer, encoder, used)) as pieces,
            ):
                async for piece in pieces:
                    yield piece
    if not used.samples:
        raise InvalidRequest(
            "input has no words that the voice of the loaded model can say.", field="input"
        )
    yield await asyncio.to_thread(encoder.finish)


async def _encoded(
    answer: PendingAnswer, encoder: Encoder, used: SpeechUsage
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(answer.messages()) as messages:
        async for message in messages:
            match message:
                case chat.Chunk(audio_data=str(data)):
                    sound = sound_of(data)
                    used.samples += len(sound)
                    yield await asyncio.to_thread(encoder.add, sound)
                case chat.Done(input_tokens=count):
                    used.input_tokens += count
                case _:
                    pass


async def _events(
    pieces: AsyncGenerator[bytes, None], used: SpeechUsage
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            if piece:
                sound = base64.b64encode(piece).decode()
                yield event({"type": "speech.audio.delta", "audio": sound})
    yield event({"type": "speech.audio.done", "usage": used.told()})
