"""A language model on another server, behind OpenAI's chat completions API.

A separate thread receives the answer (`endpoint.py`); `step` processes what has arrived. A failure
is spoken in plain words and reported to the client; the text written until then is kept. A
conversation that is too long for the server is sent again without its older half, and one with
pictures that it refuses without them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from parley.errors import SetupError
from parley.models.cascade.connection import CONNECT_S, ConnectionPool, Endpoint
from parley.models.cascade.endpoint import (
    EMPTY,
    FILTERED,
    NO_PICTURES,
    NOT_READY,
    TOO_LONG,
    UNREACHABLE,
    CompletionStream,
)
from parley.models.cascade.messages import History, Line
from parley.models.cascade.sampling import Rule
from parley.models.cascade.tool_text import (
    call_id,
    split_calls,
    split_results,
    split_tools,
    without_calls,
    written_calls,
)
from parley.models.cascade.watch import ServerAway, ServerWatch
from parley.models.cascade.writer import (
    AnswerProblem,
    AnswerRequest,
    Draft,
    Writer,
    ends_thoughts,
    readable,
)
from parley.protocol.values import AnswerFormat
from parley.views.tools import CLOSE

AWAKE_S = 120.0
"""Time after an answer for which a server keeps its model loaded. Ollama keeps it for five minutes,
and loads it for up to a minute."""
LOOK_EVERY_S = 0.02
"""Shortest time between two looks at an answer: each reads all of its text again."""
IMAGE_TOKENS = 1000
"""Estimated size of a picture. Source: a picture of a megapixel takes 765 tokens with OpenAI's
models, 1,300 with Qwen's."""
LETTERS_A_TOKEN = 8
"""Servers may send many tokens in one piece, so tokens are estimated from letters."""
RAW_MOST = 400_000
"""Maximum number of letters of an answer, thoughts included; a longer one is abandoned."""
UNSEEN = "(A picture that you cannot see.)"
"""Replaces a picture if the server accepts none."""
NO_RESULT = "No result."
"""Result of a call that returned nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """The answer that a row waits for. `due_s`: monotonic time of the next look at its text."""

    history: History
    lines: tuple[Line, ...]
    stream: CompletionStream
    raw: str = ""
    due_s: float = 0.0


class RemoteWriter(Writer):
    """A language model at an address.

    Args:
        limit_tokens: maximum size of the conversation that is sent, estimated at four letters per
            token.
        find_model: asks the server for the model's name, and raises `SetupError` if it cannot be
            used.
        wakes: a new conversation wakes the server if it may have unloaded its model.
    """

    answers_later = True
    calls_tools = True
    keeps_formats = True
    takes_penalties = True
    reports_logprobs = True
    limit_setting = "model.context_tokens"

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        rows: int,
        limit_tokens: int,
        find_model: Callable[[], str] = str,
        wakes: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self._find_model = find_model
        self._wakes, self._awake_until_s = wakes, 0.0
        self._watch = ServerWatch(endpoint.name, self._find)
        self.sees = endpoint.takes_images
        self.limit_tokens = limit_tokens
        self._connections = ConnectionPool(endpoint)
        self._report: Callable[[], None] = lambda: None
        self._running: list[_Running | None] = [None] * rows
        self._first: list[Line | None] = [None] * rows
        """The first line that is sent in each row in which earlier ones were too long for the
        server."""
        self._is_blind = [False] * rows
        """True for each row whose pictures the server has refused."""
        self._thinks = [False] * rows
        """True for each row whose newest answer started with thoughts that no tag opens. This is
        stored per row, because the answers to one client do not predict those to others."""

    def connect(self) -> None:
        """Find the model at the server. A server that is away is asked again until it answers;
        meanwhile `problem` says so, and answers are refused.

        Raises:
            SetupError: the server answers, but cannot be used.
        """
        try:
            self._find()
        except ServerAway as error:
            self._watch.failed(NOT_READY.message, error)

    def _find(self) -> None:
        self.endpoint = replace(self.endpoint, model=self._find_model() or self.endpoint.model)

    @property
    def problem(self) -> str:
        """Why the server cannot be used, as a sentence without addresses; "" if it can."""
        return self._watch.problem

    def disconnect(self) -> None:
        """Do not ask a server that is away any more."""
        self._watch.answered()

    def _done(self, problem: AnswerProblem | None) -> None:
        if problem is UNREACHABLE:
            self._watch.failed(problem.message)
        elif problem is None:
            self._watch.answered()
            self._awake_until_s = time.monotonic() + AWAKE_S

    def report_news(self, report: Callable[[], None]) -> None:
        """See `WaitsForServers`."""
        self._report = report

    def waits_s(self, row: int, history: History) -> float:
        running = self._running[row]
        if running is None or running.history is not history:
            return 0.0
        if running.stream.is_waiting:
            return math.inf
        return max(0.0, running.due_s - time.monotonic())

    def check_format(self, form: AnswerFormat) -> None:
        """Does nothing: the server reports what it does not support."""

    def open(self, row: int) -> None:
        self.close(row)
        if self._wakes and self.endpoint.model and time.monotonic() >= self._awake_until_s:
            self._awake_until_s = time.monotonic() + AWAKE_S
            body = {
                "model": self.endpoint.model, "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 1, "stream": True,
            }  # fmt: skip
            CompletionStream(self._connections, body, lambda: None, self._done)

    def close(self, row: int) -> None:
        self.cancel(row)
        self._thinks[row] = self._is_blind[row] = False
        self._first[row] = None

    def cancel(self, row: int) -> None:
        running = self._running[row]
        if running is not None:
            running.stream.cancel()
        self._running[row] = None

    def point(self, row: int) -> object:
        return None

    def rewind(self, row: int, point: object) -> None:
        self.cancel(row)

    def count(self, history: History) -> int:
        images = sum(len(line.images) for line in history.lines)
        return super().count(history) + IMAGE_TOKENS * images

    def count_text(self, text: str) -> int:
        # In bytes: a letter of Chinese or Hindi is about a token.
        return -(-len(text.encode()) // 4)

    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        return self._running[row] is None

    def step(self, row: int, request: AnswerRequest, draft: Draft, draws: int) -> Draft:
        history, rule = request.history, request.rule
        running = self._running[row]
        if running is None or running.history is not history:
            if draft.text or draft.calls:
                # The row has returned to the middle of an answer: a server cannot continue it.
                return replace(draft, is_over=True)
            self.cancel(row)
            if self.problem and not self.endpoint.model:
                return Draft(is_over=True, problem=NOT_READY)
            self._start(row, request, _since(history.lines, self._first[row]))
            return draft
        # At most as many as the answer may have; thoughts in between make it fewer.
        pieces, is_ended = running.stream.taken(max(1, request.limit - draft.count))
        if not pieces and not is_ended:
            return draft
        calls = draft.calls + "".join(piece.calls for piece in pieces)
        logprobs = draft.logprobs + tuple(one for piece in pieces for one in piece.logprobs)
        raw = running.raw + "".join(piece.text for piece in pieces)
        if is_ended and not (raw or calls):
            lines = self._lines_again(row, running)
            if lines:
                self._start(row, request, lines)
                return draft
        due_s = time.monotonic() + LOOK_EVERY_S
        self._running[row] = None if is_ended else replace(running, raw=raw, due_s=due_s)
        text, is_cut = self._shown(row, raw, rule, draft, is_last=is_ended or bool(calls))
        # Only visible text counts: the server limits how long a model thinks.
        share = max(0, len(text) - len(draft.text)) / max(1, len(raw) - len(running.raw))
        count = draft.count + min(len(pieces), math.ceil(len(pieces) * share))
        count = max(count, len(text) // LETTERS_A_TOKEN)
        if is_ended:
            self._thinks[row] = ends_thoughts(raw)
            finish, declared = running.stream.finish, running.stream.declared
            calls = calls or written_calls(raw, declared)
            over = replace(
                draft, text=text, is_over=True, is_limit=finish == "length", calls=calls,
                count=count + len(calls) // LETTERS_A_TOKEN, logprobs=logprobs,
                problem=running.stream.problem,
            )  # fmt: skip
            return _checked(over, finish)
        is_limit = count >= request.limit or len(raw) > RAW_MOST
        if is_limit:
            text, is_cut = self._shown(row, raw, rule, draft, is_last=True)
        if is_cut or is_limit:
            self.cancel(row)
        draft = Draft(
            text, (), is_cut or is_limit, is_limit, count, calls=calls, logprobs=logprobs
        )  # fmt: skip
        return _checked(draft, "") if draft.is_over else draft

    def _lines_again(self, row: int, running: _Running) -> tuple[Line, ...]:
        """The lines with which a refused request is repeated; () if it is not repeated."""
        if running.stream.problem is NO_PICTURES:
            self._is_blind[row] = True
            return running.lines
        if running.stream.problem is not TOO_LONG:
            return ()
        shorter = _newer_half(running.lines)
        if shorter:
            self._first[row] = shorter[0]
        return shorter

    def _start(self, row: int, request: AnswerRequest, lines: tuple[Line, ...]) -> None:
        body = self._body(request, _unseen(lines) if self._is_blind[row] else lines)
        stream = CompletionStream(self._connections, body, lambda: self._report(), self._done)
        self._running[row] = _Running(request.history, lines, stream)

    def _shown(
        self, row: int, raw: str, rule: Rule, draft: Draft, *, is_last: bool
    ) -> tuple[str, bool]:
        """`readable`; JSON is returned as written. Thoughts that were already shown stay before the
        rest."""
        if rule.answer_format:
            return raw, False
        words = without_calls(raw)
        text, is_cut = readable(words, is_last=is_last, thinks=self._thinks[row])
        if not text.startswith(draft.text):
            text, is_cut = readable(words, is_last=is_last)
        return text, is_cut

    def _body(self, request: AnswerRequest, lines: tuple[Line, ...]) -> dict[str, Any]:
        rule = request.rule
        system, tools = split_tools(request.history.system)
        messages = [{"role": "system", "content": system}] if system else []
        messages += messages_of(lines)
        body = {
            "model": self.endpoint.model, "messages": messages, "stream": True,
            "temperature": rule.temperature, "top_p": rule.top_p,
            "seed": request.seed % 2**31 if request.is_seed_chosen else None,
        }  # fmt: skip
        fields = body | tools | _options(rule, has_tools=bool(tools)) | dict(self.endpoint.extra)
        return {name: value for name, value in fields.items() if value is not None}


_WHY_EMPTY = {
    "length": ": all its tokens were spent before",
    "content_filter": ": its filter withheld all of it",
    "tool_calls": ": its function call is cut, or of a function that was not declared",
}


def _checked(draft: Draft, finish: str) -> Draft:
    """The finished answer, with a problem if it has neither text nor a call, or was filtered."""
    if draft.problem is not None:
        return draft
    if draft.text or CLOSE in draft.calls:
        return replace(draft, problem=FILTERED) if finish == "content_filter" else draft
    finish = "tool_calls" if draft.calls else finish
    return replace(draft, problem=EMPTY.filled(after=_WHY_EMPTY.get(finish, "")))


def _options(rule: Rule, *, has_tools: bool) -> dict[str, Any]:
    """Fields that are sent only if they were requested, because not every server supports them."""
    form = rule.answer_format
    options: dict[str, Any] = {}
    if form is not None and form.type == "json_object":
        options["response_format"] = {"type": "json_object"}
    elif form is not None:
        schema = {
            "name": form.name, "schema": form.schema or {}, "strict": form.strict,
            "description": form.description,
        }  # fmt: skip
        inner = {name: value for name, value in schema.items() if value is not None}
        options["response_format"] = {"type": "json_schema", "json_schema": inner}
    for name in ("presence_penalty", "frequency_penalty"):
        if value := getattr(rule, name):
            options[name] = value
    if rule.top_logprobs is not None:
        options["logprobs"] = True
        # Some servers refuse 0.
        if rule.top_logprobs:
            options["top_logprobs"] = rule.top_logprobs
    if has_tools and not rule.parallel_calls:
        options["parallel_tool_calls"] = False
    return options


def _since(lines: tuple[Line, ...], first: Line | None) -> tuple[Line, ...]:
    """Lines from `first` on; all of them if it is not among them."""
    return lines[lines.index(first) :] if first in lines else lines


def _unseen(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Lines with a sentence for each picture."""
    return tuple(
        replace(line, text=" ".join((line.text, *[UNSEEN] * len(line.images))).strip(), images=())
        for line in lines
    )


def _newer_half(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Lines without the older half, from a user's turn on; () if there is just one turn."""
    turns = [place for place, line in enumerate(lines) if place and line.role == "user"]
    return lines[turns[len(turns) // 2] :] if turns else ()


def messages_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Lines as OpenAI's messages; calls and results of functions in OpenAI's own form.

    A call without a result gets `NO_RESULT`, because servers refuse calls without one. Some refuse
    answers without words, and templates of some models two turns of the user in a row.
    """
    messages: list[dict[str, Any]] = []
    called = answered = 0

    def close_calls() -> None:
        nonlocal answered
        while answered < called:
            closed = {"role": "tool", "tool_call_id": call_id(answered), "content": NO_RESULT}
            messages.append(closed)
            answered += 1

    for line in lines:
        if line.role == "assistant":
            close_calls()
            words, calls = split_calls(line.text, called)
            called += len(calls)
            if not (words or calls):
                # An answer that was interrupted before its first word.
                continue
            message: dict[str, Any] = {"role": "assistant", "content": words}
            messages.append(message | {"tool_calls": calls} if calls else message)
            continue
        results, words = split_results(line.text) if answered < called else ([], line.text)
        for result in results:
            call = {"role": "tool", "tool_call_id": call_id(answered), "content": result}
            messages.append(call)
            answered += 1
        content = _content(words, line.images)
        if not content and results:
            continue
        close_calls()
        if messages and messages[-1]["role"] == line.role:
            content = _joined(messages.pop()["content"], content)
        messages.append({"role": line.role, "content": content})
    close_calls()
    return messages


def _content(words: str, images: Sequence[str]) -> Any:
    """A user's words and pictures as the content of a message: a text, or parts."""
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return [*_parts(words), *pictures] if pictures else words


def _joined(first: Any, second: Any) -> Any:
    """The contents of two messages as that of one."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n".join(filter(None, (first, second)))
    return _parts(first) + _parts(second)


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)


def check(endpoint: Endpoint) -> list[str] | None:
    """Names of the models that an address offers; None if it has no list of them.

    Raises:
        ServerAway: no server answers there, or it is not ready yet.
        SetupError: it cannot be used.
    """
    options = {**endpoint.options(), "timeout": CONNECT_S}
    try:
        reply = httpx.get(f"{endpoint.url}/models", **options)
        if endpoint.model and reply.status_code in (404, 405, 500, 501):
            # Some servers cannot list models; an empty request shows if the address is right.
            answer = httpx.post(f"{endpoint.url}/chat/completions", json={}, **options)
            if answer.status_code in (400, 422, 500):
                return None
        reply.raise_for_status()
        return [str(one["id"]) for one in reply.json().get("data") or []]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        hint = "Start its server, and give the address with /v1 at its end."
        kind = ServerAway if status in (502, 503, 504) else SetupError
        if status is not None:
            why = f"answers {status}"
        elif isinstance(error, httpx.HTTPError):
            why = f"does not answer: {endpoint.hidden(str(error))}"
            kind = ServerAway
        else:
            why = "does not answer with a list of models"
        if status in (401, 403):
            hint = "Set model.llm_key (PARLEY_MODEL__LLM_KEY) to its key."
        elif "CERTIFICATE_VERIFY_FAILED" in why:
            hint = "Set SSL_CERT_FILE to a file with the certificate that signed its own."
            kind = SetupError
        raise kind(f"The language model at {endpoint.name} {why}.", hint=hint) from error
