"""Generates one chat answer as a stream of pieces, for all of OpenAI's interfaces.

Chat completions and responses differ in the formats of requests and answers; this module has the
common part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import msgspec
import numpy as np
from starlette.requests import Request

from parley.errors import BadInput, InvalidRequest
from parley.gateway.http.chat_forwarder import ChatForwarder, PendingAnswer, WorkerRefused
from parley.gateway.http.openai import completions
from parley.gateway.http.openai.completions import Completion, StopFinder
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.sources import Sources
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm
from parley.protocol import chat, codec, values
from parley.protocol.control import Ability
from parley.protocol.values import TokenLogprob, Tool, ToolCallPart, has_to_call, make_id
from parley.transport import Message

NO_BOTH: Final = (
    "The loaded model can be forced to call a tool or to keep to a format, not both: leave out "
    "response_format, or set tool_choice to none."
)
CALL: Final = "Answer with a call of one of these functions, as JSON:\n{}"
OWN: Final = "a language model of your own (--model cascade --llm ADDRESS)"
REFUSALS: Final[Mapping[Ability, str]] = {
    "tools": f"The loaded model cannot call tools. Start the server with {OWN} or with MiniCPM-o.",
    "tool_choice": "The loaded model cannot be forced to call a tool: tool_choice must be "
    f'"auto" or "none". Use {OWN} to force one.',
    "json": "The loaded model cannot keep to a format: response_format must be "
    f'{{"type": "text"}}. pocket and MiniCPM-o can, and {OWN}.',
    "penalties": f"{{}} must be 0 with the loaded model. Use {OWN} for penalties.",
    "logprobs": "{} must be absent with the loaded model, which reports no probabilities of "
    f"tokens. Use {OWN} for them.",
}
"""Errors of requests that need an ability of the model; `{}` is the field."""


@dataclass(frozen=True, slots=True)
class AnswerWords:
    """Further text of the answer.

    Args:
        logprobs: of the tokens since the previous words, if requested.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The answer is complete.

    Args:
        is_cut: True if it ended at one of the client's stop texts.
        calls: its function calls.
    """

    done: chat.Done
    is_cut: bool = False
    calls: tuple[ToolCallPart, ...] = ()

    @property
    def is_limit(self) -> bool:
        """True if it ended at the maximum number of tokens."""
        return self.done.ending == "limit" and not self.is_cut


AnswerPiece = chat.PrefillDone | AnswerWords | Pcm | chat.ToolCall | AnswerEnded
"""Pieces of an answer, in order: the request is in the model's context; text; audio; parts of a
function call (first its name, then arguments, the last with `is_final`); the end."""


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Replace the names of fields in errors by those that the client uses. A field inside one that
    has another name gets the name of that one."""
    try:
        yield
    except (BadInput, WorkerRefused) as error:
        old = error.field or ""
        if old in names:
            error.field = names[old]
            error.args = (str(error).replace(old, names[old], 1),)
        elif (outer := old.partition("[")[0]) in names:
            error.field = names[outer]
        raise


def shaped(asked: Completion, models: ModelList) -> tuple[Completion, bool]:
    """The request in a form that the loaded model can answer, and True if the answer is a forced
    call.

    If the model cannot call functions, or cannot be forced to, but can follow a format, it is asked
    for the call as JSON: its answer is the call.

    Raises:
        InvalidRequest: the named field requests something that the model cannot do.
    """
    demanded = tuple(tool for tool in asked.offered if tool.must_call is True)
    if not demanded or models.can("tool_choice") or not models.can("json"):
        _check_abilities(asked, models)
        return asked, False
    if asked.answer_format is not None:
        raise InvalidRequest(NO_BOTH, field="response_format")
    schemas = "\n".join(
        f"- {tool.function.name}: {tool.function.description or ''}" for tool in demanded
    )
    asks = completions.CompletionMessage(role="system", content=CALL.format(schemas))
    form = {
        "type": "json_schema",
        "json_schema": {"name": "call", "schema": _call_schema(demanded)},
    }
    # After the leading system messages.
    lead = [*takewhile(lambda each: each.role in ("system", "developer"), asked.messages)]
    messages = (*lead, asks, *asked.messages[len(lead) :])
    changed = msgspec.structs.replace(
        asked, tools=None, tool_choice=None, response_format=form, messages=messages
    )
    _check_abilities(changed, models)
    return changed, True


def _call_schema(tools: tuple[Tool, ...]) -> dict[str, Any]:
    """The schema of a call of one of these functions. Definitions are at its root, where references
    expect them."""
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
    """The call in a forced answer; None if it was truncated."""
    try:
        call = json.loads(text)
        name, arguments = call["name"], json.dumps(call["arguments"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return None
    return ToolCallPart(name=name, arguments=arguments, id=make_id("call"))


def _check_abilities(asked: Completion, models: ModelList) -> None:
    logprobs = "logprobs" if asked.logprobs else "top_logprobs"
    needed: tuple[tuple[Ability, bool, str], ...] = (
        ("tools", bool(asked.offered), "tools"),
        ("tool_choice", has_to_call(asked.offered), "tool_choice"),
        ("json", asked.answer_format is not None, "response_format"),
        ("penalties", asked.penalty is not None, asked.penalty or ""),
        ("logprobs", asked.asks_logprobs, logprobs),
    )
    for ability, is_needed, name in needed:
        if is_needed and not models.can(ability):
            raise InvalidRequest(REFUSALS[ability].replace("{}", name), field=name)


def _body(asked: Completion, voice: str | None) -> tuple[Message, dict[str, str]]:
    """The request for the worker, and the fields of its media with those of the completion."""
    whole = completions.request_of(asked, voice=voice)
    fields = (
        values.media_path(at, index)
        for at, message in enumerate(whole.messages)
        for index, part in enumerate(message.parts)
        if isinstance(part, values.Base64Image | values.Base64Audio | values.Base64Video)
    )
    names = dict(zip(fields, completions.media_paths(asked.messages), strict=True))
    return Message.client_text(codec.encode_media(whole)), names


async def answer(
    forwarder: ChatForwarder,
    request: Request,
    name: str,
    asked: Completion,
    sources: Sources,
    *,
    voice: str | None = None,
    is_forced: bool = False,
    names: Mapping[str, str] | None = None,
) -> AsyncGenerator[AnswerPiece, None]:
    """The pieces of one answer, ending with `AnswerEnded`. The request's media are fetched and
    decoded once a session was counted for its sender.

    Args:
        name: of the interface, for the log.
        voice: a registered voice; None: the server's own.
        is_forced: True if the answer is a call (see `shaped`).
        names: of fields that have another name in this interface.

    Raises:
        ParleyError: see `ChatForwarder.forward` and `PendingAnswer.messages`.
    """
    reader = _AnswerReader(asked, is_forced)
    inner = dict[str, str]()
    with (
        renamed(names or {}),
        renamed(inner),
        # The format of a forced call is made of the tools.
        renamed({"response_format": "tools"} if is_forced else {}),
    ):
        async with forwarder.visit(request, name) as session_id:
            # The fetched media are not kept twice during the answer.
            body, media = await asyncio.to_thread(_body, await sources.completed(asked), voice)
            inner.update(media)
            async with (
                forwarder.forward(request, session_id, body) as pending,
                contextlib.aclosing(pending.messages()) as messages,
            ):
                async for message in messages:
                    for piece in reader.pieces_of(message, pending):
                        yield piece


class _AnswerReader:
    """Convert a worker's messages to pieces of the answer."""

    def __init__(self, asked: Completion, is_forced: bool) -> None:
        self._asked, self._is_forced = asked, is_forced
        self._finder = StopFinder(asked.stops)
        self._forced = ""
        self._called = set[int]()
        """Indices of the calls that were read in pieces."""

    def pieces_of(self, message: chat.ServerMessage, pending: PendingAnswer) -> list[AnswerPiece]:
        finder = self._finder
        match message:
            case chat.PrefillDone():
                return [message]
            case chat.Chunk() if not finder.is_found:
                return self._chunk(message, pending)
            case chat.ToolCall() if not finder.is_found and self._asked.takes_call(message.index):
                self._called.add(message.index)
                return [*self._rest(), message]
            case chat.Done() if self._is_forced:
                return self._forced_call(message)
            case chat.Done():
                in_pieces = self._asked.is_read_in_pieces
                takes = self._called.__contains__ if in_pieces else self._asked.takes_call
                taken = tuple(c for i, c in enumerate(message.tool_calls or ()) if takes(i))
                whole = [] if in_pieces else _whole(message)
                return [*whole, *self._rest(), AnswerEnded(message, finder.is_found, taken)]
            case _:
                return []

    def _chunk(self, chunk: chat.Chunk, pending: PendingAnswer) -> list[AnswerPiece]:
        text = self._finder.add(chunk.text_delta or "", found=pending.stop)
        logprobs = chunk.logprobs or ()
        pieces: list[AnswerPiece] = []
        if self._is_forced:
            self._forced += text
        elif text or logprobs:
            pieces.append(AnswerWords(text, logprobs))
        if chunk.audio_data is not None and not self._finder.is_found:
            pieces.append(sound_of(chunk.audio_data))
        return pieces

    def _rest(self) -> list[AnswerPiece]:
        """The text that was held back."""
        rest = self._finder.rest()
        return [AnswerWords(rest)] if rest else []

    def _forced_call(self, done: chat.Done) -> list[AnswerPiece]:
        text = (self._forced if self._asked.is_read_in_pieces else done.text) + self._finder.rest()
        call = call_in(text)
        if call is None:
            return [AnswerWords(text), AnswerEnded(done)]
        parts = (
            chat.ToolCall(index=0, id=call.id, name=call.name),
            chat.ToolCall(index=0, id=call.id, arguments_delta=call.arguments),
            chat.ToolCall(index=0, id=call.id, is_final=True),
        )
        return [*parts, AnswerEnded(done, calls=(call,))]


def _whole(done: chat.Done) -> list[AnswerPiece]:
    pieces: list[AnswerPiece] = [AnswerWords(done.text)] if done.text else []
    return pieces if done.audio_data is None else [*pieces, sound_of(done.audio_data)]


def sound_of(text: str) -> Pcm:
    data = codec.from_base64(text, field="audio_data")
    return Pcm(np.frombuffer(data, "<f4").astype(np.float32), OUTPUT_RATE_HZ)
