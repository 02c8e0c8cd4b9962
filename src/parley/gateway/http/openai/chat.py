"""`POST /v1/chat/completions`: a chat request in the words of OpenAI's clients.

Text, pictures, sound and clips in; text, or text and speech out, whole or as server-sent events.
Source: OpenAI API reference, chat completions.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

import msgspec
import numpy as np
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from parley.gateway.acquisition import Departed
from parley.gateway.http.bodies import json_body
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.errors import CLIENT_CLOSED_STATUS, openai_problems
from parley.gateway.http.large import read_body
from parley.gateway.http.openai import completions, docs
from parley.gateway.http.openai.answering import (
    AnswerBegun,
    AnswerCall,
    AnswerEnded,
    AnswerPiece,
    AnswerSound,
    AnswerWords,
    MakeBody,
    answer,
    body_maker,
    names_of,
    renamed,
    shaped,
    sound_of,
    with_call,
)
from parley.gateway.http.openai.completions import Completion, StopFinder
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import Sources
from parley.gateway.http.openai.stream import DONE, EVENTS, PiecesResponse, event
from parley.gateway.http.openai.voices import VoiceNames
from parley.gateway.http.routing import Router
from parley.gateway.large_json import read_aside
from parley.gateway.metrics import Metrics
from parley.media.encoder import SoundFormat, encode_whole, open_encoder
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol import chat
from parley.protocol.values import ToolCallPart

PATH: Final = "/v1/chat/completions"
BODY_NAME: Final = "http completions"
EMPTY: Final = np.zeros(0, np.float32)


@dataclass(slots=True)
class AnswerSoFar:
    """What was told of an answer so far, and what every message of it repeats.

    Args:
        is_forced: the answer is a call (`answering.shaped`).
    """

    asked: Completion
    model: str
    created_s: int
    is_forced: bool = False
    index: int = 0
    """Of the choice that is being told."""
    completion_id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    audio_id: str = field(default_factory=lambda: f"audio_{secrets.token_hex(12)}")

    def choice(
        self, text: str, done: chat.Done, *, audio: bytes | None, is_cut: bool
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls_of(done):
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls_of(done)
            ]
        if audio is not None:
            message["content"] = None
            message["audio"] = {
                "id": self.audio_id,
                "data": base64.b64encode(audio).decode(),
                # Sound is not kept: it can be named in no later request.
                "expires_at": self.created_s,
                "transcript": text,
            }
        return {
            "index": self.index,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(done, is_cut=is_cut),
        }

    def completion(self, choices: list[dict[str, Any]], ends: list[chat.Done]) -> dict[str, Any]:
        """All choices, and what they took together."""
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(*ends)}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": finish}
        more = {"usage": None} if self.asked.stream_options.include_usage else {}
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **more})

    def text_chunk(self, text: str) -> bytes:
        """Words: the transcript where the answer is spoken."""
        if self.asked.is_spoken:
            return self.chunk({"audio": {"id": self.audio_id, "transcript": text}})
        return self.chunk({"content": text})

    def sound_chunk(self, data: bytes) -> bytes:
        sound = base64.b64encode(data).decode()
        return self.chunk({"audio": {"id": self.audio_id, "data": sound}})

    def call_chunk(self, call: chat.ToolCall) -> bytes:
        """A call: its name first, then its arguments."""
        told: dict[str, Any] = {"index": call.index}
        if call.name is not None:
            told |= {"id": call.id, "type": "function"}
            told["function"] = {"name": call.name, "arguments": ""}
        else:
            told["function"] = {"arguments": call.arguments_delta}
        return self.chunk({"tool_calls": [told]})

    def usage_chunk(self, ends: list[chat.Done]) -> bytes:
        """What the answers took; has no choice in it."""
        head = self._head("chat.completion.chunk")
        return event({**head, "choices": [], "usage": usage(*ends)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
        }


def usage(*ends: chat.Done) -> dict[str, int]:
    """The tokens of the choices for one request, which is counted once."""
    asked = ends[0].input_tokens
    answered = sum(done.generated_tokens for done in ends)
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }


def finish_reason(done: chat.Done, *, is_cut: bool) -> str:
    """Why an answer ended. `is_cut`: at one of the texts that the client named."""
    if done.ending == "limit" and not is_cut:
        return "length"
    return "tool_calls" if calls_of(done) and not is_cut else "stop"


def calls_of(done: chat.Done) -> tuple[ToolCallPart, ...]:
    """The functions that an answer calls."""
    return done.tool_calls or ()


def format_of(asked: Completion) -> SoundFormat:
    form = asked.audio.format if asked.audio else "wav"
    return "pcm" if form == "pcm16" else form


EXAMPLE: Final = {
    "model": "pocket",
    "messages": [{"role": "user", "content": "What is the capital of Italy?"}],
}


def routes(
    *,
    forwarder: ChatForwarder,
    metrics: Metrics,
    models: ModelList,
    sources: Sources,
    voices: VoiceNames,
) -> Router:
    router = Router(tags=["openai"])

    @router.post(
        PATH,
        responses={
            200: docs.COMPLETION_ANSWER,
            **openai_problems(400, 403, 413, 429, 502, 503, 504),
        },
        openapi_extra=json_body(Completion, EXAMPLE),
        response_class=Response,
        response_model=None,
    )
    async def complete(request: Request) -> Response:
        """Answer a conversation; with `stream` as server-sent events. Waits in the queue; hanging
        up cancels. Any `model` is accepted: the one that is loaded answers, and is named."""
        forwarder.check(request)
        asked = await _read(request)
        # Refused before anybody waits for it.
        if asked.is_spoken:
            open_encoder(format_of(asked))
        asked, is_forced = shaped(asked, models)
        named = asked.audio.voice if asked.audio else "default"
        voice = await voices.find(request, named) if asked.is_spoken else None
        told = AnswerSoFar(_light(asked), models.current, int(forwarder.clock.time()), is_forced)
        forwarder.check_room(request)

        # Choices are made one after the other: a client takes one slot, whatever it asks for.
        bodies = [body_maker(each, sources, voice) for each in completions.choices_of(asked)]
        if asked.stream:
            answers = (
                answer(
                    forwarder,
                    request,
                    BODY_NAME,
                    make_body,
                    told.asked,
                    encoder=open_encoder(format_of(asked)) if asked.is_spoken else None,
                    is_forced=is_forced,
                )
                for make_body in bodies
            )
            return PiecesResponse(_streamed(answers, told), media_type=EVENTS, metrics=metrics)
        choices, ends = list[dict[str, Any]](), list[chat.Done]()
        try:
            for told.index, make_body in enumerate(bodies):
                choice, done = await _whole(forwarder, request, make_body, told)
                choices.append(choice)
                ends.append(done)
        except Departed:
            return Response(status_code=CLIENT_CLOSED_STATUS)
        return JSONResponse(told.completion(choices, ends))

    return router


async def _read(request: Request) -> Completion:
    raw = await read_body(request)
    return await read_aside(len(raw), lambda: completions.read(raw))


def _light(asked: Completion) -> Completion:
    """Without the messages, which may be large and have been sent."""
    return msgspec.structs.replace(asked, messages=())


async def _whole(
    forwarder: ChatForwarder, request: Request, make_body: MakeBody, told: AnswerSoFar
) -> tuple[dict[str, Any], chat.Done]:
    asked = told.asked
    finder = StopFinder(asked.stops)
    text, sounds = "", list[Pcm]()
    names = names_of(is_forced=told.is_forced)
    with renamed(names), forwarder.visit(request, BODY_NAME) as session_id:
        async with forwarder.forward(request, session_id, await make_body()) as pending:
            async with contextlib.aclosing(pending.messages()) as messages:
                async for message in messages:
                    if isinstance(message, chat.Chunk):
                        text += finder.add(message.text_delta or "", found=pending.stop)
                        if not finder.is_found:
                            sounds.append(sound_of(message.audio_data))
                    if isinstance(message, chat.Done):
                        done = _first_call(message, asked)
            if not asked.stops:
                text, sounds = done.text, [sound_of(done.audio_data)]
    text += finder.rest()
    if told.is_forced:
        done = with_call(done, text)
        text = done.text
    audio: bytes | None = None
    samples = np.concatenate([EMPTY, *(pcm.samples for pcm in sounds)])
    # An answer that only calls tools has no sound.
    if asked.is_spoken and (samples.size or not calls_of(done)):
        audio = await asyncio.to_thread(
            encode_whole, format_of(asked), Pcm(samples, OUTPUT_RATE_HZ)
        )
    return told.choice(text, done, audio=audio, is_cut=finder.is_found), done


def _first_call(done: chat.Done, asked: Completion) -> chat.Done:
    """Without the calls beyond what was asked for."""
    calls = calls_of(done)
    kept = tuple(call for index, call in enumerate(calls) if asked.takes_call(index))
    return done if len(kept) == len(calls) else msgspec.structs.replace(done, tool_calls=kept)


async def _streamed(
    answers: Iterable[AsyncGenerator[AnswerPiece, None]], told: AnswerSoFar
) -> AsyncGenerator[bytes, None]:
    ends: list[chat.Done] = []
    for told.index, pieces in enumerate(answers):
        async with contextlib.aclosing(_chunks(pieces, told, ends)) as chunks:
            async for chunk in chunks:
                yield chunk
    if told.asked.stream_options.include_usage:
        yield told.usage_chunk(ends)
    yield DONE


async def _chunks(
    pieces: AsyncGenerator[AnswerPiece, None], told: AnswerSoFar, ends: list[chat.Done]
) -> AsyncGenerator[bytes, None]:
    """The chunks of one choice; its end joins `ends`."""
    asked = told.asked
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            match piece:
                case AnswerBegun():
                    first = {} if asked.is_spoken else {"content": ""}
                    yield told.chunk({"role": "assistant", **first, "refusal": None})
                case AnswerWords(text):
                    yield told.text_chunk(text)
                case AnswerSound(data):
                    yield told.sound_chunk(data)
                case AnswerCall(call):
                    if not call.is_final:
                        yield told.call_chunk(call)
                case AnswerEnded(done, is_cut):
                    if asked.is_spoken:
                        ending = {"id": told.audio_id, "expires_at": told.created_s}
                        yield told.chunk({"audio": ending})
                    yield told.chunk({}, finish_reason(done, is_cut=is_cut))
                    ends.append(done)
                case _ as never:
                    assert_never(never)
