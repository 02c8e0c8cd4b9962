"""`POST /api/chat`: one chat request, one answer.

`chat_forwarder.py` passes it to a worker.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from parley.errors import InferenceFailed, ParleyError, WorkerLost
from parley.gateway.http.bodies import json_body, read_body
from parley.gateway.http.chat_forwarder import ChatForwarder, WorkerRefused
from parley.gateway.http.errors import problem
from parley.gateway.http.routing import Router
from parley.gateway.large_json import READ_ON_LOOP_BYTES, read_aside
from parley.protocol import chat, codec
from parley.transport import Message


class TokenStats(msgspec.Struct, kw_only=True):
    """Numbers of tokens of one answer."""

    cached_tokens: int = 0
    input_tokens: Annotated[int, Meta(examples=[41])]
    generated_tokens: Annotated[int, Meta(examples=[9])]
    total_tokens: Annotated[int, Meta(examples=[50])]


class ChatResponse(msgspec.Struct, kw_only=True):
    """The whole answer."""

    text: Annotated[str, Meta(examples=["Hello! How can I help?"])]
    audio_path: str | None = None
    audio_data: Annotated[str | None, Meta(description="base64 float32 PCM, mono")] = None
    audio_sample_rate: int = 24_000
    tokens_generated: Annotated[int, Meta(examples=[9])]
    duration_ms: Annotated[float, Meta(examples=[412.5])]
    token_stats: TokenStats
    recording_session_id: Annotated[
        str | None, Meta(examples=["chat_0123456789abcdef01234567"])
    ] = None
    error: str | None = None
    success: bool = True
    queue_wait_ms: Annotated[float, Meta(examples=[1.8])]
    estimated_queue_wait_s: Annotated[float | None, Meta(examples=[0.0])]


EXAMPLE: Final = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "generation": {"max_new_tokens": 256},
}


def _checked(raw: bytearray) -> Message:
    """Convert a request's body to the message for the worker, which must answer in one piece.

    Raises:
        BadInput: not a chat request.
    """
    value = codec.parse(raw)
    asked = chat.request_from(value)
    if len(raw) <= READ_ON_LOOP_BYTES or "type" in value:
        whole = msgspec.structs.replace(asked, streaming=False)
        return Message.client_text(codec.encode_media(whole))
    # Not encoded again, which would need the same memory twice. If a name occurs twice, the last
    # counts.
    end = raw.rindex(b"}")
    raw[end:] = b',"streaming":false}'
    return Message.client_text(raw)


def _shape(
    done: chat.Done, *, took_s: float, waited_s: float, expected_s: float | None
) -> ChatResponse:
    recording = done.recording_session_id
    return ChatResponse(
        text=done.text,
        audio_data=done.audio_data,
        tokens_generated=done.generated_tokens,
        duration_ms=round(took_s * 1000, 1),
        token_stats=TokenStats(
            input_tokens=done.input_tokens,
            generated_tokens=done.generated_tokens,
            total_tokens=done.input_tokens + done.generated_tokens,
        ),
        recording_session_id=recording if isinstance(recording, str) else None,
        queue_wait_ms=round(waited_s * 1000, 1),
        estimated_queue_wait_s=expected_s,
    )


def written(answer: ChatResponse) -> Response:
    """The answer as JSON. Its audio is base64, megabytes in which the event loop need not search
    for characters to escape."""
    sound = answer.audio_data
    text = msgspec.json.encode(msgspec.structs.replace(answer, audio_data=None))
    if sound is not None:
        before, name, after = text.partition(b'"audio_data":')
        text = b"".join((before, name, b'"', sound.encode(), b'"', after.removeprefix(b"null")))
    return Response(text, media_type="application/json")


def routes(forwarder: ChatForwarder) -> Router:
    router = Router(tag="chat")

    @router.post(
        "/api/chat",
        errors=(400, 403, 502, 503, 504),
        body=json_body(chat.Request, EXAMPLE),
        body_bytes=forwarder.body_bytes,
        answer=ChatResponse,
    )
    async def ask(request: Request) -> Response:
        """Ask once; the answer is returned as a whole. Waits in the queue; disconnecting
        cancels."""
        forwarder.check(request)
        async with forwarder.visit(request, "http chat") as session_id:
            raw = await read_body(request)
            body = await read_aside(len(raw), lambda: _checked(raw))
            try:
                async with forwarder.forward(request, session_id, body) as answer:
                    began_at = forwarder.clock.monotonic()
                    done = await answer.done()
                    return written(
                        _shape(
                            done,
                            took_s=forwarder.clock.monotonic() - began_at,
                            waited_s=answer.waited_s,
                            expected_s=answer.expected_wait_s,
                        )
                    )
            except (WorkerRefused, WorkerLost, InferenceFailed) as error:
                forwarder.metrics.error(error.code)
                status = error.http_status if isinstance(error, WorkerRefused) else 502
                return _refusal(status, error)

    return router


def _refusal(status: int, error: ParleyError) -> JSONResponse:
    return problem(
        status,
        str(error),
        error.code,
        retry_after_s=error.retry_after_s,
        success=False,
        error=str(error),
    )
