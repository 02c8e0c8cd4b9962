"""Answers in a given form, as a language model of one's own is asked for them; `test_pocket.py` in
`tests/system` has those of pocket."""

from typing import Any

from pydantic import BaseModel
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.openai.sdk_client import chat, client_of
from tests.support.stack import running_stack

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
    with scripted_endpoint(script) as url:
        async with (
            running_stack("cascade", model_settings={"llm": url, "llm_model": "m"}) as running,
            client_of(running) as client,
        ):
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
