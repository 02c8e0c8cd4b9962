"""`POST /api/chat`: one chat request, one answer.

It waits in the same queue as everybody and speaks the chat dialect to the worker, so a request over
HTTP and one over the socket take the same road.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from parley import logs
from parley.errors import (
    InferenceFailed,
    InvalidPayload,
    InvalidRequest,
    ServiceUnavailable,
    WorkerLost,
)
from parley.gateway.house import House
from parley.gateway.http.errors import problem, problems
from parley.gateway.leg import Leg, leg_headers
from parley.gateway.port import PortClosed
from parley.gateway.queue import Ticket
from parley.protocol import chat, codec, legacy

log = logs.get(__name__)

T = TypeVar("T")

CLIENT_CLOSED_STATUS = 499
"""Nobody reads it; it keeps the log honest."""
BAD_INPUT_CODES = frozenset(
    {
        InvalidRequest.code,
        InvalidPayload.code,
        "context_full",
        "invalid_config",
        "missing_field",
        "too_large",
    }
)


class TokenStats(BaseModel):
    """Tokens of one answer."""

    cached_tokens: int = 0
    input_tokens: int = Field(examples=[41])
    generated_tokens: int = Field(examples=[9])
    total_tokens: int = Field(examples=[50])


class ChatAnswer(BaseModel):
    """The whole answer."""

    text: str = Field(examples=["Hello! How can I help?"])
    audio_path: str | None = None
    audio_data: str | None = Field(None, description="base64 float32 PCM, mono")
    audio_sample_rate: int = 24_000
    tokens_generated: int = Field(examples=[9])
    duration_ms: float = Field(examples=[412.5])
    token_stats: TokenStats
    recording_session_id: str | None = Field(None, examples=["chat_0123456789abcdef01234567"])
    error: str | None = None
    success: bool = True
    queue_wait_ms: float = Field(examples=[1.8])
    estimated_queue_wait_s: float | None = Field(examples=[0.0])


BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["messages"],
                    "properties": {
                        "messages": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["role", "content"],
                                "properties": {
                                    "role": {"enum": ["system", "user", "assistant"]},
                                    "content": {
                                        "oneOf": [
                                            {"type": "string"},
                                            {"type": "array", "items": {"type": "object"}},
                                        ]
                                    },
                                },
                            },
                        },
                        "generation": {"type": "object"},
                        "tts": {"type": "object"},
                        "image": {"type": "object"},
                        "omni_mode": {"type": "boolean", "default": False},
                        "enable_thinking": {"type": "boolean", "default": False},
                    },
                },
                "example": {
                    "messages": [{"role": "user", "content": "Hello!"}],
                    "generation": {"max_new_tokens": 256},
                },
            }
        },
    }
}


class _Gone(Exception):
    """The client closed its connection."""


class _ChatCall:
    """One request on its way through queue and worker."""

    def __init__(self, house: House, request: Request) -> None:
        self._house = house
        self._request = request
        self._poke: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepted_time = house.clock.time()
        self._gone = asyncio.create_task(self._watch(), name="chat request watch")

    async def __aenter__(self) -> _ChatCall:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._gone.cancel()
        await asyncio.wait({self._gone})

    async def answer(self, ticket: Ticket, body: bytes) -> ChatAnswer:
        """Wait for a slot and for the answer.

        Raises:
            _Gone: the client left.
            ParleyError: whatever the worker or the queue said.
        """
        expected_s = ticket.estimated_wait_s
        ticket.changed = self._wake
        while True:
            await self._unless_gone(self._leased(ticket))
            lease = ticket.lease
            assert lease is not None
            waited_s = self._house.clock.monotonic() - ticket.enqueued_at
            headers = leg_headers(
                lease,
                secret=self._house.legs.secret,
                accepted_time=self._accepted_time,
                queue_wait_s=waited_s,
            )
            async with (
                lease,
                Leg(lease, self._house.legs, dialect="chat", headers=headers) as leg,
            ):
                if await self._unless_gone(leg.open()) is None:
                    self._house.dispatcher.worker_failed(ticket)
                    continue
                self._house.metrics.session("chat", waited_s)
                began_at = self._house.clock.monotonic()
                done = await self._unless_gone(self._ask(leg, body))
                took_s = self._house.clock.monotonic() - began_at
                return _shape(done, took_s=took_s, waited_s=waited_s, expected_s=expected_s)

    async def _leased(self, ticket: Ticket) -> None:
        while ticket.state == "waiting":
            if self._house.closing.done():
                raise ServiceUnavailable("The server is shutting down.")
            await asyncio.wait(
                {self._poke, self._house.closing}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._poke.done():
                self._poke = asyncio.get_running_loop().create_future()
        if ticket.state == "cancelled":
            raise ServiceUnavailable("Cancelled")
        if ticket.refusal is not None:
            raise ticket.refusal

    def _wake(self) -> None:
        if not self._poke.done():
            self._poke.set_result(None)

    async def _ask(self, leg: Leg, body: bytes) -> chat.Done:
        port = leg.port
        assert port is not None
        port.send_text(body)
        receiving = asyncio.create_task(self._done(leg), name="chat answer")
        try:
            first: set[asyncio.Future[Any]] = {receiving, leg.lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                raise WorkerLost
            return receiving.result()
        except PortClosed:
            raise WorkerLost from None
        finally:
            receiving.cancel()

    async def _done(self, leg: Leg) -> chat.Done:
        assert leg.port is not None
        while True:
            message = chat.decode_server((await leg.port.receive()).payload())
            match message:
                case chat.Done():
                    return message
                case legacy.Error():
                    raise _Told(message.code, message.message or message.error)

    async def _unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work, name="chat request")
        try:
            await asyncio.wait({task, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Gone
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _watch(self) -> None:
        while True:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                return


class _Told(Exception):
    """The worker answered with an error."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code

    @property
    def status(self) -> int:
        if self.code in BAD_INPUT_CODES:
            return 400
        return 503 if self.code in ("service_unavailable", "worker_busy") else 502


def _shape(
    done: chat.Done, *, took_s: float, waited_s: float, expected_s: float | None
) -> ChatAnswer:
    recording = done.recording_session_id
    return ChatAnswer(
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


def routes(house: House) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["chat"])

    @router.post(
        "/api/chat",
        responses=problems(400, 403, 413, 429, 502, 503, 504),
        openapi_extra=BODY,
        response_model=ChatAnswer,
    )
    async def ask(request: Request) -> ChatAnswer | Response:
        """Ask once; the answer comes whole. Waits in the queue; hanging up cancels."""
        house.door.check_origin(request.headers)
        house.apps.check("chat", "chat")
        try:
            value = codec.parse(await request.body())
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_STATUS)
        asked = chat.request_from(value)
        body = msgspec.json.encode(msgspec.structs.replace(asked, streaming=False))
        peer = request.client.host if request.client else None
        address = house.door.address_of(peer, request.headers)
        session_id = f"chat_{secrets.token_hex(8)}"
        key = request.state.caller.key
        with (
            house.door.visit(address),
            contextlib.nullcontext()
            if key is None
            else house.door.visit(f"key {key.id}", limit=key.max_sessions),
            logs.bind_session(session_id, dialect="http chat"),
        ):
            ticket = house.dispatcher.submit(
                "chat", session_id=session_id, address=address, owner=asyncio.current_task()
            )
            try:
                async with (
                    asyncio.timeout(house.settings.queue.request_timeout_s),
                    _ChatCall(house, request) as call,
                ):
                    return await call.answer(ticket, body)
            except _Gone:
                return Response(status_code=CLIENT_CLOSED_STATUS)
            except TimeoutError:
                house.metrics.error("timeout")
                return problem(504, "No answer in time.")
            except _Told as told:
                house.metrics.error(told.code)
                return _refusal(told.status, str(told), told.code)
            except WorkerLost as lost:
                house.metrics.error(lost.code)
                return _refusal(502, str(lost), lost.code)
            except InferenceFailed as failure:
                house.metrics.error(failure.code)
                return _refusal(502, str(failure), failure.code)
            finally:
                house.dispatcher.cancel(ticket)

    return router


def _refusal(status: int, sentence: str, code: str) -> JSONResponse:
    return problem(status, sentence, code, success=False, error=sentence)
