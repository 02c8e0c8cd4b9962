"""Checks that events arrive in the order of their protocol and match earlier ones."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from parley.media.pcm import OUTPUT_RATE_HZ
from parley.protocol.openai import Json

Table = Mapping[str, Mapping[str, str]]
"""State → event type → next state."""


class Order(Protocol):
    """Checks the order of events."""

    def see(self, event: Json) -> Iterator[str]:
        """Process the next event; yields its problems."""
        ...

    def end(self) -> Iterator[str]:
        """Process the end of the connection; yields what is missing."""
        ...


WAITING: Final = {"queued": "queued", "queue_done": "assigned"}
QUEUED: Final = {"queue_update": "queued", "queue_done": "assigned", "error": "over"}
OVER: Final = dict.fromkeys(("stopped", "timeout"), "over")
PREPARING: Final[Table] = {
    "start": {**WAITING, "error": "over"},
    "queued": QUEUED,
    "assigned": {"prepared": "active", "error": "assigned", "stopped": "over"},
}
SESSION_WAITING: Final[Table] = {
    "start": {"session.queued": "queued", "session.queue_done": "assigned", "error": "over"},
    "queued": {
        "session.queue_update": "queued",
        "session.queue_done": "assigned",
        "error": "queued",
        "session.closed": "over",
    },
}
TABLES: Final[dict[str, Table]] = {
    "chat": {
        "start": {**WAITING, "prefill_done": "answer", "error": "over"},
        "queued": QUEUED,
        "assigned": {"prefill_done": "answer", "error": "over"},
        "answer": {"chunk": "answer", "tool_call": "answer", "done": "over", "error": "over"},
    },
    "half_duplex": {
        **PREPARING,
        "active": {"vad_state": "active", "error": "active", "generating": "answer", **OVER},
        "answer": {
            **dict.fromkeys(("vad_state", "chunk"), "answer"),
            **dict.fromkeys(("turn_done", "error"), "active"),
            **OVER,
        },
    },
    "duplex": {
        **PREPARING,
        "active": {
            **dict.fromkeys(("result", "interrupted", "error"), "active"),
            "paused": "paused",
            **OVER,
        },
        "paused": {"resumed": "active", "result": "paused", "error": "paused", **OVER},
    },
    "realtime": {
        **SESSION_WAITING,
        "assigned": {"session.created": "active", "error": "assigned", "session.closed": "over"},
        "active": {
            **dict.fromkeys(("response.listen", "response.output_audio.delta", "error"), "active"),
            "session.closed": "over",
        },
    },
    "minicpmo_v2": {
        **SESSION_WAITING,
        "assigned": {"session.created": "active", "error": "failed", "session.closed": "over"},
        "active": {
            **dict.fromkeys(("response.output.delta", "response.done"), "active"),
            "error": "failed",
            "session.closed": "over",
        },
        "failed": {"session.closed": "over"},
    },
}

REALTIME_PARTS: Final = ("output_audio", "output_audio_transcript", "output_text")


class TableOrder:
    """Order defined by a table of states, with additional checks per event."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._state = "start"
        self._last_chunk: tuple[str, int] | None = None

    def see(self, event: Json) -> Iterator[str]:
        name = str(event.get("type"))
        after = self._table.get(self._state, {}).get(name)
        if after is None:
            yield f"'{name}' does not follow here ({self._state})"
        else:
            self._state = after
        for field in ("audio_data", "audio"):
            yield from sound_problems(event.get(field), 4)
        if name == "response.output.delta":
            yield from self._delta(event)

    def _delta(self, event: Json) -> Iterator[str]:
        kind = event.get("kind")
        has = {"text", "audio"} & event.keys()
        if has != {kind} - {"listen"}:
            yield f"a delta of kind '{kind}' has {sorted(has) or 'neither text nor audio'}"
        chunk = (str(event.get("input_id")), int(event.get("chunk_index", 0)))
        if "usage" in event and chunk == self._last_chunk:
            yield "usage stands in another than the first delta of its chunk"
        before = self._last_chunk
        if before is not None and chunk[0] == before[0] and chunk[1] < before[1]:
            yield "chunk_index went back"
        self._last_chunk = chunk

    def end(self) -> Iterator[str]:
        if self._state not in ("over", "start"):
            yield f"the connection closed without a last word ({self._state})"


class LiveOrder:
    """`session.started` comes first, times never decrease, and nothing follows `session.closed`."""

    def __init__(self) -> None:
        self._has_started = self._has_closed = False
        self._ids: set[str] = set()
        self._ends_ms: dict[str, int] = {}

    def see(self, event: Json) -> Iterator[str]:
        name = str(event.get("type"))
        if self._has_closed:
            yield f"'{name}' came after session.closed"
        if not self._has_started and name not in ("session.started", "error", "session.closed"):
            yield f"'{name}' came before session.started"
        self._has_started |= name == "session.started"
        self._has_closed |= name == "session.closed"
        yield from unseen(event, self._ids)
        if name == "session.output_audio.delta":
            yield from sound_problems(event.get("delta"), 2)
        begins, ends = event.get("start_ms"), event.get("end_ms")
        if isinstance(begins, int) and isinstance(ends, int):
            if ends < begins or begins < 0:
                yield f"{name} lasts from {begins} to {ends} ms"
            if name == "session.output_audio.delta" and begins < self._ends_ms.get(name, 0):
                yield f"{name} overlaps the previous one"
            self._ends_ms[name] = ends

    def end(self) -> Iterator[str]:
        if self._has_started and not self._has_closed:
            yield "the connection closed without session.closed"


class RealtimeOrder:
    """OpenAI Realtime: items, parts and calls of a response, from its start to its end."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._has_started = False
        self._response: str | None = None
        self._open_items: dict[str, int] = {}
        self._open_parts: set[str] = set()
        self._deltas: dict[str, str] = {}
        self._speaking: str | None = None
        self._known: set[str] = set()

    def see(self, event: Json) -> Iterator[str]:
        name = str(event.get("type"))
        if not self._has_started and name not in ("session.created", "error"):
            yield f"'{name}' came before session.created"
        self._has_started |= name == "session.created"
        yield from unseen(event, self._ids)
        if name.startswith("response."):
            yield from self._of_response(name, event)
        elif name.startswith("input_audio_buffer."):
            yield from self._of_buffer(name, event)
        elif name == "conversation.item.added":
            self._known.add(str(event["item"].get("id")))
        elif name == "conversation.item.done" and event["item"].get("id") not in self._known:
            yield "conversation.item.done of an item that was never added"

    def _of_buffer(self, name: str, event: Json) -> Iterator[str]:
        match name.rpartition(".")[2]:
            case "speech_started":
                if self._speaking is not None:
                    yield "speech_started twice"
                self._speaking = str(event.get("item_id"))
            case "speech_stopped":
                if self._speaking != event.get("item_id"):
                    yield "speech_stopped of speech that had not started"
                self._speaking = None

    def _of_response(self, name: str, event: Json) -> Iterator[str]:
        if name == "response.created":
            if self._response is not None:
                yield "response.created while a response is in progress"
            self._response = str(event["response"].get("id"))
            return
        response = event.get("response_id", (event.get("response") or {}).get("id"))
        if response != self._response:
            yield f"{name} of {response}, while {self._response or 'none'} is in progress"
        if name == "response.done":
            yield from self._done(event["response"])
        elif name.startswith("response.output_item."):
            yield from self._of_item(name, event)
        elif name.startswith("response.content_part."):
            yield from self._of_part(name, event)
        else:
            yield from self._of_delta(name, event)

    def _of_item(self, name: str, event: Json) -> Iterator[str]:
        item_id = str(event["item"].get("id"))
        if name.endswith("added"):
            if event.get("output_index") in self._open_items.values():
                yield f"output_index {event.get('output_index')} is taken"
            self._open_items[item_id] = int(event.get("output_index", 0))
        elif self._open_items.pop(item_id, None) is None:
            yield "response.output_item.done of an item that is not open"

    def _of_part(self, name: str, event: Json) -> Iterator[str]:
        item_id = str(event.get("item_id"))
        if item_id not in self._open_items:
            yield f"{name} of an item that is not open"
        if name.endswith("added"):
            self._open_parts.add(item_id)
        elif item_id not in self._open_parts:
            yield f"{name} of a part that is not open"
        else:
            self._open_parts.remove(item_id)

    def _of_delta(self, name: str, event: Json) -> Iterator[str]:
        what, _, step = name.removeprefix("response.").rpartition(".")
        item_id = str(event.get("item_id"))
        holders: Any = self._open_parts if what in REALTIME_PARTS else self._open_items
        if item_id not in holders:
            yield f"{name} of an item that is not open"
        key = f"{what} {item_id}"
        if step == "delta":
            self._deltas[key] = self._deltas.get(key, "") + str(event.get("delta", ""))
            if what == "output_audio":
                yield from sound_problems(event.get("delta"), 2)
            return
        field = {"output_text": "text", "output_audio_transcript": "transcript"}.get(what)
        field = "arguments" if what == "function_call_arguments" else field
        # For an answer that was cut, less than was sent may be counted.
        if field is not None and not self._deltas.get(key, "").startswith(str(event.get(field))):
            yield f"{name} is not what its deltas said"

    def _done(self, response: Json) -> Iterator[str]:
        if self._open_items or self._open_parts:
            yield "response.done while items of it are open"
        ids = [item.get("id") for item in response.get("output") or []]
        if len(set(ids)) != len(ids):
            yield "response.done has an item twice"
        self._response = None
        self._open_items.clear()
        self._open_parts.clear()

    def end(self) -> Iterator[str]:
        if not self._has_started:
            yield "there was no session.created"


def unseen(event: Json, seen: set[str]) -> Iterator[str]:
    """Check that an event's id, if it has one, is unique."""
    event_id = event.get("event_id")
    if isinstance(event_id, str) and event_id in seen:
        yield f"event_id {event_id} was used before"
    if isinstance(event_id, str):
        seen.add(event_id)


def sound_problems(text: Any, sample_bytes: int) -> Iterator[str]:
    """Problems of an audio field: it must be base64 of complete samples, at most one second."""
    if not isinstance(text, str) or not text:
        return
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        yield "its sound is not base64"
        return
    if len(data) % sample_bytes:
        yield f"its sound is not a whole number of {8 * sample_bytes}-bit samples"
    if len(data) > OUTPUT_RATE_HZ * sample_bytes:
        yield f"its sound is longer than a second ({len(data) // sample_bytes} samples)"
