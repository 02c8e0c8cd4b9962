"""An answer as clients of OpenAI Realtime are told of it, from its beginning to its end."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import msgspec

from parley.dialects.events import OutputDelta, ResponseEnded, ResponseStarted
from parley.dialects.openai_realtime.items import ItemBook, message_item
from parley.dialects.sound import in_seconds, pcm16_text
from parley.protocol import openai_realtime as wire
from parley.protocol.kinds import Ending


@dataclass(frozen=True, slots=True)
class ResponseTeller:
    """Tells of one response.

    Args:
        asked: what the client asked for, `response` of its `response.create`.
        session: as it was when the response began.
        conversation_id: None where the answer does not join the conversation.
        items: of the session.
    """

    started: ResponseStarted
    asked: dict[str, Any]
    session: dict[str, Any]
    conversation_id: str | None
    items: ItemBook

    def begin(self) -> list[msgspec.Struct]:
        """It has begun."""
        event = self.started
        item = self._item("in_progress", [])
        if self.conversation_id is not None:
            self.items.keep(item)
        return [
            wire.ResponseCreated(response=self._response("in_progress", None, [])),
            wire.OutputItemAdded(
                response_id=event.response_id, output_index=0, item=copy.deepcopy(item)
            ),
            wire.ItemAdded(item=copy.deepcopy(item), previous_item_id=event.previous_id),
            wire.ContentPartAdded(**self._place, part=self._part("")),
        ]

    def say(self, event: OutputDelta) -> list[msgspec.Struct]:
        """The next piece of it."""
        if not self.started.is_spoken:
            return [wire.TextDelta(**self._place, delta=event.text)] if event.text else []
        found: list[msgspec.Struct] = []
        if event.text:
            found.append(wire.TranscriptDelta(**self._place, delta=event.text))
        first, others = in_seconds(event.pcm)
        sounds = [] if first is None else [first, *others]
        found += [wire.AudioDelta(**self._place, delta=pcm16_text(pcm)) for pcm in sounds]
        return found

    def end(self, event: ResponseEnded) -> list[msgspec.Struct]:
        """It is over."""
        status, details = _status(event)
        item_status = "completed" if event.ending is Ending.DONE else "incomplete"
        item = self._item(item_status, [self._content(event.text)])
        if event.item_id in self.items:
            self.items.keep(item)
        place = self._place
        closing: list[msgspec.Struct] = (
            [
                wire.AudioDone(**place),
                wire.TranscriptDone(**place, transcript=event.text),
            ]
            if event.is_spoken
            else [wire.TextDone(**place, text=event.text)]
        )
        response = self._response(status, details, [copy.deepcopy(item)])
        response["usage"] = _usage(event)
        return [
            *closing,
            wire.ContentPartDone(**place, part=self._part(event.text)),
            wire.ItemDone(item=copy.deepcopy(item), previous_item_id=self.started.previous_id),
            wire.OutputItemDone(
                response_id=event.response_id, output_index=0, item=copy.deepcopy(item)
            ),
            wire.ResponseDone(response=response),
            wire.RateLimitsUpdated(),
        ]

    @property
    def _place(self) -> dict[str, Any]:
        """Where its parts belong."""
        return {"response_id": self.started.response_id, "item_id": self.started.item_id}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return message_item(self.started.item_id, "assistant", content, status=status)

    def _response(self, status: str, details: Any, output: list[Any]) -> dict[str, Any]:
        voice = self.session["audio"]["output"]
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
            "audio": {"output": {"format": voice["format"], "voice": voice["voice"]}},
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


def _status(event: ResponseEnded) -> tuple[str, dict[str, Any] | None]:
    match event.ending:
        case None:
            error = event.error
            code = error.code if error is not None else "inference_error"
            told = {"type": "server_error", "code": code}
            if error is not None and error.is_client_error:
                told["type"] = "invalid_request_error"
            return "failed", {"type": "failed", "error": told}
        case Ending.CANCELLED:
            reason = "turn_detected" if event.is_turn else "client_cancelled"
            return "cancelled", {"type": "cancelled", "reason": reason}
        case Ending.LIMIT:
            return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        case _:
            return "completed", None


def _usage(event: ResponseEnded) -> dict[str, Any]:
    tokens = event.tokens
    output = tokens.output + tokens.speech
    return {
        "total_tokens": tokens.input + output,
        "input_tokens": tokens.input,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": max(0, tokens.input - tokens.audio - tokens.image),
            "audio_tokens": tokens.audio,
            "image_tokens": tokens.image,
            "cached_tokens": tokens.cached,
            "cached_tokens_details": {
                "text_tokens": tokens.cached,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
        },
        "output_token_details": {"text_tokens": tokens.output, "audio_tokens": tokens.speech},
    }
