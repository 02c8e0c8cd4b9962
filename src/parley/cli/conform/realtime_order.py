"""The order of OpenAI Realtime's events: items, parts and calls of a response, from its beginning
to its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parley.cli.conform.orders import sound_problems, unseen
from parley.protocol.openai import Json

PARTS = ("output_audio", "output_audio_transcript", "output_text")


class RealtimeOrder:
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
        holders: Any = self._open_parts if what in PARTS else self._open_items
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
        # Of an answer that was cut, less than was sent may count.
        if field is not None and not self._deltas.get(key, "").startswith(str(event.get(field))):
            yield f"{name} is not what its deltas said"

    def _done(self, response: Json) -> Iterator[str]:
        if self._open_items or self._open_parts:
            yield "response.done while items of it are open"
        told = [item.get("id") for item in response.get("output") or []]
        if len(set(told)) != len(told):
            yield "response.done has an item twice"
        self._response = None
        self._open_items.clear()
        self._open_parts.clear()

    def end(self) -> Iterator[str]:
        if not self._has_started:
            yield "there was no session.created"
