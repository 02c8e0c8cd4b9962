"""`POST /v1/audio/transcriptions`: what is said in a sound file, written down by the model itself.

Models that say what they heard are asked for an answer of one token, and their words are taken;
models that were taught to transcribe are asked to. Source: OpenAI API reference, create
transcription.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from parley.errors import InvalidRequest
from parley.gateway.acquisition import Departed
from parley.gateway.http.asking import Asker
from parley.gateway.http.errors import CLIENT_CLOSED_STATUS, openai_problems
from parley.gateway.http.openai import docs
from parley.gateway.http.openai.completions import MOST_TOKENS
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import wav_of
from parley.gateway.http.openai.stream import EVENTS, PiecesResponse, event
from parley.gateway.metrics import Metrics
from parley.protocol import chat, values
from parley.transport import Message

PATH: Final = "/v1/audio/transcriptions"
FILE_BYTES: Final = 25 << 20
"""The largest sound file. Source: OpenAI API reference, speech to text."""
BODY_BYTES: Final = FILE_BYTES + (64 << 10)


def routes(*, asker: Asker, metrics: Metrics, models: ModelList) -> APIRouter:
    """Routes for transcriptions."""
    router = APIRouter(tags=["openai"])

    @router.post(
        PATH,
        responses={
            200: docs.TRANSCRIPTION_ANSWER,
            **openai_problems(400, 403, 413, 429, 502, 503, 504),
        },
        response_class=Response,
        response_model=None,
    )
    async def transcribe(
        request: Request,
        file: Annotated[UploadFile, File(description="a sound file of any common format")],
        model: Annotated[str, Form(max_length=200)],
        response_format: Annotated[str, Form(description="json or text")] = "json",
        stream: Annotated[bool, Form()] = False,
        prompt: Annotated[str, Form(description="ignored: the model takes no hints")] = "",
        language: Annotated[str, Form(description="ignored: the model finds out")] = "",
        temperature: Annotated[float, Form(description="ignored: the likeliest words")] = 0.0,
    ) -> Response:
        """Write down what is said. 400 where the model that is loaded cannot."""
        del model, prompt, language, temperature
        asker.check(request)
        if response_format not in ("json", "text"):
            raise InvalidRequest(
                "Words come without times here: response_format is json or text.",
                field="response_format",
            )
        if not models.can("transcription"):
            raise InvalidRequest(
                "The model that is loaded cannot write down what it hears.", field="model"
            )
        wav = await wav_of(await file.read())
        prompted = models.transcription_prompt
        body = await asyncio.to_thread(_body, wav, prompted)
        if stream:
            pieces = _events(asker, request, body, is_prompted=bool(prompted))
            return PiecesResponse(pieces, media_type=EVENTS, metrics=metrics)
        try:
            done = await _answer(asker, request, body)
        except Departed:
            return Response(status_code=CLIENT_CLOSED_STATUS)
        text = _words(done, is_prompted=bool(prompted))
        if response_format == "text":
            return PlainTextResponse(text + "\n")
        return JSONResponse({"text": text, "usage": _usage(done)})

    return router


def request_of(wav: bytes, prompt: str) -> chat.Request:
    """The request for the worker.

    Args:
        prompt: asks the model to transcribe; "" where it says by itself what it heard.
    """
    sound = values.AudioPart(data=base64.b64encode(wav).decode())
    words = (values.TextPart(text=prompt),) if prompt else ()
    return chat.Request(
        messages=(values.Message(role="user", content=(*words, sound)),),
        streaming=False,
        generation=values.ChatGeneration(
            max_new_tokens=MOST_TOKENS if prompt else 1, do_sample=False
        ),
        record=False,
    )


def _body(wav: bytes, prompt: str) -> Message:
    return Message.client_text(bytearray(msgspec.json.encode(request_of(wav, prompt))))


async def _answer(asker: Asker, request: Request, body: Message) -> chat.Done:
    with asker.visit(request, "http transcription") as session_id:
        async with asker.ask(request, session_id, body) as answer:
            return await answer.done()


def _words(done: chat.Done, *, is_prompted: bool) -> str:
    heard = done.text if is_prompted else done.heard
    return heard.strip() if isinstance(heard, str) else ""


def _usage(done: chat.Done) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": done.input_tokens,
        "output_tokens": done.generated_tokens,
        "total_tokens": done.input_tokens + done.generated_tokens,
    }


async def _events(
    asker: Asker, request: Request, body: Message, *, is_prompted: bool
) -> AsyncGenerator[bytes, None]:
    done = await _answer(asker, request, body)
    text = _words(done, is_prompted=is_prompted)
    yield event({"type": "transcript.text.delta", "delta": text})
    yield event({"type": "transcript.text.done", "text": text, "usage": _usage(done)})
