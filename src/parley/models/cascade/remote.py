"""Parts that are a server of somebody else: a language model and a voice behind OpenAI's API.

A request runs in a thread of its own and leaves its words in a queue; `step` takes what is there
and waits at most `PATIENCE_S`, so that an engine step stays short. Whatever goes wrong (no
connection, a refusal, silence for longer than the timeout) ends the answer with a sentence that
says so in plain words; what was written until then stands.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np

from parley.errors import SetupError
from parley.media.image import Pixels
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, Samples
from parley.media.resample import resample
from parley.models.cascade.messages import History
from parley.models.cascade.sampling import Rule
from parley.models.cascade.writer import Draft, readable

log = logging.getLogger(__name__)

PATIENCE_S = 0.03
"""How long a step waits for the next words."""
CONNECT_S = 5.0
UNREACHABLE = "I'm sorry, I can't reach my language model right now."
SILENT = "I'm sorry, my language model takes too long to answer."
REFUSED = "I'm sorry, my language model refused to answer."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how.

    Args:
        url: up to and including `/v1`.
        timeout_s: longest silence.
    """

    url: str
    model: str = ""
    key: str = field(default="", repr=False)
    timeout_s: float = 20.0
    takes_images: bool = False

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


class _Stream:
    """One answer on its way. The thread ends by itself when it is cancelled or done."""

    def __init__(self, endpoint: Endpoint, body: dict[str, Any]) -> None:
        self.words: queue.Queue[str | None] = queue.Queue()
        self.problem = ""
        self._is_cancelled = threading.Event()
        self._endpoint, self._body = endpoint, body
        threading.Thread(target=self._run, name="llm-endpoint", daemon=True).start()

    def cancel(self) -> None:
        self._is_cancelled.set()

    def _run(self) -> None:
        try:
            for text in self._deltas():
                if self._is_cancelled.is_set():
                    return
                self.words.put(text)
        except httpx.TimeoutException:
            self.problem = SILENT
            log.warning("the language model at %s was silent for too long", self._endpoint.url)
        except httpx.HTTPStatusError as error:
            self.problem = REFUSED
            log.warning(
                "the language model at %s answered %d",
                self._endpoint.url,
                error.response.status_code,
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self.problem = UNREACHABLE
            log.warning("the language model at %s failed: %s", self._endpoint.url, error)
        finally:
            self.words.put(None)

    def _deltas(self) -> Iterator[str]:
        timeout = httpx.Timeout(self._endpoint.timeout_s, connect=CONNECT_S)
        with (
            httpx.Client(timeout=timeout, headers=self._endpoint.headers()) as client,
            client.stream(
                "POST", f"{self._endpoint.url}/chat/completions", json=self._body
            ) as reply,
        ):
            reply.raise_for_status()
            for line in reply.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                choices = json.loads(data).get("choices") or []
                text = (choices[0].get("delta") or {}).get("content") if choices else None
                if isinstance(text, str) and text:
                    yield text


class RemoteWriter:
    """A language model at an address.

    Args:
        limit_tokens: how much of the conversation is sent; estimated, four letters a token.
    """

    takes_notes = False

    def __init__(self, endpoint: Endpoint, *, rows: int, limit_tokens: int = 8192) -> None:
        self.endpoint = endpoint
        self.sees = endpoint.takes_images
        self._limit = limit_tokens
        self._streams: list[tuple[History, _Stream, str] | None] = [None] * rows

    @property
    def limit_tokens(self) -> int:
        return self._limit

    def open(self, row: int) -> None:
        self.cancel(row)

    def close(self, row: int) -> None:
        self.cancel(row)

    def cancel(self, row: int) -> None:
        running = self._streams[row]
        if running is not None:
            running[1].cancel()
        self._streams[row] = None

    def point(self, row: int) -> object:
        return None

    def rewind(self, row: int, point: object) -> None:
        self.cancel(row)

    def count(self, history: History) -> int:
        return self.count_text(history.system) + sum(
            4 + self.count_text(one.text) for one in history.lines
        )

    def count_text(self, text: str) -> int:
        return -(-len(text) // 4)

    def prepare(self, row: int, history: History) -> bool:
        return True

    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        return self._streams[row] is None

    def step(
        self,
        row: int,
        history: History,
        draft: Draft,
        rule: Rule,
        limit: int,
        seed: int,
        draws: int,
    ) -> Draft:
        running = self._streams[row]
        if running is None or running[0] is not history:
            if draft.text:
                # The row has returned to the middle of an answer: a server cannot go on with it.
                return replace(draft, is_over=True)
            self.cancel(row)
            self._streams[row] = (
                history,
                _Stream(self.endpoint, self._body(history, rule, limit, seed)),
                "",
            )
            return draft
        _, stream, raw = running
        try:
            new = stream.words.get(timeout=PATIENCE_S)
        except queue.Empty:
            return draft
        if new is None:
            self._streams[row] = None
            text, _ = readable(raw, is_last=True)
            return replace(draft, text=text, is_over=True, problem=stream.problem)
        raw += new
        self._streams[row] = (history, stream, raw)
        count = draft.count + 1
        is_limit = count >= limit
        text, is_cut = readable(raw, is_last=is_limit)
        if is_cut or is_limit:
            self.cancel(row)
        return Draft(text, (), is_cut or is_limit, is_limit, count)

    def _body(self, history: History, rule: Rule, limit: int, seed: int) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        if history.system:
            messages.append({"role": "system", "content": history.system})
        for line in history.lines:
            content: Any = line.text
            if line.images:
                content = [{"type": "text", "text": line.text}]
                content += [
                    {"type": "image_url", "image_url": {"url": data_url(one)}}
                    for one in line.images
                ]
            messages.append({"role": line.role, "content": content})
        return {
            "model": self.endpoint.model, "messages": messages, "stream": True, "max_tokens": limit,
            "temperature": rule.temperature, "top_p": rule.top_p, "seed": seed % 2**31,
        }  # fmt: skip


class RemoteSpeaker:
    """A voice at an address: `/audio/speech` with raw 24 kHz samples."""

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
            log.warning("the voice at %s failed: %s", self.endpoint.url, error)
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
    """A picture inside a request."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def check(endpoint: Endpoint) -> list[str]:
    """Names of the models that an address offers.

    Raises:
        SetupError: nobody answers there, or not as this API.
    """
    try:
        reply = httpx.get(f"{endpoint.url}/models", headers=endpoint.headers(), timeout=CONNECT_S)
        reply.raise_for_status()
        return [str(one["id"]) for one in reply.json().get("data", [])]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(
            f"The language model at {endpoint.url} does not answer: {error}.",
            hint="Start its server, and give the address with /v1 at its end.",
        ) from error
