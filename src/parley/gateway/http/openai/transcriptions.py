"""`POST /v1/audio/transcriptions`: transcribes an audio file with the loaded model.

Models that report the words they heard are asked for an answer of one token; models that were
trained to transcribe are prompted to do so. Source: OpenAI API reference, create transcription.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import zlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from parley.errors import InvalidRequest
from parley.gateway.http.bodies import EVENT_CONTENT, Transfers, described, file_body, read_form
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.openai.completions import MOST_TOKENS, refused
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import pcm_of
from parley.gateway.http.openai.stream import EVENTS, PiecesResponse, event
from parley.gateway.http.requester import Requester
from parley.gateway.http.routing import Router
from parley.media.encoder import encode_whole
from parley.media.pcm import Pcm
from parley.media.segments import segments_of, stretches_of
from parley.protocol import chat, codec, values
from parley.protocol.openai import CANNOT_TRANSCRIBE
from parley.transport import Message

PATH: Final = "/v1/audio/transcriptions"
FILE_BYTES: Final = 25 << 20
"""Maximum size of an audio file. Source: OpenAI API reference, speech to text."""
BODY_BYTES: Final = FILE_BYTES + (64 << 10)
UPLOADS_AT_ONCE: Final = 16
UPLOADS_EACH: Final = 8
"""Maximum number of audio files that are being received, in total and per address."""
FIELDS_MOST: Final = 256
"""Limits of `keywords`."""
LANGUAGES: Final = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian",
    "pt": "portuguese", "nl": "dutch", "ru": "russian", "zh": "chinese", "ja": "japanese",
    "ko": "korean",
}  # fmt: skip
"""Names of languages by code, as in the published response."""
ANSWER: Final = described(
    "The words, as JSON, as plain text or as events.",
    {"text": "What is the capital of Italy?"},
    content={"text/plain": {"example": "What is the capital of Italy?\n"}, **EVENT_CONTENT},
)
TIMED: Final = ("verbose_json", "srt", "vtt")


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the form except the file. Hints (`NO_EFFECT`), `language` and `temperature`
    have no effect: the models here accept none, choose the most probable words and always split at
    pauses."""

    model: Annotated[str, Meta(max_length=200)]
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    language: str = "en"
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = ()
    stream: bool = False
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def wants_words(self) -> bool:
        return "word" in self.timestamp_granularities


NO_EFFECT: Final = ("prompt", "chunking_strategy", "keywords", "languages")
FIELDS: Final = frozenset({"file", "include", *TranscriptionRequest.__struct_fields__, *NO_EFFECT})
NO_WORD_TIMES: Final = (
    'timestamp_granularities must be ["segment"] with the loaded model, which does not report when '
    "words were said. pocket does."
)


def _adjust(fields: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        # Not all that programs write for a number is one in JSON: `.5`.
        fields["temperature"] = float(fields.get("temperature", 0))


SHAPE: Final = codec.Shape(TranscriptionRequest, is_text=True, adjust=_adjust, failed=refused)


def read(form: FormData) -> tuple[TranscriptionRequest, UploadFile]:
    """The fields of a form and its file.

    Raises:
        BadInput: a field is missing, unknown or out of range, or requests something unsupported.
    """
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("Send a multipart form with a file in its field 'file'.", field="file")
    fields: dict[str, Any] = {
        name: value for name, value in form.items() if isinstance(value, str) and value
    }
    fields["timestamp_granularities"] = _all(form, "timestamp_granularities")
    asked: TranscriptionRequest = codec.read(fields, SHAPE)
    # SDKs write `include[]` for lists and `chunking_strategy[type]` for objects.
    for name in (each.partition("[")[0] for each in form):
        if name not in FIELDS:
            raise InvalidRequest(
                f"{name[:80]} is not a field of a transcription: the fields are "
                f"{', '.join(sorted(FIELDS))}.",
                field=name[:80],
            )
    if asked.wants_words and asked.response_format != "verbose_json":
        raise InvalidRequest(
            "timestamp_granularities with words require response_format verbose_json, got "
            f"{asked.response_format}.",
            field="timestamp_granularities",
        )
    for wanted in _all(form, "include"):
        raise InvalidRequest(
            "include must be absent, because the models here report no probabilities of tokens, "
            f"got {wanted[:40]!r}.",
            field="include",
        )
    return asked, file


def _all(form: FormData, name: str) -> list[str]:
    found = [*form.getlist(f"{name}[]"), *form.getlist(name)]
    return [each for each in found if isinstance(each, str) and each]


def routes(forwarder: ChatForwarder, models: ModelList) -> Router:
    metrics = forwarder.metrics
    router = Router(tag="openai")
    uploads = Transfers("uploads", UPLOADS_AT_ONCE, each=UPLOADS_EACH)

    @router.post(
        PATH,
        answer=ANSWER,
        errors=(403, 502, 503, 504),
        body_bytes=BODY_BYTES,
        body=file_body("a sound file of any common format, at most 25 MB", TranscriptionRequest),
    )
    async def transcribe(request: Request, who: Requester) -> Response:
        """Transcribe speech. 400 if the loaded model cannot."""
        forwarder.check(request)
        if not models.can("transcription"):
            raise InvalidRequest(CANNOT_TRANSCRIBE, field="model")
        # The body is received only if the queue has room, and only a few at a time.
        forwarder.check_room(request)
        async with (
            uploads.one(who.owner),
            read_form(request, fields_most=FIELDS_MOST) as form,
        ):
            asked, file = read(form)
            data = await file.read()
        prompt = models.transcription_prompt
        if asked.wants_words and prompt:
            raise InvalidRequest(NO_WORD_TIMES, field="timestamp_granularities")
        if asked.stream:
            pieces = _events(forwarder, request, data, prompt)
            return PiecesResponse(pieces, media_type=EVENTS, metrics=metrics)
        return await _answer(forwarder, request, asked, data, prompt)

    return router


@dataclass(frozen=True, slots=True)
class Segment:
    """Text spoken between two times, in seconds.

    Args:
        words: with their own times, if the model knows them.
    """

    start_s: float
    end_s: float
    text: str
    words: tuple[values.WordTime, ...] = ()


async def _answer(
    forwarder: ChatForwarder,
    request: Request,
    asked: TranscriptionRequest,
    data: bytes,
    prompt: str,
) -> Response:
    """The words; with times, each segment of the audio is transcribed separately."""
    form = asked.response_format
    async with forwarder.visit(request, "http transcription") as session_id:
        pcm = await pcm_of(data, field="file")
        cut = segments_of if form in TIMED else stretches_of
        heard = _heard(forwarder, request, session_id, pcm, prompt, cut=cut)
        async with contextlib.aclosing(heard):
            found = [each async for each in heard]
    segments = [segment for segment, _ in found]
    text = " ".join(segment.text for segment in segments)
    match form:
        case "srt":
            return PlainTextResponse(subtitles(segments, mark=","))
        case "vtt":
            captions = "WEBVTT\n\n" + subtitles(segments, mark=".")
            return PlainTextResponse(captions, media_type="text/vtt")
        case "verbose_json":
            return JSONResponse(verbose(segments, pcm.duration_s, asked))
        case "text":
            return PlainTextResponse(text + "\n")
        case "json":
            return JSONResponse({"text": text, "usage": _usage(*(done for _, done in found))})


async def _heard(
    forwarder: ChatForwarder,
    request: Request,
    session_id: str,
    pcm: Pcm,
    prompt: str,
    *,
    cut: Callable[[Pcm], list[tuple[float, float]]] = segments_of,
) -> AsyncGenerator[tuple[Segment, chat.Done], None]:
    """The segments of the audio with speech, one after the other.

    Raises:
        ServiceUnavailable: there is no memory for the audio while it waits for slots.
    """
    request.state.claim(pcm.samples.nbytes)
    for start_s, end_s in await asyncio.to_thread(cut, pcm):
        first, last = (int(at_s * pcm.rate_hz) for at_s in (start_s, end_s))
        wav = encode_whole("wav", Pcm(pcm.samples[first:last], pcm.rate_hz))
        body = await asyncio.to_thread(_body, wav, prompt)
        async with forwarder.forward(request, session_id, body) as answer:
            done = await answer.done()
        text = _words(done, is_prompted=bool(prompt))
        if text:
            yield Segment(start_s, end_s, text, done.words or ()), done


def verbose(
    segments: list[Segment], duration_s: float, asked: TranscriptionRequest
) -> dict[str, Any]:
    """`verbose_json`. Values that the recognisers here do not report (log probabilities) are 0.

    Raises:
        InvalidRequest: times of words are requested, but the model has none.
    """
    language = asked.language.lower()
    body = {
        "task": "transcribe",
        "language": LANGUAGES.get(language, language),
        "duration": round(duration_s, 3),
        "text": " ".join(segment.text for segment in segments),
        "usage": {"type": "duration", "seconds": math.ceil(duration_s)},
    }
    if asked.wants_words:
        if not all(segment.words for segment in segments):
            raise InvalidRequest(NO_WORD_TIMES, field="timestamp_granularities")
        body["words"] = [
            {
                "word": each.word,
                "start": round(segment.start_s + each.start, 3),
                "end": round(segment.start_s + each.end, 3),
            }
            for segment in segments
            for each in segment.words
        ]
    if asked.timestamp_granularities != ("word",):
        body["segments"] = [
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
        ]
    return body


def _ratio(text: str) -> float:
    raw = text.encode()
    return round(len(raw) / len(zlib.compress(raw)), 3)


def subtitles(segments: list[Segment], *, mark: str) -> str:
    """Segments as numbered subtitles; `mark` is the character before the milliseconds."""
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
        prompt: makes the model transcribe; "" if it reports the words by itself.
    """
    sound = values.Base64Audio(data=codec.to_base64(wav))
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
    async with forwarder.visit(request, "http transcription") as session_id:
        heard = _heard(forwarder, request, session_id, await pcm_of(data, field="file"), prompt)
        async with contextlib.aclosing(heard):
            async for segment, done in heard:
                delta = f" {segment.text}" if text else segment.text
                text += delta
                answers.append(done)
                yield event({"type": "transcript.text.delta", "delta": delta})
    yield event({"type": "transcript.text.done", "text": text, "usage": _usage(*answers)})
