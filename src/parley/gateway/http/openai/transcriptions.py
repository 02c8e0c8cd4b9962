"""`POST /v1/audio/transcriptions`: what is said in a sound file, written down by the model itself.

Models that say what they heard are asked for an answer of one token, and their words are taken;
models that were taught to transcribe are asked to. Source: OpenAI API reference, create
transcription.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from msgspec import Meta
from starlette.datastructures import FormData, UploadFile

from parley.errors import InvalidRequest
from parley.gateway.acquisition import Departed
from parley.gateway.http.bodies import file_body
from parley.gateway.http.chat_forwarder import ChatForwarder, PendingAnswer
from parley.gateway.http.errors import CLIENT_CLOSED_STATUS, openai_problems
from parley.gateway.http.openai import docs
from parley.gateway.http.openai.completions import MOST_TOKENS, refused
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import pcm_of, wav_of
from parley.gateway.http.openai.stream import EVENTS, PiecesResponse, event
from parley.gateway.http.requester import Who
from parley.gateway.http.routing import Router
from parley.gateway.http.transfers import Transfers
from parley.gateway.metrics import Metrics
from parley.media.encoder import encode_whole
from parley.media.pcm import Pcm
from parley.media.segments import segments_of
from parley.protocol import chat, codec, values
from parley.transport import Message

PATH: Final = "/v1/audio/transcriptions"
FILE_BYTES: Final = 25 << 20
"""The largest sound file. Source: OpenAI API reference, speech to text."""
BODY_BYTES: Final = FILE_BYTES + (64 << 10)
UPLOADS_AT_ONCE: Final = 16
UPLOADS_EACH: Final = 8
"""Sound files that are being received, of all and of one address."""
FIELDS_MOST: Final = 32
LANGUAGES: Final = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian",
    "pt": "portuguese", "nl": "dutch", "ru": "russian", "zh": "chinese", "ja": "japanese",
    "ko": "korean",
}  # fmt: skip
"""Names by code, as the published answer writes them."""
TIMED: Final = ("verbose_json", "srt", "vtt")


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the form except the file. `prompt`, `language`, `temperature` and
    `chunking_strategy` have no effect: the models here take no hints, choose the likeliest words
    and always split at pauses."""

    model: Annotated[str, Meta(max_length=200)]
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    language: str = "en"
    stream: Literal["true", "false", "1", "0"] = "false"

    @property
    def is_streamed(self) -> bool:
        """Whether the words are to come as events."""
        return self.stream in ("true", "1")


NO_EFFECT: Final = ("prompt", "temperature", "chunking_strategy")
LISTS: Final = ("timestamp_granularities", "include")
FIELDS: Final = frozenset({"file", *TranscriptionRequest.__struct_fields__, *NO_EFFECT, *LISTS})

SHAPE: Final = codec.Shape(TranscriptionRequest, failed=refused)


def read(form: FormData) -> tuple[TranscriptionRequest, UploadFile]:
    """The fields of a form and its file.

    Raises:
        BadInput: a field is missing, unknown or out of range, or asks for something that this
            server cannot do.
    """
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("The form has no file in its field 'file'.", field="file")
    fields: dict[str, Any] = {
        name: value for name, value in form.items() if isinstance(value, str) and value
    }
    if "stream" in fields:
        fields["stream"] = fields["stream"].lower()
    asked: TranscriptionRequest = codec.read(fields, SHAPE)
    for name in map(_without_brackets, form):
        if name not in FIELDS:
            raise InvalidRequest(
                f"{name[:80]} is not a field of a transcription: the fields are "
                f"{', '.join(sorted(FIELDS))}.",
                field=name[:80],
            )
    if not _is_temperature(fields.get("temperature", "0")):
        raise InvalidRequest(
            f"temperature must be a number between 0 and 1, got {fields['temperature'][:40]!r}.",
            field="temperature",
        )
    for wanted in _all(form, "timestamp_granularities"):
        if wanted != "segment":
            raise InvalidRequest(
                'timestamp_granularities must be ["segment"], because the models here time '
                f"segments and not words, got {wanted[:40]!r}.",
                field="timestamp_granularities",
            )
    for wanted in _all(form, "include"):
        raise InvalidRequest(
            "include must be absent, because the models here report no probabilities of tokens, "
            f"got {wanted[:40]!r}.",
            field="include",
        )
    return asked, file


def _without_brackets(name: str) -> str:
    """The name of a field: SDKs write `include[]` for lists and `chunking_strategy[type]` for
    objects."""
    return name.partition("[")[0]


def _all(form: FormData, name: str) -> list[str]:
    """The texts of a list."""
    found = [*form.getlist(f"{name}[]"), *form.getlist(name)]
    return [each for each in found if isinstance(each, str) and each]


def _is_temperature(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def routes(*, forwarder: ChatForwarder, metrics: Metrics, models: ModelList) -> Router:
    router = Router(tags=["openai"])
    uploads = Transfers("uploads", UPLOADS_AT_ONCE, each=UPLOADS_EACH)

    @router.post(
        PATH,
        responses={
            200: docs.TRANSCRIPTION_ANSWER,
            **openai_problems(400, 403, 413, 429, 502, 503, 504),
        },
        openapi_extra=file_body(
            "a sound file of any common format, at most 25 MB", TranscriptionRequest
        ),
        response_class=Response,
        response_model=None,
    )
    async def transcribe(request: Request, who: Who) -> Response:
        """Write down what is said. 400 where the model that is loaded cannot."""
        forwarder.check(request)
        if not models.can("transcription"):
            raise InvalidRequest("The loaded model cannot transcribe audio.", field="model")
        # The body is received only if the queue has room, and few bodies at a time.
        forwarder.check_room(request)
        async with (
            uploads.one(who.address),
            request.form(max_files=1, max_fields=FIELDS_MOST) as form,
        ):
            asked, file = read(form)
            data = await file.read()
        prompt = models.transcription_prompt
        if asked.is_streamed:
            pieces = _events(forwarder, request, data, prompt)
            return PiecesResponse(pieces, media_type=EVENTS, metrics=metrics)
        try:
            if asked.response_format in TIMED:
                return await _timed(forwarder, request, asked, data, prompt)
            async with _asked(forwarder, request, data, prompt) as answer:
                done = await answer.done()
        except Departed:
            return Response(status_code=CLIENT_CLOSED_STATUS)
        text = _words(done, is_prompted=bool(prompt))
        if asked.response_format == "text":
            return PlainTextResponse(text + "\n")
        return JSONResponse({"text": text, "usage": _usage(done)})

    return router


@dataclass(frozen=True, slots=True)
class Segment:
    """What was said between two times, seconds."""

    start_s: float
    end_s: float
    text: str


async def _timed(
    forwarder: ChatForwarder,
    request: Request,
    asked: TranscriptionRequest,
    data: bytes,
    prompt: str,
) -> Response:
    """The words with their times: each stretch of sound is written down by itself."""
    with forwarder.visit(request, "http transcription") as session_id:
        pcm = await pcm_of(data, field="file")
        heard = _heard(forwarder, request, session_id, pcm, prompt)
        async with contextlib.aclosing(heard):
            segments = [segment async for segment, _ in heard]
    if asked.response_format == "srt":
        return PlainTextResponse(subtitles(segments, mark=","))
    if asked.response_format == "vtt":
        return PlainTextResponse(
            "WEBVTT\n\n" + subtitles(segments, mark="."), media_type="text/vtt"
        )
    return JSONResponse(verbose(segments, pcm.duration_s, asked.language))


async def _heard(
    forwarder: ChatForwarder, request: Request, session_id: str, pcm: Pcm, prompt: str
) -> AsyncGenerator[tuple[Segment, chat.Done], None]:
    """The stretches of sound in which something is said, one after the other."""
    for start_s, end_s in await asyncio.to_thread(segments_of, pcm):
        first, last = (int(at_s * pcm.rate_hz) for at_s in (start_s, end_s))
        wav = encode_whole("wav", Pcm(pcm.samples[first:last], pcm.rate_hz))
        body = await asyncio.to_thread(_body, wav, prompt)
        async with forwarder.forward(request, session_id, body) as answer:
            done = await answer.done()
        text = _words(done, is_prompted=bool(prompt))
        if text:
            yield Segment(start_s, end_s, text), done


def verbose(segments: list[Segment], duration_s: float, language: str) -> dict[str, Any]:
    """`verbose_json`. Values that no recogniser here reports (log probabilities) are 0."""
    return {
        "task": "transcribe",
        "language": LANGUAGES.get(language.lower(), language.lower()),
        "duration": round(duration_s, 3),
        "text": " ".join(segment.text for segment in segments),
        "segments": [
            {
                "id": index,
                "seek": 0,
                "start": round(segment.start_s, 3),
                "end": round(segment.end_s, 3),
                "text": segment.text,
                "tokens": [],
                "temperature": 0.0,
                "avg_logprob": 0.0,
                "compression_ratio": _ratio(segment.text),
                "no_speech_prob": 0.0,
            }
            for index, segment in enumerate(segments)
        ],
        "usage": {"type": "duration", "seconds": math.ceil(duration_s)},
    }


def _ratio(text: str) -> float:
    raw = text.encode()
    return round(len(raw) / len(zlib.compress(raw)), 3)


def subtitles(segments: list[Segment], *, mark: str) -> str:
    """Segments as numbered subtitles; `mark` stands before the milliseconds."""
    return "".join(
        f"{index}\n{_clock(segment.start_s, mark)} --> {_clock(segment.end_s, mark)}\n"
        f"{segment.text}\n\n"
        for index, segment in enumerate(segments, 1)
    )


def _clock(at_s: float, mark: str) -> str:
    whole, thousandths = divmod(round(at_s * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{mark}{thousandths:03d}"


def request_of(wav: bytes, prompt: str) -> chat.Request:
    """The request for the worker.

    Args:
        prompt: asks the model to transcribe; "" where it says by itself what it heard.
    """
    sound = values.Base64Audio(data=base64.b64encode(wav).decode())
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


@contextlib.asynccontextmanager
async def _asked(
    forwarder: ChatForwarder, request: Request, data: bytes, prompt: str
) -> AsyncIterator[PendingAnswer]:
    """The answer to a file, which is decoded once its sender has a session to spend on it."""
    with forwarder.visit(request, "http transcription") as session_id:
        body = await asyncio.to_thread(_body, await wav_of(data, field="file"), prompt)
        async with forwarder.forward(request, session_id, body) as answer:
            yield answer


def _words(done: chat.Done, *, is_prompted: bool) -> str:
    heard = done.text if is_prompted else done.heard
    return heard.strip() if isinstance(heard, str) else ""


def _usage(*answers: chat.Done) -> dict[str, Any]:
    input_tokens = sum(done.input_tokens for done in answers)
    output_tokens = sum(done.generated_tokens for done in answers)
    return {
        "type": "tokens",
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


async def _events(
    forwarder: ChatForwarder, request: Request, data: bytes, prompt: str
) -> AsyncGenerator[bytes, None]:
    text, answers = "", list[chat.Done]()
    with forwarder.visit(request, "http transcription") as session_id:
        heard = _heard(forwarder, request, session_id, await pcm_of(data, field="file"), prompt)
        async with contextlib.aclosing(heard):
            async for segment, done in heard:
                delta = f" {segment.text}" if text else segment.text
                text += delta
                answers.append(done)
                yield event({"type": "transcript.text.delta", "delta": delta})
    yield event({"type": "transcript.text.done", "text": text, "usage": _usage(*answers)})
