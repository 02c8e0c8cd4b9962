"""An answer streamed by a server with OpenAI's chat completions API, and its possible failures.

A request runs in a separate thread and queues the received pieces. Cancelling shuts down its
connection, even while it waits. A failure (an unreachable server, a refusal, silence for longer
than the timeout, invalid data) ends the answer with an `AnswerProblem`: a sentence to speak, and
one about what to do. Neither contains addresses or keys.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from parley import logs
from parley.models.cascade.tool_text import CallWriter
from parley.models.cascade.writer import AnswerProblem
from parley.protocol.codec import Converter
from parley.protocol.values import TokenLogprob

log = logs.get(__name__)

CONNECT_S: Final = 5.0
LINE_BYTES: Final = 1 << 20
"""Maximum length of a line of a stream."""
LINES_MOST: Final = 1000
"""Maximum number of lines of an answer that is not streamed."""
THOUGHTS_MOST: Final = 50_000
"""Number of lines without visible text after which an answer is abandoned."""
PIECES_MOST: Final = 1000
"""Size of the queue of pieces; when it is full, the server has to wait."""

UNREACHABLE = AnswerProblem(
    "I'm sorry, I can't reach my language model right now.",
    "The language model's server cannot be reached. The operator has to start it, or to correct "
    "its address (--llm).",
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
BROKEN = AnswerProblem(
    "I'm sorry, my language model has failed.",
    "The language model's server failed ({status}). Try again; its own log says why.",
)
NONSENSE = AnswerProblem(
    "I'm sorry, I don't understand what my language model sends.",
    "What the language model's server sent is no chat completion. The operator has to check that "
    "--llm is the address of an OpenAI-compatible API, with /v1 at its end.",
)
CUT_OFF = AnswerProblem(
    "I'm sorry, my language model has stopped in the middle.",
    "The language model's server stopped in the middle of its answer. Try again; its own log says "
    "why.",
)
EMPTY = AnswerProblem(
    "I'm sorry, my language model gave no answer.",
    "The language model's server ended its answer without a word{after}. Try again; a model that "
    "thinks may need more room (max_tokens) or an instruction not to think (model.llm_extra).",
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and key of the server.

    Args:
        url: up to and including `/v1`.
        timeout_s: maximum time without data.
        extra: further fields of a request for an answer; a field that is None is omitted.
    """

    url: str
    model: str = ""
    key: str = field(default="", repr=False)
    timeout_s: float = 20.0
    takes_images: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The next piece of an answer: text, or function calls in the format of `views/tools.py`."""

    text: str = ""
    calls: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


_logprobs: Final = Converter(tuple[TokenLogprob, ...])


class CompletionStream:
    """One answer in flight. Its thread ends when the answer is cancelled or complete.

    `pieces` ends with None. Then `problem` is the failure, if there was one, and `finish` is the
    finish reason of the server.
    """

    def __init__(self, endpoint: Endpoint, body: dict[str, Any]) -> None:
        self.pieces: queue.Queue[StreamPiece | None] = queue.Queue(PIECES_MOST)
        self.problem: AnswerProblem | None = None
        self.finish = ""
        self._is_cancelled = threading.Event()
        self._socket: socket.socket | None = None
        self._endpoint, self._body = endpoint, body
        tools = body.get("tools") or []
        self.declared = frozenset(str(tool["function"]["name"]) for tool in tools)
        threading.Thread(target=self._run, name="llm-endpoint", daemon=True).start()

    def cancel(self) -> None:
        """Close the connection now, even while no data arrives."""
        self._is_cancelled.set()
        if self._socket is not None:
            # A shutdown ends a blocked read in another thread; a close does not.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _connected(self, name: str, info: Mapping[str, Any]) -> None:
        """Store the connection's socket (httpx's trace); shut it down if the request has been
        cancelled."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_cancelled.is_set():
                self.cancel()

    def _run(self) -> None:
        try:
            for piece in self._read():
                if not self._put(piece):
                    return
        except httpx.HTTPStatusError as error:
            self._fail(problem_of(error.response), f"answered {error.response.status_code}")
        except httpx.TimeoutException as error:
            self._fail(SILENT, f"was silent for too long ({type(error).__name__})")
        except httpx.RemoteProtocolError as error:
            self._fail(CUT_OFF, f"broke off: {error}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._fail(UNREACHABLE, f"failed: {error}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._fail(NONSENSE, f"sent nonsense: {error}")
        finally:
            self._put(None)

    def _fail(self, problem: AnswerProblem, how: str) -> None:
        if self._is_cancelled.is_set():
            return
        self.problem = problem
        log.warning("language_model_failed", url=self._endpoint.url, why=how)

    def _put(self, piece: StreamPiece | None) -> bool:
        """Queue a piece; false if the request was cancelled."""
        while not self._is_cancelled.is_set():
            try:
                self.pieces.put(piece, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def _read(self) -> Iterator[StreamPiece]:
        timeout = httpx.Timeout(self._endpoint.timeout_s, connect=CONNECT_S)
        with (
            httpx.Client(
                timeout=timeout, headers=self._endpoint.headers(), follow_redirects=True
            ) as client,
            client.stream(
                "POST",
                f"{self._endpoint.url}/chat/completions",
                json=self._body,
                extensions={"trace": self._connected},
            ) as reply,
        ):
            reply.raise_for_status()
            lines = lines_of(reply)
            if "application/json" in reply.headers.get("content-type", ""):
                # A server that does not stream sends the object of one event, without `data:`.
                lines = iter(["data:" + "".join(itertools.islice(lines, LINES_MOST))])
            yield from self._pieces_of(lines)

    def _pieces_of(self, lines: Iterator[str]) -> Iterator[StreamPiece]:
        calls = CallWriter(self.declared)
        is_begun = is_over = False
        thoughts = 0
        for line in lines:
            # Keep-alive lines count, too.
            thoughts += bool(line)
            if thoughts > THOUGHTS_MOST:
                self.finish = "length"
                return
            kind, _, data = line.lstrip("\ufeff").partition(":")
            data = data.strip()
            if data == "[DONE]":
                is_over = True
                break
            # llama.cpp before October 2025 names the field of an error `error`.
            if kind not in ("data", "error") or not data:
                continue
            event = json.loads(data)
            if kind == "error" or event.get("error") or event.get("object") == "error":
                self._fail(BROKEN.filled(status="in its stream"), f"said: {data}"[:500])
                return
            for choice in (event.get("choices") or [])[:1]:
                self.finish = str(choice.get("finish_reason") or "") or self.finish
                if self.finish == "error":
                    self._fail(BROKEN.filled(status="in its stream"), "ended with an error")
                    return
                is_over = is_over or bool(self.finish)
                delta = choice.get("delta") or choice.get("message") or {}
                text = _words_of(delta)
                called = "".join(calls.add(one) for one in delta.get("tool_calls") or [])
                is_begun = is_begun or bool(delta)
                found = (choice.get("logprobs") or {}).get("content") or ()
                if called or found or text:
                    thoughts = 0
                    yield StreamPiece(text, called, _logprobs.convert(found))
        rest = calls.finish()
        if rest:
            yield StreamPiece(calls=rest)
        if not is_over:
            self._fail(*((CUT_OFF, "broke off") if is_begun else (NONSENSE, "sent no stream")))


def _words_of(delta: Mapping[str, Any]) -> str:
    """Text in a piece of an answer: a string, text parts, or a refusal."""
    content = delta.get("content") or delta.get("refusal") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


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


def problem_of(reply: httpx.Response) -> AnswerProblem:
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
        case _ if status < 500:
            return REFUSED.filled(status=status)
        case _:
            return BROKEN.filled(status=status)
