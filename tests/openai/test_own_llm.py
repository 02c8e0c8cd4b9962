"""What an own language model is asked for through both interfaces: probabilities of tokens, and
answers in a given form; `test_pocket.py` in `tests/system` has those of pocket."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import remote_cascade
from tests.openai.sdk_client import chat, client_of, streamed_chat
from tests.support.stack import running_stack

import openai
from openai import AsyncOpenAI

OTHER = {"token": "No", "logprob": -2.5, "bytes": [78, 111]}
TOKENS = [
    {"token": "Yes", "logprob": -0.1, "bytes": [89, 101, 115], "top_logprobs": [OTHER]},
    {"token": ", sir", "logprob": -0.7, "bytes": None, "top_logprobs": []},
    {"token": ".", "logprob": -0.2, "bytes": [46], "top_logprobs": []},
]


@contextlib.asynccontextmanager
async def own_llm(script: Script) -> AsyncIterator[AsyncOpenAI]:
    with scripted_endpoint(script) as url:
        async with (
            running_stack(slots=2, load_model=lambda: remote_cascade(url)) as running,
            client_of(running) as client,
        ):
            yield client


def with_probabilities() -> Script:
    events = [
        {"choices": [{"delta": {"content": each["token"]}, "logprobs": {"content": [each]}}]}
        for each in TOKENS
    ]
    return Script(events=events)


def dumped(found: Any) -> list[dict[str, Any]]:
    return [each.model_dump() for each in found]


async def test_chat_completions_report_what_an_own_language_model_reports():
    script = with_probabilities()
    # What arrives together is sent on together.
    script.pause_s = 0.1
    async with own_llm(script) as client:
        asked: Any = {"logprobs": True, "top_logprobs": 1}
        whole = (await chat(client, **asked)).choices[0]
        streamed = [chunk.choices[0] for chunk in await streamed_chat(client, **asked)]
        plain = (await chat(client)).choices[0]

    assert whole.message.content == "Yes, sir."
    assert whole.logprobs is not None
    assert dumped(whole.logprobs.content) == TOKENS
    told = [each.logprobs.content for each in streamed if each.logprobs is not None]
    assert len(told) > 1
    assert [token for found in told for token in dumped(found)] == TOKENS
    assert plain.logprobs is None
    first, second, third = script.requests
    assert (first["logprobs"], first["top_logprobs"]) == (True, 1)
    assert second["top_logprobs"] == 1
    assert "logprobs" not in third


async def test_responses_report_them_in_their_deltas_and_their_text():
    script = with_probabilities()
    async with own_llm(script) as client:
        create = client.responses.create
        included: Any = ["message.output_text.logprobs"]
        whole: Any = await create(model="m", input="hi", include=included)
        events: list[Any] = [
            event
            async for event in await create(model="m", input="hi", top_logprobs=1, stream=True)
        ]

    assert dumped(whole.output[0].content[0].logprobs)[0]["bytes"] == [89, 101, 115]
    assert [each.token for each in whole.output[0].content[0].logprobs] == ["Yes", ", sir", "."]
    deltas = [event.logprobs for event in events if event.type == "response.output_text.delta"]
    assert [each.token for found in deltas for each in found] == ["Yes", ", sir", "."]
    assert deltas[0][0].top_logprobs[0].token == "No"
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert len(done.logprobs) == 3
    assert events[-1].response.top_logprobs == 1
    assert "top_logprobs" not in script.requests[0]


async def test_malformed_probabilities_are_a_fault_of_the_language_model():
    event = {"choices": [{"delta": {"content": "Yes"}, "logprobs": {"content": [{"token": 5}]}}]}
    async with own_llm(Script(events=[event])) as client:
        with pytest.raises(openai.InternalServerError, match="no chat completion"):
            await chat(client, logprobs=True)


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
        },
    },
}


class Guest(BaseModel):
    """A person who comes."""

    name: str
    is_late: bool


class Event(BaseModel):
    """What is planned."""

    title: str
    day: str | None
    guests: list[Guest]


async def test_an_own_language_model_is_handed_what_was_asked():
    script = Script(words=['{"title": "Fair", ', '"day": null, "guests": []}'])
    async with own_llm(script) as client:
        response = await client.responses.parse(model="m", input="hi", text_format=Event)
        await chat(
            client,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            presence_penalty=0.5,
        )

    assert response.output_parsed == Event(title="Fair", day=None, guests=[])
    first, second = script.requests[-2:]
    form = first["response_format"]
    assert form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"]["properties"].keys() == {"title", "day", "guests"}
    assert second["tool_choice"] == "required"
    assert second["parallel_tool_calls"] is False
    assert second["presence_penalty"] == 0.5
