"""`/v1/responses`: the interface that OpenAI's current SDKs use by default.

A response is a chat: its items become messages, and the worker's answer becomes items and events.
Source: OpenAI API reference, responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from parley.errors import InvalidRequest, ParleyError
from parley.gateway.http.bodies import EVENT_CONTENT, JSON, described, json_body, read_body
from parley.gateway.http.chat_forwarder import ChatForwarder
from parley.gateway.http.openai import response_request
from parley.gateway.http.openai.answering import (
    AnswerEnded,
    AnswerPiece,
    AnswerWords,
    answer,
    renamed,
    shaped,
)
from parley.gateway.http.openai.background import BackgroundRun, BackgroundRuns
from parley.gateway.http.openai.kept_responses import ONE_BYTES, KeptBody, KeptResponses, owner_of
from parley.gateway.http.openai.models import ModelList
from parley.gateway.http.openai.response_events import (
    INNER_CHARS,
    PREFIX,
    Event,
    ResponseWriter,
    encode,
    replayed,
)
from parley.gateway.http.openai.response_request import Item, ResponseRequest
from parley.gateway.http.openai.sources import Sources
from parley.gateway.http.openai.stream import EVENTS, PiecesResponse
from parley.gateway.http.routing import Router
from parley.gateway.large_json import read_aside
from parley.gateway.metrics import Metrics
from parley.protocol import chat, codec

PATH: Final = "/v1/responses"
BODY_NAME: Final = "http responses"
NO_BACKGROUND: Final = (
    "background requires a response that is stored: store must be true, its input and all that was "
    "said before it at most 8 MiB, and the server must record sessions (storage.recording)."
)


class DeletedResponse(msgspec.Struct, kw_only=True):
    """The response was deleted."""

    id: Annotated[str, Meta(examples=["resp_0123456789abcdef0123456789abcdef"])]
    object: str = "response"
    deleted: bool = True


EXAMPLE: Final = {"model": "pocket", "input": "What is the capital of Italy?"}


@dataclass(frozen=True, slots=True)
class Answering:
    """One response while it is generated."""

    request: Request
    asked: ResponseRequest
    items: list[Item]
    writer: ResponseWriter
    kept: KeptResponses
    stored: bool

    async def events(
        self, pieces: AsyncGenerator[AnswerPiece, None], metrics: Metrics
    ) -> AsyncGenerator[Event, None]:
        """All events of the response.

        Raises:
            ParleyError: before the first event, or later if no client receives the events.
            Departed: the client left.
        """
        writer = self.writer
        has_started = self.asked.background
        for event in writer.begin() if has_started else ():
            yield event
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if not has_started:
                        has_started = True
                        for event in writer.begin():
                            yield event
                    for event in self._events_of(piece):
                        yield event
                    if isinstance(piece, AnswerEnded):
                        yield await self._last(piece)
        except ParleyError as error:
            if not has_started or not (self.asked.stream or self.asked.background):
                raise
            metrics.error(error.code)
            for event in writer.failed(error):
                yield event

    def _events_of(self, piece: AnswerPiece) -> list[Event]:
        match piece:
            case AnswerWords(text, logprobs):
                return self.writer.words(text, msgspec.to_builtins(logprobs))
            case chat.ToolCall():
                return self.writer.call(piece)
            case AnswerEnded():
                return self.writer.end(piece)
            case _:
                return []

    async def _last(self, ended: AnswerEnded) -> Event:
        event = self.writer.last(ended)
        if self.stored:
            recording = ended.done.recording_session_id
            event["response"]["store"] = await self.keep(
                self.body(event["response"]), recording if isinstance(recording, str) else None
            )
        return event

    def body(self, response: dict[str, Any]) -> KeptBody:
        """The stored part of a response."""
        asked = msgspec.structs.replace(self.asked, input=())
        return KeptBody(self.items, response, asked, self.writer.deltas)

    async def keep(self, body: KeptBody, recording_id: str | None = None) -> bool:
        return await self.kept.keep(self.request, body, recording_id)


def routes(
    forwarder: ChatForwarder, kept: KeptResponses, models: ModelList, sources: Sources
) -> Router:
    metrics = forwarder.metrics
    router = Router(tag="openai")
    runs = BackgroundRuns()

    async def find(request: Request, response_id: str) -> KeptBody:
        run = runs.find(response_id, owner_of(request))
        return await kept.find(request, response_id) if run is None else run.kept

    @router.post(
        PATH,
        answer=WHOLE_ANSWER,
        errors=(403, 502, 503, 504),
        body_bytes=forwarder.body_bytes,
        body=json_body(ResponseRequest, EXAMPLE),
    )
    async def respond(request: Request) -> Response:
        """Answer; with `stream` as server-sent events. Waits in the queue; disconnecting cancels.
        Any `model` is accepted: the loaded one answers, and is named in the response."""
        forwarder.check(request)
        asked, given, size = await _read(request)
        said, said_bytes = await kept.conversation(request, asked, given)
        whole = await read_aside(
            size + said_bytes, lambda: response_request.completion_of(asked, said)
        )
        with renamed(response_request.FIELDS):
            whole, is_forced = shaped(whole, models)
        forwarder.check_room(request)
        inner = secrets.token_hex(INNER_CHARS // 2)
        stored, owner = kept.keeps(asked, size), owner_of(request)
        if asked.background:
            # Its memory is used longer than its request, so it must be small.
            if not stored or size + said_bytes > ONE_BYTES:
                raise InvalidRequest(NO_BACKGROUND, field="background")
            runs.check(owner)
        answering = Answering(
            request,
            asked,
            _with_ids(given, inner),
            ResponseWriter(
                asked,
                response_id=PREFIX + inner,
                model=models.current,
                created_s=int(forwarder.clock.time()),
                stored=stored,
            ),
            kept,
            stored,
        )
        media = response_request.media_names(whole, said, len(given))
        names = response_request.FIELDS | media
        run = BackgroundRun(owner, answering.writer, answering.body, answering.keep)
        client = run.client(request) if asked.background else request
        pieces = answer(
            forwarder, client, BODY_NAME, whole, sources, is_forced=is_forced, names=names
        )
        events = answering.events(pieces, metrics)
        if asked.background:
            runs.start(answering.writer.response_id, run, events)
            if not asked.stream:
                return await _json(run.kept.response)
            events = run.follow(0)
        if asked.stream:
            return PiecesResponse(_encoded(events), media_type=EVENTS, metrics=metrics)
        return await _whole(events)

    @router.get(PATH + "/{response_id}", answer=WHOLE_ANSWER, errors=(404,))
    async def retrieve(
        request: Request,
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int, Meta(ge=0)] | None = None,
    ) -> Response:
        """A stored response; with `stream` its events, after `starting_after`."""
        found = await find(request, response_id)
        if not stream:
            return await _json(found.response)
        first = 0 if starting_after is None else starting_after + 1
        run = runs.find(response_id, owner_of(request))

        async def events() -> AsyncGenerator[Event, None]:
            for event in replayed(found.asked, found.response, found.deltas):
                if event["sequence_number"] >= first:
                    yield event

        following = events() if run is None else run.follow(first)
        return PiecesResponse(_encoded(following), media_type=EVENTS, metrics=metrics)

    @router.delete(PATH + "/{response_id}", errors=(403, 404))
    async def delete(request: Request, response_id: str) -> DeletedResponse:
        """Delete a stored response, or end and remove a running one. Its recording is kept."""
        forwarder.admission.check_origin(request.headers)
        if (run := runs.find(response_id, owner_of(request))) is not None:
            await run.cancel()
        await kept.forget(request, response_id)
        return DeletedResponse(id=response_id)

    @router.post(PATH + "/{response_id}/cancel", answer=WHOLE_ANSWER, errors=(403, 404))
    async def cancel(request: Request, response_id: str) -> Response:
        """End a response that runs in the background; if it has ended, it is returned unchanged.
        Other responses end when their client disconnects."""
        forwarder.admission.check_origin(request.headers)
        if (run := runs.find(response_id, owner_of(request))) is not None:
            await run.cancel()
            return await _json(run.kept.response)
        found = await kept.find(request, response_id)
        if not found.asked.background:
            raise InvalidRequest(
                "Cannot cancel a synchronous response: close the connection to stop it.",
                field="response_id",
            )
        return await _json(found.response)

    @router.get(
        PATH + "/{response_id}/input_items",
        answer=PAGE_OF_ITEMS,
        errors=(404,),
    )
    async def input_items(
        request: Request,
        response_id: str,
        after: str | None = None,
        limit: Annotated[int, Meta(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """The input items of a stored response, newest first."""
        found = await find(request, response_id)
        items = [_listed(item) for item in found.input]
        if order == "desc":
            items.reverse()
        if after is not None:
            places = [index for index, item in enumerate(items) if item["id"] == after]
            if not places:
                raise InvalidRequest(f"There is no item '{after[:80]}'.", field="after")
            # The last of several references to one item, so that pages end.
            items = items[places[-1] + 1 :]
        return await _json(_page(items, limit))

    return router


async def _read(request: Request) -> tuple[ResponseRequest, list[Item], int]:
    """A request, its input as items, and its size in bytes."""
    raw = await read_body(request)
    asked, items = await read_aside(len(raw), lambda: response_request.read(raw))
    return asked, items, len(raw)


async def _encoded(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            yield encode(event)


async def _whole(events: AsyncGenerator[Event, None]) -> Response:
    async with contextlib.aclosing(events):
        async for event in events:
            last = event
    return await _json(last["response"])


async def _json(value: dict[str, Any]) -> Response:
    """The response; made in a thread, because the request that it repeats may have megabytes."""
    made = await asyncio.to_thread(codec.encode_media, value)
    return Response(bytes(made), media_type=JSON)


PREFIXES: Final = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def _with_ids(items: list[Item], inner: str) -> list[Item]:
    """Items of the input with ids: those that their client has set, if each is another one."""
    taken, found = {""}, list[Item]()
    for index, item in enumerate(items):
        given = item.get("id")
        is_its_own = isinstance(given, str) and given not in taken
        if not is_its_own and item.get("type") != "item_reference":
            prefix = PREFIXES.get(item.get("type", ""), "msg")
            # Its number cannot collide with those of the output's items.
            item = {**item, "id": f"{prefix}_{inner}i{index:02d}"}
        taken.add(item["id"])
        found.append(item)
    return found


def _page(items: list[Item], limit: int) -> dict[str, Any]:
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _listed(item: Item) -> Item:
    """An item of the input as it is listed: complete, with its content in parts."""
    if item.get("type") != "message":
        return {"status": "completed", **item}
    content = item.get("content")
    if isinstance(content, str):
        is_answer = item.get("role") == "assistant"
        more = {"type": "output_text", "annotations": []} if is_answer else {"type": "input_text"}
        content = [{"text": content, **more}]
    return {"status": "completed", **item, "content": content}


# ---- for `/openapi.json` -------------------------------------------------------------------

EXAMPLE_ID: Final = "0123456789abcdef0123456789abcdef"


def _example() -> dict[str, Any]:
    """The response to `EXAMPLE`."""
    done = chat.Done(text="The capital of Italy is Rome.", generated_tokens=7, input_tokens=12)
    writer = ResponseWriter(
        ResponseRequest(),
        response_id=PREFIX + EXAMPLE_ID,
        model="pocket",
        created_s=1795283000,
        stored=True,
    )
    writer.words(done.text)
    writer.end(AnswerEnded(done))
    response: dict[str, Any] = writer.last(AnswerEnded(done))["response"]
    return response


WHOLE_ANSWER: Final = described(
    "The response; with `stream` its events.", _example(), content=EVENT_CONTENT
)
_ITEM: Final = {"type": "message", "role": "user", "content": "Hello!"}
PAGE_OF_ITEMS: Final = described(
    "A page of the items.", _page([*map(_listed, _with_ids([_ITEM], EXAMPLE_ID))], 1)
)
