"""An answer streamed by a server with OpenAI's chat completions API, and its possible failures.

A failure ends the answer with an `AnswerProblem`: a sentence to speak, and one about what to do.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from parley.models.cascade.connection import ConnectionPool
from parley.models.cascade.response import StreamedResponse
from parley.models.cascade.tool_text import CallWriter
from parley.models.cascade.writer import AnswerProblem
from parley.protocol.codec import Converter
from parley.protocol.values import TokenLogprob

LINE_BYTES: Final = 1 << 20
"""Maximum length of a line of a stream."""
END_S: Final = 1.0
"""Time in which a stream must end after the finish reason, or after `[DONE]`."""
LINES_MOST: Final = 1000
"""Maximum number of lines of an answer that is not streamed."""
THOUGHTS_MOST: Final = 50_000
"""Number of lines without visible text after which an answer is abandoned."""

UNREACHABLE = AnswerProblem(
    "I'm sorry, I can't reach my language model right now.",
    "The language model's server cannot be reached. The operator has to start it, or to correct "
    "its address (--llm).",
)
NOT_READY = AnswerProblem(
    UNREACHABLE.spoken,
    "The language model's server is not ready. The operator has to start it, or to correct its "
    "address (--llm).",
)
SILENT = AnswerProblem(
    "I'm sorry, my language model takes too long to answer.",
    "The language model's server was silent for too long. Try again; model.llm_timeout_s says how "
    "long it is waited for.",
)
NO_ACCESS = AnswerProblem(
    "I'm sorry, my language model refused to answer.",
    "The language model's server does not accept the key ({status}). The operator has to correct "
    "model.llm_key.",
)
NOT_THERE = AnswerProblem(
    "I'm sorry, my language model refused to answer.",
    "The language model's server does not know this model or address ({status}). The operator has "
    "to correct --llm and --llm-model.",
)
BUSY = AnswerProblem(
    "I'm sorry, my language model has too much to do. Please try again in a moment.",
    "The language model's server has too many requests (429). Try again{after}.",
)
REFUSED = AnswerProblem(
    "I'm sorry, my language model refused to answer.",
    "The language model's server refused the request ({status}). A shorter conversation, or one "
    "without pictures and tools, may be answered.",
)
TOO_LONG = AnswerProblem(
    "I'm sorry, this is too long for my language model.",
    "The conversation is too long for the language model. The operator has to lower "
    "model.context_tokens, or to run the model with a larger context.",
)
BROKEN = AnswerProblem(
    "I'm sorry, my language model has failed.",
    "The language model's server failed ({status}). Try again; its own log says why.",
)
NONSENSE = AnswerProblem(
    "I'm sorry, I don't understand what my language model sends.",
    "What the language model's server sent is no chat completion. The operator has to check that "
    "--llm is the address of an OpenAI-compatible API, with /v1 at its end.",
)
NO_PICTURES = AnswerProblem(
    "I'm sorry, my language model cannot look at pictures.",
    "The language model does not accept pictures. The operator has to unset model.llm_images.",
)
CUT_OFF = AnswerProblem(
    "I'm sorry, my language model has stopped in the middle.",
    "The language model's server stopped in the middle of its answer. Try again; its own log says "
    "why.",
)
FILTERED = AnswerProblem(
    "I'm sorry, my language model has stopped in the middle.",
    "The filter of the language model's server cut the answer. Ask in other words.",
)
EMPTY = AnswerProblem(
    "I'm sorry, my language model gave no answer.",
    "The language model's server ended its answer without a word{after}. Try again; a model that "
    "thinks may need more room (max_tokens) or an instruction not to think (model.llm_extra).",
)


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The next piece of an answer: text, or function calls in the format of `views/tools.py`."""

    text: str = ""
    calls: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


_logprobs: Final = Converter(tuple[TokenLogprob, ...])


class CompletionStream(StreamedResponse[StreamPiece]):
    """One answer in flight. After its last piece, `finish` is the finish reason of the server."""

    event = "language_model_failed"
    silent, unreachable, cut_off, nonsense = SILENT, UNREACHABLE, CUT_OFF, NONSENSE

    def __init__(
        self,
        connections: ConnectionPool,
        body: dict[str, Any],
        news: Callable[[], None],
        done: Callable[[AnswerProblem | None], None],
    ) -> None:
        self.finish = ""
        self._end_timer = threading.Timer(END_S, self._shut)
        tools = body.get("tools") or []
        self.declared = frozenset(str(tool["function"]["name"]) for tool in tools)
        self._has_pictures = any(isinstance(one["content"], list) for one in body["messages"])
        super().__init__(connections, "/chat/completions", body, news, done)

    def _receive(self, reply: httpx.Response) -> bool:
        try:
            lines = self._lines_of(reply)
            if "application/json" in reply.headers.get("content-type", ""):
                # A server that does not stream sends the object of one event, without `data:`.
                lines = iter(["data:" + "".join(itertools.islice(lines, LINES_MOST))])
            for piece in self._pieces_of(lines):
                if not self._put(piece):
                    return False
            self._end()
            if self._is_over:
                # The rest is read, so that the connection can be used again.
                deque(lines, maxlen=0)
            return reply.is_closed
        finally:
            self._end_timer.cancel()

    def _refused(self, reply: httpx.Response, message: str) -> AnswerProblem:
        if self._has_pictures and _NO_PICTURES.search(message):
            return NO_PICTURES
        return problem_of(reply, message)

    def _lines_of(self, reply: httpx.Response) -> Iterator[str]:
        """Lines of the response. The end of a complete answer's stream cannot fail."""
        try:
            yield from lines_of(reply)
        except (httpx.HTTPError, httpx.StreamError):
            if not self._is_over:
                raise

    def _complete(self) -> None:
        """The answer is complete unless more follows soon."""
        self._is_over = True
        self._end_timer.cancel()
        self._end_timer = threading.Timer(END_S, self._shut)
        self._end_timer.daemon = True
        self._end_timer.start()

    def _pieces_of(self, lines: Iterator[str]) -> Iterator[StreamPiece]:
        calls = CallWriter(self.declared)
        is_begun = False
        thoughts = 0
        held = ""
        came_s = time.monotonic()
        for line in lines:
            # Keep-alive lines count, too.
            thoughts += bool(line)
            if thoughts > THOUGHTS_MOST:
                self.finish = "length"
                return
            kind, _, data = line.lstrip("\ufeff").partition(":")
            data = data.strip()
            if data == "[DONE]":
                self._complete()
                break
            # llama.cpp before October 2025 names the field of an error `error`.
            event = json.loads(data) if kind in ("data", "error") and data else {}
            if kind == "error" or event.get("error") or event.get("object") == "error":
                self._fail(problem_in(event), f"said: {data}")
                return
            is_news = False
            for choice in (event.get("choices") or [])[:1]:
                self.finish = str(choice.get("finish_reason") or "") or self.finish
                if self.finish == "error":
                    self._fail(BROKEN.filled(status="in its stream"), "ended with an error")
                    return
                if self.finish:
                    self._complete()
                delta = choice.get("delta") or choice.get("message") or {}
                text, held = paired(held + _words_of(delta))
                called = "".join(calls.add(one) for one in delta.get("tool_calls") or [])
                found = (choice.get("logprobs") or {}).get("content") or ()
                is_begun = is_begun or bool(delta)
                is_news = any(delta.values())
                if called or found or text:
                    thoughts = 0
                    yield StreamPiece(text, paired(called)[0], _logprobs.convert(found))
            now_s = time.monotonic()
            if is_news:
                came_s = now_s
            elif now_s - came_s > self._endpoint.timeout_s:
                # Signs of life alone are no answer.
                self._fail(SILENT, "sent nothing but signs of life for too long")
                return
        rest = calls.finish()
        if rest:
            yield StreamPiece(calls=rest)
        if not self._is_over:
            self._fail(*((CUT_OFF, "broke off") if is_begun else (NONSENSE, "sent no stream")))


def _words_of(delta: Mapping[str, Any]) -> str:
    """Text in a piece of an answer: a string, text parts, or a refusal."""
    content = delta.get("content") or delta.get("refusal") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def paired(text: str) -> tuple[str, str]:
    """A text in which halves of characters that JSON escapes separately are joined, and the half
    at its end, which waits for the other one. Other halves are replaced."""
    held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    text = text[: len(text) - len(held)]
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text, held


def lines_of(reply: httpx.Response) -> Iterator[str]:
    """Lines as they arrive.

    Raises:
        ValueError: one is longer than `LINE_BYTES`.
    """
    held = b""
    for data in reply.iter_bytes():
        *whole, held = (held + data).split(b"\n")
        if len(held) > LINE_BYTES:
            raise ValueError(f"a line of more than {LINE_BYTES} bytes")
        yield from (line.decode("utf-8", "replace").rstrip("\r") for line in whole)
    yield held.decode("utf-8", "replace")


_TOO_LONG: Final = re.compile(
    r"context[ _]?(?:length|window|size)|(?:prompt|input)\b.{0,60}\b(?:too long|exceeds?\b.{0,40}"
    r"tokens)|too many (?:input )?tokens|reduce the length|`inputs` tokens",
    re.I,
)
"""What servers say of a conversation that exceeds the model's context."""
_NO_PICTURES: Final = re.compile(r"image|multi-?modal|content\W+must be a string", re.I)
"""What servers of models without vision say of pictures."""


def problem_in(event: Mapping[str, Any]) -> AnswerProblem:
    """The problem that an error in a stream stands for."""
    if _TOO_LONG.search(json.dumps(event)):
        return TOO_LONG
    return BROKEN.filled(status="in its stream")


def problem_of(reply: httpx.Response, message: str) -> AnswerProblem:
    """The problem that an error response stands for."""
    status = reply.status_code
    match status:
        case 401 | 403:
            return NO_ACCESS.filled(status=status)
        case 404 | 405:
            return NOT_THERE.filled(status=status)
        case 429:
            after = reply.headers.get("retry-after", "")
            seconds = f" in {after} s" if after.isdigit() and len(after) < 6 else " in a moment"
            return BUSY.filled(after=seconds)
        case _ if status == 413 or _TOO_LONG.search(message):
            return TOO_LONG
        case _ if status < 500:
            return REFUSED.filled(status=status)
        case _:
            return BROKEN.filled(status=status)
