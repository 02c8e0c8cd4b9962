"""`/v1/responses` with OpenAI's own Python client, unchanged but for address and key: every answer
and event parsed strictly, and the same input for the model as through chat completions."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.openai.sdk_client import chat, client_of, red_picture, respond, talking
from tests.openai.talking_model import MALFORMED, OSLO, ROME, CallingModel, TalkingModel
from tests.support.cpu_time import takes_less_than
from tests.support.sounds import speak
from tests.support.stack import running_stack

import openai
from openai import AsyncOpenAI
from parley.errors import ParleyError
from parley.gateway.acquisition import Departed
from parley.gateway.http.openai.background import (
    EACH_MOST,
    BackgroundRun,
    BackgroundRuns,
    TooManyRuns,
)
from parley.gateway.http.openai.kept_responses import KeptBody
from parley.gateway.http.openai.response_events import Event, ResponseWriter
from parley.gateway.http.openai.response_request import (
    ReasoningItem,
    ResponseRequest,
    completion_of,
    media_names,
    messages_of,
)
from parley.media.wav import encode_wav

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": PARAMETERS,
    "strict": True,
}
KEEPING = {"recording": True}
SUNNY = ["It ", "is ", "sunny."]
QUESTION = "What is the weather?"


async def events_of(client: Any, **asked: Any) -> list[Any]:
    stream = await respond(client, stream=True, **asked)
    events = [event async for event in stream]
    for event in events:
        EVENT.validate_python(json.loads(event.model_dump_json()))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


# ---- text ----------------------------------------------------------------------------------


async def test_the_first_example_of_the_readme():
    model = TalkingModel()
    async with talking(model) as (_, client):
        response = await client.responses.create(
            model="gpt-5.2",
            instructions="You are a coding assistant that talks like a pirate.",
            input="How do I check if a Python object is an instance of a class?",
        )

    Response.model_validate(response.model_dump(), strict=False)
    assert response.output_text == "One two three. "
    assert (response.status, response.model) == ("completed", "talking")
    assert response.usage is not None
    assert response.usage.output_tokens == 3
    assert response.usage.total_tokens == response.usage.input_tokens + 3
    assert any("pirate" in words for words in model.contexts[0])


async def test_a_stream_has_every_event_in_its_published_order():
    async with talking() as (_, client):
        events = await events_of(client, input="hi")

    kinds = [event.type for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1].response
    assert last.output_text == "One two three. "
    assert events[0].response.id == last.id
    assert events[0].response.status == "in_progress"
    assert events[2].item.id == events[4].item_id == last.output[0].id


async def test_a_limit_makes_it_incomplete():
    async with talking(TalkingModel(answer="one two three four")) as (_, client):
        response = await respond(client, max_output_tokens=2)
        events = await events_of(client, input="hi", max_output_tokens=2)

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"


# ---- the same input ------------------------------------------------------------------------


async def test_the_same_conversation_is_the_same_input_for_the_model_through_both():
    model = CallingModel(*[SUNNY] * 2)
    picture = f"data:image/png;base64,{base64.b64encode(red_picture()).decode()}"
    wav = {"data": base64.b64encode(encode_wav(speak(1.0))).decode(), "format": "wav"}
    described: Any = {name: TOOL[name] for name in ("name", "description", "parameters")}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look and listen"},
                {"type": "image_url", "image_url": {"url": picture}},
                {"type": "input_audio", "input_audio": wav},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": arguments},
                }
                for name, arguments in (("a", '{"city": "Rome"}'), ("b", '{"city": "Oslo"}'))
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "snow"},
        {"role": "user", "content": "And now?"},
    ]
    items: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look and listen"},
                {"type": "input_image", "image_url": picture, "detail": "auto"},
                {"type": "input_audio", "input_audio": wav},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        *(
            {
                "type": "function_call",
                "id": f"fc_{name}",
                "call_id": name,
                "name": "get_weather",
                "arguments": arguments,
            }
            for name, arguments in (("a", '{"city": "Rome"}'), ("b", '{"city": "Oslo"}'))
        ),
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "snow"}],
        },
        {"role": "user", "content": "And now?"},
    ]
    async with talking(model) as (_, client):
        await chat(
            client, messages=messages, tools=[{"type": "function", "function": described}], seed=1
        )
        await respond(
            client, instructions="Be brief.", input=items, tools=[TOOL], extra_body={"seed": 1}
        )

    assert model.contexts[0] == model.contexts[1]
    assert model.asked[0] == model.asked[1]
    assert "I look." in "".join(model.contexts[0])


async def test_pictures_and_sound_reach_the_model():
    picture = f"data:image/png;base64,{base64.b64encode(red_picture()).decode()}"
    wav = {"data": base64.b64encode(encode_wav(speak(1.0))).decode(), "format": "wav"}
    async with running_stack() as running, client_of(running) as client:
        content: Any = [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": picture, "detail": "auto"},
            {"type": "input_audio", "input_audio": wav},
        ]
        response = await respond(client, input=[{"role": "user", "content": content}])

    assert "I saw 1 picture of 32 by 32." in response.output_text
    assert response.output_text.startswith("You spoke for 1.")


# ---- functions -----------------------------------------------------------------------------


async def test_two_calls_their_results_and_the_answer():
    model = CallingModel(["Let ", "me ", "look.", "\n", *ROME, "\n", *OSLO], SUNNY)
    async with talking(model) as (_, client):
        first = await respond(client, input=QUESTION, tools=[TOOL])
        calls = [item for item in first.output if item.type == "function_call"]
        said: list[Any] = [{"role": "user", "content": QUESTION}]
        said += [item.model_dump(exclude_none=True) for item in first.output]
        said += [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in zip(calls, ("sunny", "snow"), strict=True)
        ]
        second = await respond(client, input=said, tools=[TOOL])

    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert first.output_text == "Let me look.\n"
    assert second.output_text == "It is sunny."
    assert "<tool_response>\nsnow\n</tool_response>" in model.contexts[1]


async def test_streamed_calls_are_items_with_rising_indices():
    async with talking(CallingModel(["Look. ", *ROME, *OSLO])) as (_, client):
        events = await events_of(client, input=QUESTION, tools=[TOOL])

    added = [e for e in events if e.type == "response.output_item.added"]
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert [(e.output_index, e.item.type) for e in added] == [
        (0, "message"),
        (1, "function_call"),
        (2, "function_call"),
    ]
    assert [json.loads(e.arguments) for e in done] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert "".join(e.delta for e in deltas if e.output_index == 1) == done[0].arguments
    assert [item.type for item in events[-1].response.output] == [e.item.type for e in added]


async def test_a_malformed_call_is_text_and_never_an_item():
    async with talking(CallingModel(MALFORMED)) as (_, client):
        events = await events_of(client, input=QUESTION, tools=[TOOL])

    assert [item.type for item in events[-1].response.output] == ["message"]
    assert events[-1].response.output_text == "".join(MALFORMED)


async def test_one_call_at_most_where_parallel_calls_are_not_wanted():
    async with talking(CallingModel([*ROME, *OSLO], [*ROME, *OSLO])) as (_, client):
        response = await respond(client, input=QUESTION, tools=[TOOL], parallel_tool_calls=False)
        other = await chat(
            client,
            messages=[{"role": "user", "content": QUESTION}],
            tools=[{"type": "function", "function": {"name": "get_weather"}}],
            parallel_tool_calls=False,
        )

    assert [item.type for item in response.output] == ["function_call"]
    assert response.parallel_tool_calls is False
    assert len(other.choices[0].message.tool_calls or []) == 1


async def test_of_allowed_tools_only_these_are_offered():
    model = CallingModel(SUNNY)
    other: Any = {**TOOL, "name": "other"}
    choice: Any = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "other"}],
    }
    async with talking(model) as (_, client):
        response = await respond(client, input=QUESTION, tools=[TOOL, other], tool_choice=choice)

    assert len(response.tools) == 2
    words = "".join(model.contexts[0])
    assert '"other"' in words
    assert '"get_weather"' not in words


# ---- what is kept --------------------------------------------------------------------------


async def test_a_response_is_continued_by_its_id():
    model = TalkingModel()
    async with talking(model, storage=KEEPING) as (_, client):
        first = await respond(client, instructions="Be kind.", input="my name is Anna")
        second = await respond(client, input="what is my name", previous_response_id=first.id)
        third = await respond(client, input="again", previous_response_id=second.id)

    assert third.previous_response_id == second.id
    words = "".join(model.contexts[2])
    assert words.index("Anna") < words.index("One two") < words.index("what is my name")
    assert words.index("what is my name") < words.index("again")
    # Instructions are of one response only.
    assert "Be kind." not in words


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_a_conversation_that_is_too_long_is_shortened_only_if_asked(truncation):
    async with running_stack(model="parrot") as server, client_of(server) as client:
        said: list[Any] = [
            {"role": role, "content": "word " * 2000} for role in ("user", "assistant") * 6
        ]
        asked = client.responses.create(
            model="parrot",
            input=[*said, {"role": "user", "content": "Hello, parrot!"}],
            truncation=truncation,
        )
        if truncation == "auto":
            response = await asked
            assert "Hello, parrot!" in response.output_text
            assert response.truncation == "auto"
        else:
            with pytest.raises(openai.BadRequestError, match="maximum context length is 8192"):
                await asked


async def test_a_response_is_of_the_key_that_made_it():
    security = {"needs_key": True, "admin_token": "the-admin"}
    async with running_stack(
        load_model=TalkingModel, storage=KEEPING, security=security
    ) as running:
        keys = [(await running.new_key(name))["key"] for name in ("anna", "bob")]
        async with (
            client_of(running, api_key=keys[0]) as anna,
            client_of(running, api_key=keys[1]) as bob,
        ):
            made = await anna.responses.create(model="m", input="my name is Anna")
            item: Any = {"type": "item_reference", "id": made.output[0].id}
            with pytest.raises(openai.BadRequestError) as continued:
                await bob.responses.create(model="m", input="x", previous_response_id=made.id)
            with pytest.raises(openai.BadRequestError) as referred:
                await bob.responses.create(model="m", input=[item])
            for action in (bob.responses.retrieve, bob.responses.delete, bob.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    await action(made.id)
            with pytest.raises(openai.NotFoundError):
                await bob.responses.input_items.list(made.id)
            found = await anna.responses.retrieve(made.id)

    assert continued.value.code == "previous_response_not_found"
    assert referred.value.param == "input"
    assert found.id == made.id


async def test_it_is_read_listed_replayed_and_deleted():
    async with talking(storage=KEEPING) as (_, client):
        made = await respond(
            client,
            input=[
                {"role": "user", "content": "one", "id": "msg_1"},
                {"role": "user", "content": "two", "id": "msg_1"},
                {"role": "user", "content": "three", "id": 3},
            ],
            metadata={"topic": "test"},
        )
        found = await client.responses.retrieve(made.id)
        items = await client.responses.input_items.list(made.id, order="asc", limit=1)
        pages: Any = [item async for item in items]
        replay = [e async for e in await client.responses.retrieve(made.id, stream=True)]
        rest = [
            e async for e in await client.responses.retrieve(made.id, stream=True, starting_after=3)
        ]
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await client.responses.cancel(made.id)
        with pytest.raises(openai.BadRequestError) as limit:
            await client.responses.input_items.list(made.id, limit=0)
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as lost:
            await respond(client, input="x", previous_response_id=made.id)

    assert found.model_dump() == made.model_dump()
    assert [item.content[0].text for item in pages] == ["one", "two", "three"]
    assert len({item.id for item in pages}) == 3
    assert all(isinstance(item.id, str) for item in pages)
    assert replay[0].type == "response.created"
    assert replay[-1].type == "response.completed"
    assert [e.sequence_number for e in rest] == list(range(4, len(replay)))
    assert limit.value.param == "limit"
    assert gone.value.type == "invalid_request_error"
    assert lost.value.code == "previous_response_not_found"
    assert lost.value.param == "previous_response_id"


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, "image_url"),
        ({"type": "input_image", "image_url": "data:image/png;base64,!!!"}, "image_url"),
        ({"type": "input_image", "image_url": "http://127.0.0.1/"}, "image_url"),
        ({"type": "input_video", "video_url": "data:video/mp4;base64,A"}, "video_url"),
    ],
)
async def test_media_that_cannot_be_used_are_named_by_their_part(broken: Any, field: str):
    data = base64.b64encode(red_picture()).decode()
    fine = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    async with talking(storage=KEEPING) as (_, client):
        first = await respond(client, input=[{"role": "user", "content": [fine]}])
        with pytest.raises(openai.BadRequestError) as caught:
            await respond(
                client,
                instructions="Be kind.",
                previous_response_id=first.id,
                input=[
                    {"role": "user", "content": [fine]},
                    {"role": "user", "content": [{"type": "input_text", "text": "?"}, broken]},
                ],
            )

    assert caught.value.param == f"input[1].content[1].{field}"


def test_media_of_stored_items_are_those_of_the_previous_response():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    text = {"type": "input_text", "text": "?"}
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [text, image]},
        {"type": "message", "role": "assistant", "content": "Red."},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1", "content": [image]},
        {"type": "message", "role": "user", "content": [image]},
    ]
    asked = ResponseRequest(model="m", instructions="Be kind.", input=(ReasoningItem(),) * 2)
    whole = completion_of(asked, items)

    names = media_names(whole, items, given=2)

    assert names == {
        "messages[1].content[1].image_url": "previous_response_id",
        "messages[4].content[0].image_url": "input[1].content[0].image_url",
    }


async def test_items_are_referred_to_by_their_ids():
    model = TalkingModel()
    async with talking(model, storage=KEEPING) as (_, client):
        first = await respond(client, input="hello")
        await respond(
            client,
            input=[
                {"role": "user", "content": "hello"},
                {"type": "item_reference", "id": first.output[0].id or ""},
                {"role": "user", "content": "go on"},
            ],
        )
        with pytest.raises(openai.BadRequestError, match="There is no item") as strange:
            await respond(client, input=[{"type": "item_reference", "id": "msg_strange"}])

    assert "One two three." in "".join(model.contexts[1])
    assert strange.value.param == "input"


async def kept_unanswered(http: httpx.AsyncClient, **asked: Any) -> httpx.Response:
    """A response that is kept, whatever a model would make of its input. OpenAI's client takes a
    millisecond to look at each item."""
    made = await http.post("/v1/responses", json={"model": "m", "background": True, **asked})
    if made.is_success:
        await http.post(f"/v1/responses/{made.json()['id']}/cancel")
    return made


async def test_a_stored_response_counts_as_memory_of_the_request_that_continues_it():
    texts = [{"role": "user", "content": "a" * 60_000}] * 20
    async with talking(storage=KEEPING) as (running, _), running.http() as http:
        first = (await kept_unanswered(http, input=texts)).json()["id"]
        budget = running.runtime.links.budget
        budget.peak_bytes = 0
        asked = {"model": "m", "input": "continue", "previous_response_id": first}
        await http.post("/v1/responses", json=asked)

    assert 1_200_000 < budget.peak_bytes < 1_400_000
    assert budget.used_bytes == 0


async def test_an_item_that_is_named_a_thousand_times_is_not_sent_a_thousand_times():
    """70 MB of conversation by a request of 80 KB."""
    async with talking(storage=KEEPING) as (running, _), running.http() as http:
        first = (await kept_unanswered(http, input="a" * 60_000)).json()["id"]
        items = (await http.get(f"/v1/responses/{first}/input_items")).json()["data"]
        named = [{"type": "item_reference", "id": items[0]["id"]}] * 1_200
        refused = await http.post("/v1/responses", json={"model": "m", "input": named})

    assert refused.status_code == 413, refused.text
    assert refused.json()["error"]["message"].startswith("The conversation")
    assert running.runtime.links.budget.used_bytes == 0


async def test_a_conversation_of_small_items_is_bounded_too():
    """Each of a hundred thousand costs more than its bytes."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items, last = [call] * 2_000, None
    async with talking(storage=KEEPING) as (running, _), running.http() as http:
        for _ in range(20):
            made = await kept_unanswered(http, input=items, previous_response_id=last)
            if not made.is_success:
                break
            last = made.json()["id"]

    assert made.status_code == 413, made.text
    assert "items" in made.json()["error"]["message"]


async def test_what_a_response_repeats_of_its_request_is_whole_however_long():
    """Long base64 is kept apart from other strings in memory."""
    picture = "data:image/png;base64," + "A" * 2_000_000
    content = [{"type": "input_image", "image_url": picture}]
    model = TalkingModel(answer="word " * 2_000, word_s=0.05)
    async with talking(model, storage=KEEPING) as (running, _), running.http() as http:
        asked = {"model": "m", "input": "hi", "user": "A" * 2_000_000, "max_output_tokens": 1}
        plain = await http.post("/v1/responses", json=asked)
        streamed = await http.post("/v1/responses", json={**asked, "stream": True})
        asked = {"model": "m", "input": [{"role": "user", "content": content}], "background": True}
        made = (await http.post("/v1/responses", json=asked)).json()["id"]
        items = (await http.get(f"/v1/responses/{made}/input_items")).json()["data"]
        await http.post(f"/v1/responses/{made}/cancel")

    assert plain.json()["user"] == "A" * 2_000_000
    assert (streamed.status_code, "response.incomplete" in streamed.text) == (200, True)
    assert streamed.headers["x-accel-buffering"] == "no"
    assert items[0]["content"] == content


def test_many_calls_take_as_long_as_they_are_many():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    (message,) = messages_of([call] * 20_000)

    assert len(message.tool_calls or ()) == 20_000
    assert takes_less_than(0.5, lambda: messages_of([call] * 20_000))


async def test_what_is_not_to_be_stored_is_neither_kept_nor_recorded():
    async with talking(storage=KEEPING) as (running, client):
        made = await respond(client, store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        recordings = [*running.runtime.stores.folders]

    assert made.to_dict()["store"] is False
    assert recordings == []


async def test_without_recording_nothing_is_kept_and_the_error_says_so():
    async with talking() as (_, client):
        made = await respond(client)
        with pytest.raises(openai.BadRequestError, match="keeps no responses"):
            await respond(client, input="x", previous_response_id=made.id)
        with pytest.raises(openai.NotFoundError, match="keeps no responses"):
            await client.responses.retrieve(made.id)

    assert made.to_dict()["store"] is False


async def test_a_response_goes_with_its_recording():
    async with talking(storage=KEEPING) as (running, client):
        made = await respond(client)
        (folder,) = [*running.runtime.stores.folders]
        async with httpx.AsyncClient(base_url=running.url) as http:
            deleted = await http.delete(f"/api/sessions/{folder.recording_id}")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)

    assert deleted.status_code == 200


# ---- in the background ---------------------------------------------------------------------


async def ended(client: AsyncOpenAI, response: Response) -> Response:
    """As it is in the end."""
    while response.status in ("queued", "in_progress"):
        response = await client.responses.retrieve(response.id)
    return response


async def test_a_response_in_the_background_is_polled_until_it_is_there():
    async with talking(storage=KEEPING) as (_, client):
        made = await respond(client, background=True)
        found = await ended(client, made)
        later = await client.responses.retrieve(made.id)
        cancelled = await client.responses.cancel(made.id)
        items = [item async for item in await client.responses.input_items.list(made.id)]

    Response.model_validate(made.model_dump(), strict=False)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert (found.status, found.output_text) == ("completed", "One two three. ")
    assert later.model_dump() == found.model_dump() == cancelled.model_dump()
    assert len(items) == 1


async def test_a_response_in_the_background_continues_without_its_client():
    model = TalkingModel(answer="one two three four five six", word_s=0.02)
    async with talking(model, storage=KEEPING) as (_, client):
        stream: Any = await respond(client, background=True, stream=True)
        seen: list[Any] = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()

        async def following() -> list[Any]:
            stream = await client.responses.retrieve(
                seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
            )
            return [event async for event in stream]

        rest, again = await following(), await following()

    assert again == rest
    assert [event.sequence_number for event in seen + rest] == list(range(len(seen + rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "one two three four five six "


async def test_a_response_in_the_background_is_cancelled():
    model = TalkingModel(answer="word " * 2_000, word_s=0.05)
    async with talking(model, storage=KEEPING) as (_running, client):
        made = await respond(client, background=True)
        ended = await client.responses.cancel(made.id)
        found = await client.responses.retrieve(made.id)
        replay = [e.type async for e in await client.responses.retrieve(made.id, stream=True)]
        forgotten = await respond(client, background=True)
        await client.responses.delete(forgotten.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(forgotten.id)
        # The slot is free again.
        model.word_s = 0.0
        model.answer = "free"
        assert (await respond(client)).output_text == "free "

    assert ended.status == found.status == "cancelled"
    # No published event ends a cancelled one.
    assert "response.cancelled" not in replay
    Response.model_validate(found.model_dump(), strict=False)


async def test_responses_in_the_background_are_bounded_and_of_their_owner():
    model = TalkingModel(answer="word " * 2_000, word_s=0.05)
    async with talking(model, storage=KEEPING) as (_, client):
        many = client.with_options(max_retries=0)
        made = [
            await many.responses.create(model="m", input="hi", background=True)
            for _ in range(EACH_MOST)
        ]
        with pytest.raises(openai.RateLimitError, match="8 responses run in the background for"):
            await many.responses.create(model="m", input="hi", background=True)
        for each in made:
            await client.responses.cancel(each.id)
    async with talking() as (_, client):
        with pytest.raises(openai.BadRequestError, match=r"storage\.recording") as refused:
            await respond(client, background=True)

    assert refused.value.param == "background"


async def test_a_response_in_the_background_that_fails_says_why():
    async with talking(storage=KEEPING) as (_, client):
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        items: Any = [{"role": "user", "content": [picture]}]
        made = await respond(client, input=items, background=True)
        found = await ended(client, made)

    assert found.status == "failed"
    assert found.error is not None
    assert "image" in found.error.message
    assert found.error.code == "invalid_prompt"


async def test_a_response_in_the_background_that_ends_by_a_fault_of_ours_has_failed(
    monkeypatch: pytest.MonkeyPatch,
):
    def fail(*args: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(ResponseWriter, "words", fail)
    async with talking(storage=KEEPING) as (_, client):
        made = await respond(client, background=True)
        found = await ended(client, made)

    assert found.status == "failed"
    assert found.error is not None
    assert found.error.message == "The server failed; its log says why."
    assert found.error.code == "server_error"


def test_the_last_places_in_the_background_are_for_those_who_have_none():
    runs = BackgroundRuns()

    def let_in(owner: str) -> int:
        """How many of an owner are let in."""
        for number in range(EACH_MOST + 1):
            try:
                runs.check(owner)
            except TooManyRuns:
                return number
            runs._runs[f"{owner}-{number}"] = BackgroundRun(owner, None, None, None)  # type: ignore[arg-type]
        return EACH_MOST + 1

    assert [let_in(f"address {number}") for number in range(12)] == [8, 8, 8, *[1] * 8, 0]


def test_of_failed_responses_those_in_the_background_are_stored():
    for background in (True, False):
        asked = ResponseRequest(background=background)
        writer = ResponseWriter(asked, response_id="resp_1", model="m", created_s=1, stored=True)
        assert writer.failed(ParleyError("A fault."))[-1]["response"]["store"] is background


def _run(store: Callable[[KeptBody], Awaitable[Any]]) -> BackgroundRun:
    asked = ResponseRequest(background=True)
    writer = ResponseWriter(asked, response_id="resp_1", model="m", created_s=1, stored=True)
    return BackgroundRun("key k_1", writer, lambda made: KeptBody([], made, asked), store)


async def test_a_slow_reader_of_a_background_response_receives_its_end():
    run, gate = _run(AsyncMock()), asyncio.Event()

    async def events() -> AsyncGenerator[Event, None]:
        yield {"response": {"status": "in_progress"}}
        await gate.wait()
        yield {"response": {"status": "completed"}}

    running = asyncio.create_task(run.run(events()))
    followed = run.follow(0)
    await anext(followed)
    # The reader has the first event and has not asked for the next one.
    gate.set()
    await running

    async with asyncio.timeout(1):
        assert [each["response"]["status"] async for each in followed] == ["completed"]


async def test_a_cancelled_background_response_has_ended_when_it_is_stored():
    gate, stored = asyncio.Event(), list[str]()

    async def store(kept: KeptBody) -> None:
        await gate.wait()
        stored.append(kept.response["status"])

    async def events() -> AsyncGenerator[Event, None]:
        yield {"response": {"status": "in_progress"}}
        raise Departed("cancelled")

    run = _run(store)
    running = asyncio.create_task(run.run(events()))
    await asyncio.sleep(0)
    cancelling = asyncio.create_task(run.cancel())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not cancelling.done()
    gate.set()
    await asyncio.gather(running, cancelling)

    assert stored == ["cancelled"]


# ---- errors --------------------------------------------------------------------------------


LONG: Any = {"role": "user", "content": [{"type": "input_text", "text": "x" * 65_537}]}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"conversation": "conv_1"}, "conversation", ""),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", ""),
    ({"tools": [TOOL]}, "tools", "--llm"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", ""),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", ""),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", ""),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", ""),
    ({"top_logprobs": 3}, "top_logprobs", ""),
    ({"extra_body": {"presence_penalty": 0.5}}, "presence_penalty", ""),
    ({"extra_body": {"n": 2}}, "n", ""),
    ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format", ""),
    ({"extra_body": {"max_tokens": 20}}, "max_tokens", ""),
    ({"temperature": 7}, "temperature", ""),
    ({"tool_choice": "required"}, "tool_choice", ""),
    ({"input": []}, "input", ""),
    ({"input": [LONG]}, "input[0].content[0].text", "send it as several parts"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]", ""),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0].file_id",
        "data URL",
    ),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input", ""),
]


async def test_what_cannot_be_done_is_refused_by_name():
    async with talking() as (_, client):
        for asked, param, hint in REFUSED:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(**{"model": "m", "input": "hi", **asked})
            assert hint in str(refused.value)
            assert refused.value.param == param
            assert refused.value.type == "invalid_request_error"
