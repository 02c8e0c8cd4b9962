import json
from typing import Any

import llm
from examples.shared import QUESTION, TOOL_QUESTION, city_model, weather_function


def prompt() -> Any:
    assert llm.get_model("gpt-4o-mini").prompt("Five surprising names for a pet pelican").text()


def streamed() -> Any:
    assert "".join(llm.get_model("gpt-4o-mini").prompt(QUESTION, stream=True))


def tool() -> Any:
    weather = weather_function()
    llm.get_model("gpt-4o-mini").chain(TOOL_QUESTION, tools=[weather]).text()
    assert weather.called


def schema() -> Any:
    text = llm.get_model("gpt-4o-mini").prompt(QUESTION, schema=city_model()).text()
    assert json.loads(text)["city"]
