"""One answer to a chat as pieces, whichever of OpenAI's interfaces shows it.

Chat completions and responses differ in how they write a request and an answer down; what happens
between the two is here, once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from fastapi import Request

from parley.errors import InvalidRequest
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.openai import completions
from parley.gateway.http.openai.completions import Completion, StopFinder
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import Sources
from parley.media.encoder import Encoder
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol import chat, codec
from parley.protocol.values import has_to_call
from parley.transport import Message

MakeBody = Callable[[], Awaitable[Message]]
"""Makes the message for the worker."""

NO_TOOLS: Final = (
    "The loaded model cannot call tools. Start the server with a language model of your own "
    "(--model cascade --llm ADDRESS) or with MiniCPM-o."
)
NO_CHOICE: Final = (
    'The loaded model cannot be made to call a tool: tool_choice must be "auto" or "none". '
    "A language model of your own (--model cascade --llm ADDRESS) can."
)


@dataclass(frozen=True, slots=True)
class AnswerBegun:
    """The request is in the model's context; the answer follows."""


@dataclass(frozen=True, slots=True)
class AnswerWords:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerSound:
    """More sound of the answer, encoded."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Part of a function call: first its name, then arguments, of which the last has
    `is_final`."""

    call: chat.ToolCall


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The answer is complete.

    Args:
        is_cut: it ended at one of the texts that the client named.
    """

    done: chat.Done
    is_cut: bool


AnswerPiece = AnswerBegun | AnswerWords | AnswerSound | AnswerCall | AnswerEnded


def check_abilities(asked: Completion, models: ModelList) -> None:
    """Refuse, before anything waits for it, what the loaded model cannot do.

    Raises:
        InvalidRequest: naming the field.
    """
    if asked.offered and not models.can("tools"):
        raise InvalidRequest(NO_TOOLS, field="tools")
    if has_to_call(asked.offered) and not models.can("tool_choice"):
        raise InvalidRequest(NO_CHOICE, field="tool_choice")


def body_maker(asked: Completion, sources: Sources, voice: str | None) -> MakeBody:
    """Fetches and decodes what a request brings, once its sender has a session to spend on it."""

    async def make() -> Message:
        whole = await sources.completed(asked)
        return await asyncio.to_thread(_body, whole, voice)

    return make


def _body(asked: Completion, voice: str | None) -> Message:
    whole = completions.request_of(asked, voice=voice)
    return Message.client_text(codec.encode_media(whole))


async def answer(
    forwarder: ChatForwarder,
    request: Request,
    name: str,
    make_body: MakeBody,
    asked: Completion,
    *,
    encoder: Encoder | None = None,
) -> AsyncGenerator[AnswerPiece, None]:
    """The pieces of one answer, ending with `AnswerEnded`.

    Args:
        name: of the interface, for the log.
        asked: without its messages, if these are large.
        encoder: for spoken answers.

    Raises:
        ParleyError: as `ChatForwarder.forward` and `PendingAnswer.messages`.
    """
    finder = StopFinder(asked.stops)
    with forwarder.visit(request, name) as session_id:
        async with (
            forwarder.forward(request, session_id, await make_body()) as pending,
            contextlib.aclosing(pending.messages()) as messages,
        ):
            async for message in messages:
                match message:
                    case chat.PrefillDone():
                        yield AnswerBegun()
                    case chat.Chunk() if not finder.is_found:
                        text = finder.add(message.text_delta or "", found=pending.stop)
                        if text:
                            yield AnswerWords(text)
                        if encoder is not None and message.audio_data is not None:
                            sound = sound_of(message.audio_data)
                            data = await asyncio.to_thread(encoder.add, sound)
                            if data:
                                yield AnswerSound(data)
                    case chat.ToolCall() if not finder.is_found and asked.takes_call(message.index):
                        rest = finder.rest()
                        if rest:
                            yield AnswerWords(rest)
                        yield AnswerCall(message)
                    case chat.Done():
                        rest = finder.rest()
                        if rest:
                            yield AnswerWords(rest)
                        if encoder is not None:
                            data = await asyncio.to_thread(encoder.finish)
                            if data:
                                yield AnswerSound(data)
                        yield AnswerEnded(message, finder.is_found)
                    case _:
                        pass


def sound_of(text: str | None) -> Pcm:
    """Sound as a worker sends it."""
    data = b"" if text is None else codec.from_base64(text, field="audio_data")
    return Pcm(np.frombuffer(data, "<f4").astype(np.float32), OUTPUT_RATE_HZ)
