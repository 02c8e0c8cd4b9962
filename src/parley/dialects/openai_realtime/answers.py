"""Encodes an answer for clients of OpenAI Realtime, from its start to its end."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parley.dialects import events
from parley.dialects.openai_realtime.items import ConversationItems, call_item, message_item
from parley.dialects.sound import OpenAIOutput
from parley.protocol import openai_realtime as wire
from parley.protocol.kinds import Ending
from parley.protocol.values import ToolCallPart


@dataclass(slots=True)
class CallSoFar:
    """A function call that is being sent, and its position."""

    item_id: str
    place: int
    part: ToolCallPart
    previous_id: str | None


@dataclass(slots=True)
class ResponseEvents:
    """The events of one response.

    Its message is an item of it from the start; if functions may be called, from its first word,
    because there may be no message.

    Args:
        asked: `response` of the client's `response.create`.
        session: settings at the start of the response.
        output: format and voice of its audio.
        conversation_id: None if the answer is not added to the conversation.
        items: of the session.
        may_call: True if functions are offered.
    """

    started: events.TurnStarted
    asked: dict[str, Any]
    session: dict[str, Any]
    output: dict[str, Any]
    conversation_id: str | None
    items: ConversationItems
    may_call: bool = False
    _sound: OpenAIOutput = field(init=False)
    _output: list[dict[str, Any]] = field(default_factory=list)
    _message_place: int | None = None
    _previous_id: str | None = None
    """Id of the item before the message."""
    _call: CallSoFar | None = None

    def __post_init__(self) -> None:
        self._sound = OpenAIOutput(self.output["format"]["type"])

    def begin(self) -> list[msgspec.Struct]:
        created = wire.ResponseCreated(response=self._response("in_progress", None, []))
        return [created, *([] if self.may_call else self._open_message())]

    def _open_message(self) -> list[msgspec.Struct]:
        if self._message_place is not None:
            return []
        item = self._item("in_progress", [])
        self._message_place = len(self._output)
        self._previous_id = self.items.place(self.started.previous_id)
        return [
            *self._add_item(item, self._previous_id),
            wire.ContentPartAdded(**self._place, part=self._part("")),
        ]

    def _add_item(self, item: dict[str, Any], previous_id: str | None) -> list[msgspec.Struct]:
        place = len(self._output)
        self._output.append(item)
        if self.conversation_id is not None:
            self.items.keep(item, previous_id)
        return [
            wire.OutputItemAdded(
                response_id=self.started.response_id,
                output_index=place,
                item=copy.deepcopy(item),
            ),
            *self._joining(wire.ItemAdded(item=copy.deepcopy(item), previous_item_id=previous_id)),
        ]

    def _joining(self, message: msgspec.Struct) -> list[msgspec.Struct]:
        """The events of items that are added to the conversation; none if the answer is not part of
        it."""
        return [] if self.conversation_id is None else [message]

    def _item_done(
        self, place: int, item: dict[str, Any], previous_id: str | None
    ) -> list[msgspec.Struct]:
        self._output[place] = item
        if item["id"] in self.items:
            self.items.keep(item)
        return [
            *self._joining(wire.ItemDone(item=copy.deepcopy(item), previous_item_id=previous_id)),
            wire.OutputItemDone(
                response_id=self.started.response_id,
                output_index=place,
                item=copy.deepcopy(item),
            ),
        ]

    # Calls.

    def call(self, event: events.ToolCallStarted) -> list[msgspec.Struct]:
        part = ToolCallPart(name=event.name, arguments="", id=event.call_id)
        previous_id = self.items.last_id
        self._call = CallSoFar(event.item_id, len(self._output), part, previous_id)
        return self._add_item(call_item(event.item_id, part, status="in_progress"), previous_id)

    def arguments(self, event: events.ToolCallDelta) -> list[msgspec.Struct]:
        """Further arguments of the call."""
        call = self._call
        if call is None:
            return []
        return [wire.CallArgumentsDelta(**self._call_place(call), delta=event.arguments)]

    def call_done(self, event: events.ToolCallDone) -> list[msgspec.Struct]:
        """End the call, which may turn out not to be one."""
        call, self._call = self._call, None
        if call is None:
            return []
        if not event.is_complete:
            return self._close_call(call)
        item = call_item(call.item_id, event.call, status="completed")
        done = wire.CallArgumentsDone(
            **self._call_place(call), name=event.call.name, arguments=event.call.arguments
        )
        return [done, *self._item_done(call.place, item, call.previous_id)]

    def _close_call(self, call: CallSoFar) -> list[msgspec.Struct]:
        item = call_item(call.item_id, call.part, status="incomplete")
        return self._item_done(call.place, item, call.previous_id)

    def _call_place(self, call: CallSoFar) -> dict[str, Any]:
        return {
            "response_id": self.started.response_id,
            "item_id": call.item_id,
            "output_index": call.place,
            "call_id": call.part.id,
        }

    # Words and audio.

    def say(self, event: events.OutputDelta) -> list[msgspec.Struct]:
        found: list[msgspec.Struct] = self._open_message()
        if not self.started.is_spoken:
            words = [wire.TextDelta(**self._place, delta=event.text)] if event.text else []
            return [*found, *words]
        if event.text:
            found.append(wire.TranscriptDelta(**self._place, delta=event.text))
        if (pcm := event.pcm) is not None and len(pcm):
            self.items.speak(self.started.item_id, pcm.duration_ms)
            found.append(wire.ResponseAudioDelta(**self._place, delta=self._sound.text(pcm)))
        return found

    def end(self, event: events.TurnCompleted) -> list[msgspec.Struct]:
        status, details = _status(event)
        closing: list[msgspec.Struct] = []
        if self._call is not None:
            closing += self._close_call(self._call)
            self._call = None
        if not self._output:
            closing += self._open_message()
        if self._message_place is not None:
            closing += self._close_message(self._message_place, event)
        response = self._response(status, details, copy.deepcopy(self._output))
        response["usage"] = _usage(event)
        return [*closing, wire.ResponseDone(response=response), wire.RateLimitsUpdated()]

    def _close_message(self, index: int, event: events.TurnCompleted) -> list[msgspec.Struct]:
        is_done = event.ending is Ending.DONE and not event.has_failed
        item_status = "completed" if is_done else "incomplete"
        item = self._item(item_status, [self._content(event.text)])
        place = self._place
        closing: list[msgspec.Struct] = (
            [
                wire.AudioDone(**place),
                wire.TranscriptDone(**place, transcript=event.text),
            ]
            if self.started.is_spoken
            else [wire.TextDone(**place, text=event.text)]
        )
        return [
            *closing,
            wire.ContentPartDone(**place, part=self._part(event.text)),
            *self._item_done(index, item, self._previous_id),
        ]

    @property
    def _place(self) -> dict[str, Any]:
        """Indices of its parts."""
        return {
            "response_id": self.started.response_id,
            "item_id": self.started.item_id,
            "output_index": self._message_place or 0,
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return message_item(self.started.item_id, "assistant", content, status=status)

    def _response(self, status: str, details: Any, output: list[Any]) -> dict[str, Any]:
        audio = {name: self.output[name] for name in ("format", "voice")}
        return {
            "object": "realtime.response",
            "id": self.started.response_id,
            "status": status,
            "status_details": details,
            "output": output,
            "conversation_id": self.conversation_id,
            "output_modalities": ["audio" if self.started.is_spoken else "text"],
            "max_output_tokens": self.asked.get("max_output_tokens")
            or self.session["max_output_tokens"],
            "audio": {"output": audio},
            "usage": None,
            "metadata": self.asked.get("metadata"),
        }

    def _part(self, text: str) -> dict[str, Any]:
        if self.started.is_spoken:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _content(self, text: str) -> dict[str, Any]:
        if self.started.is_spoken:
            return {"type": "output_audio", "transcript": text}
        return {"type": "output_text", "text": text}


def _status(event: events.TurnCompleted) -> tuple[str, dict[str, Any] | None]:
    if event.has_failed:
        error = event.error
        code = error.code if error is not None else "inference_error"
        fields = {"type": "server_error", "code": code}
        if error is not None and error.is_client_error:
            fields["type"] = "invalid_request_error"
        return "failed", {"type": "failed", "error": fields}
    match event.ending:
        case Ending.CANCELLED:
            reason = "turn_detected" if event.is_turn else "client_cancelled"
            return "cancelled", {"type": "cancelled", "reason": reason}
        case Ending.LIMIT:
            return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        case _:
            return "completed", None


def _usage(event: events.TurnCompleted) -> dict[str, Any]:
    tokens = event.tokens
    output = tokens.output + tokens.speech
    # A model that reads words may have fewer tokens in its context than the audio is counted as.
    audio = min(tokens.audio, tokens.input)
    image = min(tokens.image, tokens.input - audio)
    cached = min(tokens.cached, tokens.input)
    return {
        "total_tokens": tokens.input + output,
        "input_tokens": tokens.input,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": tokens.input - audio - image,
            "audio_tokens": audio,
            "image_tokens": image,
            "cached_tokens": cached,
            "cached_tokens_details": {
                "text_tokens": cached,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
        },
        "output_token_details": {"text_tokens": tokens.output, "audio_tokens": tokens.speech},
    }
