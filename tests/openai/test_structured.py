"""Answers in a given form, with the pocket model itself: valid JSON of the schema, whatever it
would like to say; and what cannot be enforced, refused by name."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.openai.test_rest import QUESTION, client_of
from tests.support.stack import running_stack

import openai
from openai import AsyncOpenAI

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


@contextlib.asynccontextmanager
async def pocket_client() -> AsyncIterator[AsyncOpenAI]:
    async with running_stack("pocket") as running, client_of(running) as client:
        yield client


async def test_pocket_answers_in_the_form_of_a_schema_through_every_door():
    async with pocket_client() as client:
        parsed = await client.chat.completions.parse(
            model="m",
            messages=[{"role": "user", "content": "Anna and Bob come on Friday."}],
            response_format=Event,
            max_completion_tokens=300,
        )
        response = await client.responses.parse(
            model="m", input="Anna and Bob come on Friday.", text_format=Event
        )
        async with client.responses.stream(
            model="m", input="Anna comes on Friday.", text_format=Event
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_response()
        plain = await client.chat.completions.create(
            model="m", messages=QUESTION, response_format={"type": "json_object"}
        )
        forced = await client.chat.completions.create(
            model="m",
            messages=QUESTION,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
        )
        function: Any = {**WEATHER["function"], "type": "function"}
        items = await client.responses.create(
            model="m",
            input="hi",
            tools=[function],
            tool_choice="required",
        )
        impossible: Any = {"type": "function", "name": "f", "parameters": {"not": {}}}
        with pytest.raises(openai.BadRequestError, match='"not"') as refused_tool:
            await client.responses.create(
                model="m", input="hi", tools=[impossible], tool_choice="required"
            )
        with pytest.raises(openai.BadRequestError, match='"not"') as refused_text:
            await client.responses.create(
                model="m",
                input="hi",
                text={"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}},
            )
        with pytest.raises(openai.BadRequestError, match='"not"') as refused:
            await client.chat.completions.create(
                model="m",
                messages=QUESTION,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}},
                },
            )

    params = [each.value.param for each in (refused, refused_text, refused_tool)]
    assert params == ["response_format", "text.format", "tools"]
    assert isinstance(parsed.choices[0].message.parsed, Event)
    assert isinstance(response.output_parsed, Event)
    assert isinstance(streamed.output_parsed, Event)
    assert isinstance(json.loads(plain.choices[0].message.content or ""), dict)
    (call,) = forced.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")  # type: ignore[union-attr]
    assert forced.choices[0].finish_reason == "tool_calls"
    (item,) = items.output
    assert item.type == "function_call"
    assert json.loads(item.arguments)["city"] in ("Rome", "Oslo")


async def test_an_own_language_model_is_handed_what_was_asked():
    script = Script(words=['{"title": "Fair", ', '"day": null, "guests": []}'])
    with scripted_endpoint(script) as url:
        async with (
            running_stack("cascade", model_settings={"llm": url, "llm_model": "m"}) as running,
            client_of(running) as client,
        ):
            response = await client.responses.parse(model="m", input="hi", text_format=Event)
            await client.chat.completions.create(
                model="m",
                messages=QUESTION,
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
