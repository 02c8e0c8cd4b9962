"""The response object and its events, built while an answer arrives. Pure.

Every event has a `type` and a `sequence_number`; their order is as published, which the SDKs check.
Source: OpenAI API reference, responses and their streaming events.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from parley.errors import ParleyError
from parley.gateway.http.openai.answering import AnswerEnded
from parley.gateway.http.openai.response_request import Item, ResponseRequest
from parley.protocol import chat, codec

Event = dict[str, Any]
Deltas = list[list[tuple[int, int]]]
"""Of each message, the lengths of its deltas: characters, and tokens with probabilities."""

PREFIX: Final = "resp_"
INNER_CHARS: Final = 32
"""The common part of the ids of a response and its items, after the prefix."""
ARGUMENT_CHARS: Final = 40
"""Length of the pieces of a call's arguments, which are complete when they are sent."""

ECHOED: Final = (
    *("instructions", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "user"),
    *("previous_response_id", "prompt_cache_key", "safety_identifier", "temperature", "top_p"),
)
"""Fields of a request that its response repeats."""


def encode(event: Event) -> bytes:
    """A server-sent event, with its name."""
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + codec.encode_media(event) + b"\n\n"


class ResponseWriter:
    """One response, from its first event to its last.

    Args:
        response_id: starts with `PREFIX`; the rest is part of the ids of its items.
        stored: True if it will be stored.
    """

    def __init__(
        self,
        asked: ResponseRequest,
        *,
        response_id: str,
        model: str,
        created_s: int,
        stored: bool,
    ) -> None:
        self._asked = asked
        self.response_id = response_id
        self._model, self._created_s, self._stored = model, created_s, stored
        self._number = 0
        self.output: list[Item] = []
        self.deltas: Deltas = []
        self._text: str | None = None
        """Id of the open message; None if there is none."""
        self._logprobs: list[Any] = []
        """Probabilities of its tokens."""
        self._calls: dict[int, tuple[str, str, str]] = {}
        """Id, name and arguments of calls in progress."""

    # ---- events ----------------------------------------------------------------------------

    def begin(self) -> list[Event]:
        made = self.response("in_progress")
        return [self._event("response.created", response=made),
                self._event("response.in_progress", response=made)]  # fmt: skip

    def words(self, text: str, logprobs: Sequence[Any] = ()) -> list[Event]:
        events = self._open_message() if self._text is None else []
        assert self._text is not None
        self._text += text
        self._logprobs += logprobs
        self.deltas[-1].append((len(text), len(logprobs)))
        return [*events, self._event(
            "response.output_text.delta", **self._place(), content_index=0, delta=text,
            logprobs=[*logprobs],
        )]  # fmt: skip

    def call(self, piece: chat.ToolCall) -> list[Event]:
        """Part of a call. Calls are sent when they are complete, because text that does not become
        a call is sent as text."""
        call_id, name, arguments = self._calls.pop(piece.index, (piece.id, "", ""))
        arguments += piece.arguments_delta
        if not piece.is_final:
            self._calls[piece.index] = (call_id, piece.name or name, arguments)
            return []
        if not _is_object(arguments):
            return []
        return [*self.close_message("completed"), *self.whole_call(call_id, name, arguments)]

    def end(self, ended: AnswerEnded) -> list[Event]:
        """The answer is complete: all events except the last one, see `last`."""
        return self.close_message("incomplete" if ended.is_limit else "completed")

    def last(self, ended: AnswerEnded) -> Event:
        status = "incomplete" if ended.is_limit else "completed"
        made = self.response(
            status,
            usage=usage(ended.done),
            incomplete_details={"reason": "max_output_tokens"} if ended.is_limit else None,
        )
        return self._event(f"response.{status}", response=made)

    def failed(self, error: ParleyError) -> list[Event]:
        events = self.close_message("incomplete")
        code = "server_error" if error.http_status >= 500 else "invalid_prompt"
        if error.http_status == 429:
            code = "rate_limit_exceeded"
        made = self.response("failed", error={"code": code, "message": str(error)})
        # Of failed responses, only those in the background are stored.
        made["store"] = self._stored and self._asked.background
        return [*events, self._event("response.failed", response=made)]

    # ---- the object ------------------------------------------------------------------------

    def response(
        self,
        status: str,
        *,
        usage: dict[str, Any] | None = None,
        error: dict[str, str] | None = None,
        incomplete_details: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """The current state of the response. Unsupported fields are null."""
        asked = self._asked
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self._created_s,
            "status": status,
            "background": asked.background,
            "error": error,
            "incomplete_details": incomplete_details,
            **{name: getattr(asked, name) for name in ECHOED},
            "metadata": {name: _text(value) for name, value in asked.metadata.items()},
            "model": self._model,
            "output": [*self.output],
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": self._stored,
            "text": {"format": asked.text.format or {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": msgspec.to_builtins(asked.tools),
            "top_logprobs": asked.top_logprobs or 0,
            "truncation": asked.truncation or "disabled",
            "usage": usage,
        }

    # ---- items -----------------------------------------------------------------------------

    def _open_message(self) -> list[Event]:
        self._text = ""
        self.deltas.append([])
        item = _message(self._item_id("msg"), "in_progress", None)
        self.output.append(item)
        return [
            self._event("response.output_item.added", output_index=len(self.output) - 1, item=item),
            self._event(
                "response.content_part.added", **self._place(), content_index=0, part=_part("")
            ),
        ]

    def close_message(self, status: str) -> list[Event]:
        """End the open message, if there is one."""
        if self._text is None:
            return []
        text, self._text = self._text, None
        logprobs, self._logprobs = self._logprobs, []
        place = self._place()
        part = _part(text, logprobs)
        item = self.output[-1] = _message(place["item_id"], status, part)
        index = place["output_index"]
        return [
            self._event(
                "response.output_text.done", **place, content_index=0, text=text, logprobs=logprobs
            ),
            self._event("response.content_part.done", **place, content_index=0, part=part),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def whole_call(self, call_id: str, name: str, arguments: str) -> list[Event]:
        item_id = self._item_id("fc")
        index = len(self.output)
        item = {
            "id": item_id,
            "type": "function_call",
            "status": "completed",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
        }
        self.output.append(item)
        place = {"item_id": item_id, "output_index": index}
        started = {**item, "status": "in_progress", "arguments": ""}
        return [
            self._event("response.output_item.added", output_index=index, item=started),
            *(
                self._event(
                    "response.function_call_arguments.delta",
                    **place,
                    delta=arguments[at : at + ARGUMENT_CHARS],
                )
                for at in range(0, len(arguments), ARGUMENT_CHARS)
            ),
            self._event(
                "response.function_call_arguments.done", **place, name=name, arguments=arguments
            ),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.response_id.removeprefix(PREFIX)}{len(self.output):03d}"

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def usage(done: chat.Done) -> dict[str, Any]:
    return {
        "input_tokens": done.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": done.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": done.input_tokens + done.generated_tokens,
    }


def replayed(asked: ResponseRequest, response: dict[str, Any], deltas: Deltas) -> Iterator[Event]:
    """The events of a stored response, as in its stream.

    Args:
        asked: the request it answered.
        deltas: without them, each text is one delta.
    """
    writer = ResponseWriter(
        asked,
        response_id=response["id"],
        model=response["model"],
        created_s=response["created_at"],
        stored=True,
    )
    lengths = iter(deltas)
    yield from writer.begin()
    for item in response["output"]:
        if item["type"] == "message":
            for part in item["content"]:
                text, logprobs = io.StringIO(part["text"]), iter(part["logprobs"])
                whole = [(len(part["text"]), len(part["logprobs"]))]
                for chars, tokens in next(lengths, whole):
                    yield from writer.words(text.read(chars), [*islice(logprobs, tokens)])
            yield from writer.close_message(item["status"])
        else:
            yield from writer.whole_call(item["call_id"], item["name"], item["arguments"])
    # There is no event for a cancelled one.
    if response["status"] != "cancelled":
        yield writer._event(f"response.{response['status']}", response=response)


def _part(text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}


def _message(item_id: str, status: str, part: dict[str, Any] | None) -> Item:
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if part is None else [part],
    }


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
