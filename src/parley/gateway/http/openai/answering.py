"""One answer to a chat as pieces, whichever of OpenAI's interfaces shows it.

Chat completions and responses differ in how they write a request and an answer down; what happens
between the two is here, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from fastapi import Request

from parley.errors import InvalidRequest
from parley.gateway.http.chat_forwarder import ChatForwarder, WorkerRefused
from parley.gateway.http.openai import completions
from parley.gateway.http.openai.completions import Completion, StopFinder
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import Sources
from parley.media.encoder import Encoder
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol import chat, codec
from parley.protocol.values import Tool, ToolCallPart, has_to_call, make_id
from parley.transport import Message

MakeBody = Callable[[], Awaitable[Message]]
"""Makes the message for the worker."""

NO_TOOLS: Final = (
    "The loaded model cannot call tools. Start the server with a language model of your own "
    "(--model cascade --llm ADDRESS) or with MiniCPM-o."
)
NO_BOTH: Final = (
    "The loaded model can be made to call a tool or to keep to a format, not both: leave out "
    "response_format, or set tool_choice to none."
)
CALL: Final = "Answer with a call of one of these functions, as JSON:\n{}"
NO_CHOICE: Final = (
    'The loaded model cannot be made to call a tool: tool_choice must be "auto" or "none". '
    "A language model of your own (--model cascade --llm ADDRESS) can."
)


NO_FORMAT: Final = (
    'The loaded model cannot be held to a format: response_format must be {"type": "text"}. '
    "pocket and MiniCPM-o can, and a language model of your own (--model cascade --llm ADDRESS)."
)
NO_PENALTY: Final = (
    "{} must be 0 with the loaded model. A language model of your own (--model cascade --llm "
    "ADDRESS) takes penalties."
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


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about a field that the client calls otherwise say its own name for it."""
    try:
        yield
    except (InvalidRequest, WorkerRefused) as error:
        old = error.field or ""
        if old in names:
            error.field = names[old]
            error.args = (str(error).replace(old, names[old], 1),)
        raise


def names_of(*, is_forced: bool) -> Mapping[str, str]:
    """What is called otherwise in an answer that is a call: its format is made of the tools."""
    return {"response_format": "tools"} if is_forced else {}


def shaped(asked: Completion, models: ModelList) -> tuple[Completion, bool]:
    """The request as the loaded model can answer it, and whether its answer is a forced call.

    A model that calls no functions, or cannot be made to, but keeps to a format, is asked for the
    call as JSON: its answer is the call.

    Raises:
        InvalidRequest: it asks, in the named field, for what the model cannot do.
    """
    demanded = tuple(tool for tool in asked.offered if tool.must_call is True)
    if not demanded or models.can("tool_choice") or not models.can("json"):
        _check_abilities(asked, models)
        return asked, False
    if asked.answer_format is not None:
        raise InvalidRequest(NO_BOTH, field="response_format")
    told = "\n".join(
        f"- {tool.function.name}: {tool.function.description or ''}" for tool in demanded
    )
    asks = completions.CompletionMessage(role="system", content=CALL.format(told))
    form = {
        "type": "json_schema",
        "json_schema": {"name": "call", "schema": _call_schema(demanded)},
    }
    changed = msgspec.structs.replace(
        asked, tools=None, tool_choice=None, response_format=form, messages=_led(asked, asks)
    )
    _check_abilities(changed, models)
    return changed, True


def _led(
    asked: Completion, asks: completions.CompletionMessage
) -> tuple[completions.CompletionMessage, ...]:
    """The messages, with one more behind those of the system that lead them."""
    place = 0
    while place < len(asked.messages) and asked.messages[place].role in ("system", "developer"):
        place += 1
    return (*asked.messages[:place], asks, *asked.messages[place:])


def _call_schema(tools: tuple[Tool, ...]) -> dict[str, Any]:
    """A call of one of some functions, as a schema. Definitions are at its root, where references
    look for them."""
    shared: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict(tool.function.parameters or {"type": "object"})
        for name in ("$defs", "definitions"):
            if isinstance(found := parameters.pop(name, None), dict):
                shared.setdefault(name, {}).update(found)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **shared}


def call_in(text: str) -> ToolCallPart | None:
    """The call that a forced answer is; None where it was cut off."""
    try:
        call = json.loads(text)
        name, arguments = call["name"], json.dumps(call["arguments"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return None
    return ToolCallPart(name=name, arguments=arguments, id=make_id("call"))


def _check_abilities(asked: Completion, models: ModelList) -> None:
    if asked.offered and not models.can("tools"):
        raise InvalidRequest(NO_TOOLS, field="tools")
    if has_to_call(asked.offered) and not models.can("tool_choice"):
        raise InvalidRequest(NO_CHOICE, field="tool_choice")
    if asked.answer_format is not None and not models.can("json"):
        raise InvalidRequest(NO_FORMAT, field="response_format")
    if asked.penalty is not None and not models.can("penalties"):
        raise InvalidRequest(NO_PENALTY.format(asked.penalty), field=asked.penalty)


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
    is_forced: bool = False,
    names: Mapping[str, str] | None = None,
) -> AsyncGenerator[AnswerPiece, None]:
    """The pieces of one answer, ending with `AnswerEnded`.

    Args:
        name: of the interface, for the log.
        asked: without its messages, if these are large.
        encoder: for spoken answers.
        is_forced: the answer is a call (see `shaped`).
        names: of fields that this interface calls otherwise.

    Raises:
        ParleyError: as `ChatForwarder.forward` and `PendingAnswer.messages`.
    """
    finder = StopFinder(asked.stops)
    forced = ""
    with (
        renamed(names or {}),
        renamed(names_of(is_forced=is_forced)),
        forwarder.visit(request, name) as session_id,
    ):
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
                        if is_forced:
                            forced += text
                        elif text:
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
                    case chat.Done() if is_forced:
                        for piece in _forced(message, forced + finder.rest()):
                            yield piece
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


def _forced(done: chat.Done, text: str) -> list[AnswerPiece]:
    """The end of an answer that is a call."""
    whole = with_call(done, text)
    if whole is done:
        return [AnswerWords(text), AnswerEnded(done, is_cut=False)]
    (call,) = whole.tool_calls or ()
    parts = (
        chat.ToolCall(index=0, id=call.id, name=call.name),
        chat.ToolCall(index=0, id=call.id, arguments_delta=call.arguments),
        chat.ToolCall(index=0, id=call.id, is_final=True),
    )
    return [*map(AnswerCall, parts), AnswerEnded(whole, is_cut=False)]


def with_call(done: chat.Done, text: str) -> chat.Done:
    """The end of an answer that is a call; as it is where the call was cut off."""
    call = call_in(text)
    return done if call is None else msgspec.structs.replace(done, text="", tool_calls=(call,))


def sound_of(text: str | None) -> Pcm:
    """Sound as a worker sends it."""
    data = b"" if text is None else codec.from_base64(text, field="audio_data")
    return Pcm(np.frombuffer(data, "<f4").astype(np.float32), OUTPUT_RATE_HZ)
