"""Responses over a WebSocket, with OpenAI's own client."""

import contextlib
import json
from typing import Any

import pytest
from tests.openai.sdk_client import client_of, talking
from tests.openai.talking_model import TalkingModel
from tests.support.patience import until
from tests.support.raw_sockets import raw_websocket
from websockets import ConnectionClosed
from websockets.asyncio.client import connect

from parley.errors import InvalidRequest, UnknownEvent
from parley.gateway.http.openai.responses_socket import body_of
from parley.transport.framing import TEXT, frame

RECORDING = {"recording": True}


async def answer_of(connection: Any, **asked: Any) -> list[Any]:
    """The events of one response."""
    await connection.response.create(**{"model": "m", "input": "hi", **asked})
    events = []
    async for event in connection:
        events.append(event)
        if event.type in ("response.completed", "response.failed", "error"):
            break
    return events


async def test_responses_follow_one_another_on_one_connection():
    model = TalkingModel()
    async with (
        talking(model, storage=RECORDING) as (_, client),
        client.responses.connect() as connection,
    ):
        first = await answer_of(connection, input="My name is Anna.")
        made = first[-1].response
        second = await answer_of(connection, previous_response_id=made.id)
        stored = await client.responses.retrieve(made.id)

    assert [event.sequence_number for event in first] == list(range(len(first)))
    assert first[0].type == "response.created"
    assert made.output_text == stored.output_text == "One two three. "
    assert second[-1].type == "response.completed"
    assert "My name is Anna." in model.contexts[-1]


async def test_an_error_is_an_event_and_the_connection_continues():
    async with talking() as (_, client), client.responses.connect() as connection:
        (bad,) = await answer_of(connection, tools=[{"type": "web_search"}])
        (lost,) = await answer_of(connection, previous_response_id="resp_x")
        await connection.response.steer(input="Hello!", previous_response_id="resp_x")
        unknown: Any = await connection.recv()
        events = await answer_of(connection)

    assert (bad.status, bad.error.code) == (400, "invalid_request")
    assert (bad.error.type, bad.error.param) == ("invalid_request_error", "tools[0].type")
    assert "turn this tool off" in bad.error.message
    assert bad.error.headers["x-request-id"].startswith("req_")
    assert lost.error.code == "previous_response_not_found"
    assert unknown.error.code == "unknown_event"
    assert events[-1].type == "response.completed"


async def test_every_request_needs_the_key_that_the_server_needs():
    async with talking(security={"needs_key": True, "admin_token": "secret-token"}) as (
        running,
        _,
    ):
        url = f"ws://127.0.0.1:{running.gateway.port}/v1/responses"
        page: Any = running.url
        async with connect(url, origin=page) as socket:
            refused = json.loads(await socket.recv())
            await socket.wait_closed()
        async with (
            client_of(running, api_key="secret-token") as client,
            client.responses.connect() as connection,
        ):
            events = await answer_of(connection)

    assert (refused["type"], refused["status"]) == ("error", 401)
    assert refused["error"]["code"] == "invalid_api_key"
    assert socket.close_code == 1008, "before anything is read"
    assert events[-1].type == "response.completed"


async def test_large_messages_count_as_memory_of_their_client_until_they_are_answered():
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * (2 << 20)}
    async with talking() as (running, client), client.responses.connect() as connection:
        budget = running.gateway.runtime.links.budget
        for _ in range(2):
            (refused,) = await answer_of(
                connection, input=[{"role": "user", "content": [picture]}], tools=[{"type": "x"}]
            )
            assert refused.status == 400
            await until(lambda: budget.used_bytes == 0)
        assert 2 << 20 < budget.peak_bytes < 3 << 20


async def test_a_client_that_leaves_ends_its_response():
    model = TalkingModel(answer="one two three " * 2000, word_s=0.01)
    async with talking(model) as (running, client):
        async with client.responses.connect() as connection:
            await connection.response.create(model="m", input="hi")
            await connection.recv()
        pool = running.gateway.runtime.dispatcher.worker_pool

        await until(lambda: all(worker.free_slots == worker.slots for worker in pool))


def test_a_message_becomes_the_body_of_a_streaming_request():
    raw = b'{"type":"response.create","input":"\\u00e4","stream":false}'

    assert json.loads(body_of(raw)) == {"input": "ä", "stream": True}
    assert body_of(b"[1]") == b"[1]"
    assert body_of(b"{") == b"{"
    with pytest.raises(UnknownEvent, match=r"\(none\)"):
        body_of(b"{}")
    with pytest.raises(UnknownEvent, match=r"response\.cancel"):
        body_of(b'{"type":"response.cancel"}')
    with pytest.raises(UnknownEvent):
        body_of(b"{}")
    with pytest.raises(InvalidRequest) as caught:
        body_of(b'{"type":"response.create","generate":false}')
    assert caught.value.field == "generate"


async def test_a_connection_without_requests_is_closed_as_is_one_of_a_server_that_stops():
    request = frame(TEXT, b'{"type": "response.create", "input": "hi"}', mask=True)
    async with talking() as (running, client), contextlib.AsyncExitStack() as sockets:
        runtime = running.runtime
        limits = runtime.settings.limits.model_copy(update={"chat_idle_s": 0.05})
        # As after a reload.
        runtime.apply(runtime.settings.model_copy(update={"limits": limits}), workers_too=False)
        slow = await sockets.enter_async_context(
            raw_websocket(running.gateway.port, "/v1/responses")
        )
        await slow.send(request[:20])
        async with client.responses.connect() as connection:
            with pytest.raises(ConnectionClosed) as idle:
                await connection.recv()
        await slow.send(request[20:])
        await slow.until(b'"response.completed"')
    async with talking() as (running, _):
        socket = await connect(f"ws://127.0.0.1:{running.gateway.port}/v1/responses")
        await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
        await socket.recv()
    await socket.wait_closed()

    assert idle.value.rcvd is not None
    assert idle.value.rcvd.code == 1000
    assert socket.close_code in (1001, 1012)
