"""Responses of the OpenAI routes for `/openapi.json`, each described by an example."""

from __future__ import annotations

from typing import Any, Final

from parley.gateway.http.bodies import EVENTS, answer

_RESPONSE_ID: Final = "resp_0123456789abcdef0123456789abcdef"
_ITEM_ID: Final = "msg_0123456789abcdef0123456789abcdef"


def _message(number: str, role: str, **part: Any) -> dict[str, Any]:
    item = {"type": "message", "role": role, "status": "completed", "content": [part]}
    return {"id": f"{_ITEM_ID}{number}", **item}


COMPLETION_ANSWER: Final = answer(
    "The answer; with `stream` in pieces, the last of which is `[DONE]`.",
    {
        "id": "chatcmpl-0123456789abcdef01234567",
        "object": "chat.completion",
        "created": 1795283000,
        "model": "pocket",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "The capital of Italy is Rome.",
                    "refusal": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19},
    },
    content=EVENTS,
)

SPEECH_ANSWER: Final = answer(
    "The sound as it is made, 24 kHz mono.",
    content={
        f"audio/{name}": {"schema": {"type": "string", "format": "binary"}}
        for name in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")
    }
    | EVENTS,
)

TRANSCRIPTION_ANSWER: Final = answer(
    "The words, as JSON, as plain text or as events.",
    {"text": "What is the capital of Italy?"},
    content={"text/plain": {"example": "What is the capital of Italy?\n"}, **EVENTS},
)

RESPONSE_ANSWER: Final = answer(
    "The response; with `stream` its events.",
    {
        "id": _RESPONSE_ID,
        "object": "response",
        "created_at": 1795283000,
        "status": "completed",
        "model": "pocket",
        "output": [
            _message(
                "000",
                "assistant",
                type="output_text",
                text="The capital of Italy is Rome.",
                annotations=[],
                logprobs=[],
            )
        ],
        "usage": {"input_tokens": 12, "output_tokens": 7, "total_tokens": 19},
    },
    content=EVENTS,
)

DELETED_RESPONSE: Final = answer(
    "The response was deleted.", {"id": _RESPONSE_ID, "object": "response", "deleted": True}
)

INPUT_ITEMS: Final = answer(
    "A page of the items.",
    {
        "object": "list",
        "data": [_message("i00", "user", type="input_text", text="Hello!")],
        "first_id": f"{_ITEM_ID}i00",
        "last_id": f"{_ITEM_ID}i00",
        "has_more": False,
    },
)
