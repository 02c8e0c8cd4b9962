"""Parts that run on another server: a language model and a voice behind OpenAI's API.

A separate thread receives the answer (`endpoint.py`); `step` processes what has arrived and waits
at most `PATIENCE_S`, so that an engine step stays short. A failure is spoken in plain words and
reported to the client; the text written until then is kept.
"""

from __future__ import annotations

import base64
import io
import queue
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

from parley import logs
from parley.errors import SetupError
from parley.media.image import Pixels
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample
from parley.models.cascade.endpoint import CONNECT_S, EMPTY, CompletionStream, Endpoint
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
from parley.models.cascade.writer import AnswerRequest, Draft, Writer, ends_thoughts, readable
from parley.protocol.values import AnswerFormat
from parley.views.tools import CLOSE

log = logs.get(__name__)

PATIENCE_S = 0.03
"""Maximum time for which a step waits for the next piece."""
LETTERS_A_TOKEN = 8
"""Servers may send many tokens in one piece, so tokens are estimated from letters."""
RAW_MOST = 400_000
"""Maximum number of letters of an answer, thoughts included; a longer one is abandoned."""
NO_RESULT = "No result."
"""Result of a call that returned nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """The answer that a row waits for."""

    history: History
    stream: CompletionStream
    raw: str = ""


class RemoteWriter(Writer):
    """A language model at an address.

    Args:
        limit_tokens: maximum size of the conversation that is sent, estimated at four letters per
            token.
    """

    answers_later = True
    calls_tools = True
    keeps_formats = True
    takes_penalties = True
    reports_logprobs = True
    limit_setting = "model.context_tokens"

    def __init__(self, endpoint: Endpoint, *, rows: int, limit_tokens: int) -> None:
        self.endpoint = endpoint
        self.sees = endpoint.takes_images
        self.limit_tokens = limit_tokens
        self._running: list[_Running | None] = [None] * rows
        self._thinks = [False] * rows
        """True for each row whose newest answer started with thoughts that no tag opens. This is
        stored per row, because the answers to one client do not predict those to others."""

    def check_format(self, form: AnswerFormat) -> None:
        """Does nothing: the server reports what it does not support."""

    def open(self, row: int) -> None:
        self.cancel(row)
        self._thinks[row] = False

    def cancel(self, row: int) -> None:
        running = self._running[row]
        if running is not None:
            running.stream.cancel()
        self._running[row] = None

    def point(self, row: int) -> object:
        return None

    def rewind(self, row: int, point: object) -> None:
        self.cancel(row)

    def count_text(self, text: str) -> int:
        return -(-len(text) // 4)

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
            body = self._body(history, rule, request.seed)
            self._running[row] = _Running(history, CompletionStream(self.endpoint, body))
            return draft
        try:
            new = running.stream.pieces.get(timeout=PATIENCE_S)
        except queue.Empty:
            return draft
        if new is None:
            self._running[row] = None
            text, _ = self._shown(row, running.raw, rule, draft, is_last=True)
            self._thinks[row] = ends_thoughts(running.raw)
            finish, declared = running.stream.finish, running.stream.declared
            over = replace(
                draft, text=text, is_over=True, is_limit=finish == "length",
                problem=running.stream.problem,
                calls=draft.calls or written_calls(running.raw, declared),
            )  # fmt: skip
            return _checked(over, finish)
        raw, calls = running.raw + new.text, draft.calls + new.calls
        self._running[row] = replace(running, raw=raw)
        text, is_cut = self._shown(row, raw, rule, draft, is_last=bool(calls))
        # Only visible text counts: the server limits how long a model thinks.
        count = max(draft.count + (text != draft.text), len(text) // LETTERS_A_TOKEN)
        is_limit = count >= request.limit or len(raw) > RAW_MOST
        if is_limit:
            text, is_cut = self._shown(row, raw, rule, draft, is_last=True)
        if is_cut or is_limit:
            self.cancel(row)
        draft = Draft(
            text, (), is_cut or is_limit, is_limit, count, calls=calls,
            logprobs=draft.logprobs + new.logprobs,
        )  # fmt: skip
        return _checked(draft, "") if draft.is_over else draft

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

    def _body(self, history: History, rule: Rule, seed: int) -> dict[str, Any]:
        system, tools = split_tools(history.system)
        messages = [{"role": "system", "content": system}] if system else []
        messages += messages_of(history.lines)
        body = {
            "model": self.endpoint.model, "messages": messages, "stream": True,
            "temperature": rule.temperature, "top_p": rule.top_p, "seed": seed % 2**31,
        }  # fmt: skip
        fields = body | tools | _options(rule, has_tools=bool(tools)) | dict(self.endpoint.extra)
        return {name: value for name, value in fields.items() if value is not None}


_WHY_EMPTY = {
    "length": ": all its tokens were spent before",
    "content_filter": ": its filter withheld all of it",
    "tool_calls": ": its function call is cut, or of a function that was not declared",
}


def _checked(draft: Draft, finish: str) -> Draft:
    """The finished answer, with a problem if it has neither text nor a call."""
    if draft.problem is not None or draft.text or CLOSE in draft.calls:
        return draft
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


def messages_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Lines as OpenAI's messages; calls and results of functions in OpenAI's own form.

    A call without a result gets `NO_RESULT`, because servers refuse calls without one.
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
            message: dict[str, Any] = {"role": "assistant", "content": words}
            messages.append(message | {"tool_calls": calls} if calls else message)
            continue
        results, words = split_results(line.text) if answered < called else ([], line.text)
        for result in results:
            call = {"role": "tool", "tool_call_id": call_id(answered), "content": result}
            messages.append(call)
            answered += 1
        if words or line.images:
            close_calls()
        if line.images:
            content: Any = [{"type": "text", "text": words}]
            content += [
                {"type": "image_url", "image_url": {"url": data_url(one)}} for one in line.images
            ]
            messages.append({"role": line.role, "content": content})
        elif words or not results:
            messages.append({"role": line.role, "content": words})
    close_calls()
    return messages


class RemoteSpeaker:
    """A voice behind an address: `/audio/speech` with raw 24 kHz samples."""

    def __init__(self, endpoint: Endpoint, voice: str) -> None:
        self.endpoint = endpoint
        self._voice = voice

    def find(self, voice: Pcm | None) -> int:
        return 0

    def say(self, clause: str, voice: int) -> Samples:
        if not any(sign.isalnum() for sign in clause):
            return np.zeros(0, np.float32)
        body = {
            "model": self.endpoint.model, "voice": self._voice, "input": clause.strip(),
            "response_format": "pcm",
        }  # fmt: skip
        try:
            timeout = httpx.Timeout(self.endpoint.timeout_s, connect=CONNECT_S)
            reply = httpx.post(
                f"{self.endpoint.url}/audio/speech",
                json=body,
                headers=self.endpoint.headers(),
                timeout=timeout,
            )
            reply.raise_for_status()
        except httpx.HTTPError as error:
            log.warning("voice_server_failed", url=self.endpoint.url, why=str(error))
            return np.zeros(0, np.float32)
        return samples_of(reply.content, reply.headers.get("content-type", ""))


def samples_of(data: bytes, kind: str) -> Samples:
    """16-bit samples at 24 kHz, or a WAV file of any rate, as 24 kHz floats."""
    if data[:4] == b"RIFF" or "wav" in kind:
        import wave

        with wave.open(io.BytesIO(data)) as file:
            raw, rate = file.readframes(file.getnframes()), file.getframerate()
            wide = np.frombuffer(raw, "<i2").reshape(-1, file.getnchannels()).mean(1)
        return resample(Pcm((wide / 32768).astype(np.float32), rate), OUTPUT_RATE_HZ).samples
    whole = data[: len(data) // 2 * 2]
    return (np.frombuffer(whole, "<i2") / 32768).astype(np.float32)


def data_url(pixels: Pixels) -> str:
    """A picture as a data URL for a request."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def check(endpoint: Endpoint) -> list[str]:
    """Names of the models that an address offers.

    Raises:
        SetupError: no server answers there, or the response does not follow this API.
    """
    try:
        reply = httpx.get(f"{endpoint.url}/models", headers=endpoint.headers(), timeout=CONNECT_S)
        reply.raise_for_status()
        return [str(one["id"]) for one in reply.json().get("data", [])]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"does not answer: {error}" if status is None else f"answers {status}"
        raise SetupError(
            f"The language model at {endpoint.url} {why}.",
            hint="Set model.llm_key (PARLEY_MODEL__LLM_KEY) to its key."
            if status in (401, 403)
            else "Start its server, and give the address with /v1 at its end.",
        ) from error
