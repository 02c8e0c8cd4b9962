"""`POST /v1/chat/completions`: a chat request in OpenAI's format.

Text, pictures, audio and clips in; text, or text and speech out, as a whole or as server-sent
events. Source: OpenAI API reference, chat completions.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, assert_never

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from parley.gateway.http.bodies import EVENT_CONTENT, described, json_body, read_body
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.openai import completions
from parley.gateway.http.openai.answering import (
    AnswerEnded,
    AnswerPiece,
    AnswerWords,
    answer,
    shaped,
)
from parley.gateway.http.openai.completions import Completion
from parley.gateway.http.openai.kept_responses import owner_of
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import Sources
from parley.gateway.http.openai.spoken_answers import KEPT_S, SpokenAnswers
from parley.gateway.http.openai.stream import DONE, EVENTS, PiecesResponse, event
from parley.gateway.http.openai.voices import find_voice
from parley.gateway.http.routing import Router
from parley.gateway.large_json import read_aside
from parley.library.voices import VoiceLibrary
from parley.media.encoder import SoundFormat, encode_whole, open_encoder
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.protocol import chat, codec
from parley.protocol.values import TokenLogprob

PATH: Final = "/v1/chat/completions"
BODY_NAME: Final = "http completions"


def _forget(_audio_id: str, _words: str) -> None:
    """For answers to which no request refers."""


@dataclass(slots=True)
class AnswerSoFar:
    """The parts of an answer that were sent so far, and the fields that all of its messages
    repeat."""

    asked: Completion
    model: str
    created_s: int
    index: int = 0
    """Index of the current choice."""
    completion_id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    keep: Callable[[str, str], None] = _forget
    """Called with the id of the audio and the words of each spoken choice."""

    @property
    def audio_id(self) -> str:
        """Id of the current choice's audio."""
        return f"audio_{self.completion_id.removeprefix('chatcmpl-')}{self.index}"

    @property
    def expires_s(self) -> int:
        """Time until which requests may refer to the audio."""
        return self.created_s + KEPT_S

    def choice(
        self,
        text: str,
        ended: AnswerEnded,
        *,
        audio: bytes | None,
        logprobs: tuple[TokenLogprob, ...],
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if ended.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in ended.calls
            ]
        if audio is not None:
            message["content"] = None
            message["audio"] = {
                "id": self.audio_id,
                "data": codec.to_base64(audio),
                "expires_at": self.expires_s,
                "transcript": text,
            }
        return {
            "index": self.index,
            "message": message,
            "logprobs": self._logprobs(logprobs),
            "finish_reason": finish_reason(ended),
        }

    def completion(self, choices: list[dict[str, Any]], ends: list[chat.Done]) -> dict[str, Any]:
        """All choices, with their total usage."""
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(*ends)}

    def chunk(
        self,
        delta: dict[str, Any],
        finish: str | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> bytes:
        choice = {
            "index": self.index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish,
        }
        more = {"usage": None} if self.asked.stream_options.include_usage else {}
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **more})

    def text_chunk(self, words: AnswerWords) -> bytes:
        """Text: the transcript if the answer is spoken."""
        delta: dict[str, Any] = {"content": words.text}
        if self.asked.is_spoken:
            delta = {"audio": {"id": self.audio_id, "transcript": words.text}}
        return self.chunk(delta, logprobs=words.logprobs)

    def sound_chunk(self, data: bytes) -> bytes:
        """Encoded audio; encoders may have no output yet."""
        if not data:
            return b""
        sound = codec.to_base64(data)
        return self.chunk({"audio": {"id": self.audio_id, "data": sound}})

    def call_chunk(self, call: chat.ToolCall) -> bytes:
        delta: dict[str, Any] = {"index": call.index}
        if call.name is not None:
            delta |= {"id": call.id, "type": "function"}
            delta["function"] = {"name": call.name, "arguments": ""}
        else:
            delta["function"] = {"arguments": call.arguments_delta}
        return self.chunk({"tool_calls": [delta]})

    def usage_chunk(self, ends: list[chat.Done]) -> bytes:
        """Usage of the answers; contains no choices."""
        head = self._head("chat.completion.chunk")
        return event({**head, "choices": [], "usage": usage(*ends)})

    def _logprobs(self, found: tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
        if not self.asked.asks_logprobs:
            return None
        return {"content": msgspec.to_builtins(found), "refusal": None}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }


def usage(*ends: chat.Done) -> dict[str, int]:
    """The tokens of all choices of one request, which is counted once."""
    asked = ends[0].input_tokens
    answered = sum(done.generated_tokens for done in ends)
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }


def finish_reason(ended: AnswerEnded) -> str:
    if ended.is_limit:
        return "length"
    return "tool_calls" if ended.calls and not ended.is_cut else "stop"


def format_of(asked: Completion) -> SoundFormat:
    form = asked.audio.format if asked.audio else "wav"
    return "pcm" if form == "pcm16" else form


EXAMPLE: Final = {
    "model": "pocket",
    "messages": [{"role": "user", "content": "What is the capital of Italy?"}],
}


def _example() -> dict[str, Any]:
    """The answer to `EXAMPLE`."""
    done = chat.Done(text="The capital of Italy is Rome.", generated_tokens=7, input_tokens=12)
    asked, completion_id = (
        Completion(model="pocket", messages=()),
        "chatcmpl-0123456789abcdef01234567",
    )
    so_far = AnswerSoFar(asked, asked.model, 1795283000, completion_id=completion_id)
    choice = so_far.choice(done.text, AnswerEnded(done), audio=None, logprobs=())
    return so_far.completion([choice], [done])


ANSWER: Final = described(
    "The answer; with `stream` in pieces, the last of which is `[DONE]`.",
    _example(),
    content=EVENT_CONTENT,
)


def routes(
    forwarder: ChatForwarder, models: ModelList, sources: Sources, voices: VoiceLibrary
) -> Router:
    metrics, spoken = forwarder.metrics, SpokenAnswers(forwarder.clock)
    router = Router(tag="openai")

    @router.post(
        PATH,
        answer=ANSWER,
        errors=(403, 502, 503, 504),
        body=json_body(Completion, EXAMPLE),
        body_bytes=forwarder.body_bytes,
    )
    async def complete(request: Request) -> Response:
        """Answer a conversation; with `stream` as server-sent events. Waits in the queue;
        disconnecting cancels. Any `model` is accepted: the loaded one answers, and is named in the
        response."""
        forwarder.check(request)
        owner = owner_of(request)
        asked = spoken.resolved(await _read(request), owner)
        # Refused before it waits in the queue.
        if asked.is_spoken:
            open_encoder(format_of(asked))
        given, (asked, is_forced) = asked, shaped(asked, models)
        names = dict[str, str]()
        if is_forced:
            paths = map(completions.media_paths, (asked.messages, given.messages))
            names = dict(zip(*paths, strict=True))
        named = asked.audio.voice if asked.audio else "default"
        voice = await find_voice(voices, request, named, "audio.voice") if asked.is_spoken else None
        so_far = AnswerSoFar(
            asked, models.current, int(forwarder.clock.time()), keep=partial(spoken.keep, owner)
        )
        forwarder.check_room(request)

        # Choices are generated one after the other, so that a request takes only one slot.
        answers = (
            answer(
                forwarder,
                request,
                BODY_NAME,
                each,
                sources,
                voice=voice,
                is_forced=is_forced,
                names=names,
            )
            for each in completions.choices_of(asked)
        )
        if asked.stream:
            return PiecesResponse(_streamed(answers, so_far), media_type=EVENTS, metrics=metrics)
        choices, ends = list[dict[str, Any]](), list[chat.Done]()
        for so_far.index, pieces in enumerate(answers):
            choices.append(await _whole(pieces, so_far, ends))
        return JSONResponse(so_far.completion(choices, ends))

    return router


async def _read(request: Request) -> Completion:
    raw = await read_body(request)
    return await read_aside(len(raw), lambda: completions.read(raw))


async def _whole(
    pieces: AsyncGenerator[AnswerPiece, None], so_far: AnswerSoFar, ends: list[chat.Done]
) -> dict[str, Any]:
    """One choice; its end is added to `ends`."""
    text, logprobs, sounds = "", tuple[TokenLogprob, ...](), list[Pcm]()
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            match piece:
                case AnswerWords():
                    text += piece.text
                    logprobs += piece.logprobs
                case Pcm():
                    sounds.append(piece)
                case AnswerEnded():
                    ended = piece
                case _:
                    pass
    audio: bytes | None = None
    # An answer that only calls tools has no audio.
    if so_far.asked.is_spoken and (text or not ended.calls):
        sound = join(sounds, OUTPUT_RATE_HZ)
        audio = await asyncio.to_thread(encode_whole, format_of(so_far.asked), sound)
        so_far.keep(so_far.audio_id, text)
    ends.append(ended.done)
    return so_far.choice(text, ended, audio=audio, logprobs=logprobs)


async def _streamed(
    answers: Iterable[AsyncGenerator[AnswerPiece, None]], so_far: AnswerSoFar
) -> AsyncGenerator[bytes, None]:
    ends: list[chat.Done] = []
    for so_far.index, pieces in enumerate(answers):
        async with contextlib.aclosing(_chunks(pieces, so_far, ends)) as chunks:
            async for chunk in chunks:
                yield chunk
    if so_far.asked.stream_options.include_usage:
        yield so_far.usage_chunk(ends)
    yield DONE


async def _chunks(
    pieces: AsyncGenerator[AnswerPiece, None], so_far: AnswerSoFar, ends: list[chat.Done]
) -> AsyncGenerator[bytes, None]:
    """The chunks of one choice; its end is added to `ends`."""
    encoder = open_encoder(format_of(so_far.asked)) if so_far.asked.is_spoken else None
    words = ""
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            match piece:
                case chat.PrefillDone():
                    first = {"content": ""} if encoder is None else {}
                    yield so_far.chunk({"role": "assistant", **first, "refusal": None})
                case AnswerWords():
                    words += piece.text
                    yield so_far.text_chunk(piece)
                case Pcm():
                    assert encoder is not None
                    yield so_far.sound_chunk(await asyncio.to_thread(encoder.add, piece))
                case chat.ToolCall():
                    if not piece.is_final:
                        yield so_far.call_chunk(piece)
                case AnswerEnded():
                    if encoder is not None and (words or not piece.calls):
                        yield so_far.sound_chunk(await asyncio.to_thread(encoder.finish))
                        so_far.keep(so_far.audio_id, words)
                        ending = {"id": so_far.audio_id, "expires_at": so_far.expires_s}
                        yield so_far.chunk({"audio": ending})
                    yield so_far.chunk({}, finish_reason(piece))
                    ends.append(piece.done)
                case _ as never:
                    assert_never(never)
