from typing import Any

from examples.shared import QUESTION, TOO_LONG, TOOL_QUESTION, city_model, raises, weather_function
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelContextWindowExceededError


def hello() -> Any:
    agent = Agent("openai:gpt-5.2", instructions="Be concise, reply with one sentence.")
    assert agent.run_sync('Where does "hello world" come from?').output


def chat() -> Any:
    assert Agent("openai-chat:gpt-5.2").run_sync(QUESTION).output


def streamed() -> Any:
    assert list(Agent("openai:gpt-5.2").run_stream_sync(QUESTION).stream_text())


def tool() -> Any:
    weather = weather_function()
    Agent("openai:gpt-5.2", tools=[weather]).run_sync(TOOL_QUESTION)
    assert weather.called


def output_type() -> Any:
    assert Agent("openai:gpt-5.2", output_type=city_model()).run_sync(QUESTION).output.city


def native_output() -> Any:
    agent = Agent("openai-chat:gpt-5.2", output_type=NativeOutput(city_model()))
    assert agent.run_sync(QUESTION).output.city


def errors() -> Any:
    for model in ("openai:gpt-5.2", "openai-chat:gpt-5.2"):
        agent = Agent(model)
        raises(ModelContextWindowExceededError, lambda agent=agent: agent.run_sync(TOO_LONG))
