"""The first examples of the SDKs' own READMEs: only address, key and model are changed. Runs in the
environment where they are installed, and knows nothing of the server.

    first_examples.py URL CLIENT     one JSON line for each example, then {"what": "end"}
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

QUESTION = "What is the capital of Italy?"
EXAMPLES: dict[str, list[tuple[str, Callable[[], Any]]]] = {}


def example(client: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Marks an example of a client (a package's name)."""

    def keep(run: Callable[[], Any]) -> Callable[[], Any]:
        name = run.__name__.removeprefix(client.replace("-", "_") + "_").replace("_", " ")
        EXAMPLES.setdefault(client, []).append((name, run))
        return run

    return keep


def city_model() -> Any:
    from pydantic import BaseModel

    class City(BaseModel):
        city: str
        country: str

    return City


# ---- openai --------------------------------------------------------------------------------


@example("openai")
def openai_responses() -> Any:
    from openai import OpenAI

    return OpenAI().responses.create(model="gpt-5.2", instructions="Be brief.", input=QUESTION)


@example("openai")
def openai_responses_streamed() -> Any:
    from openai import OpenAI

    stream = OpenAI().responses.create(model="gpt-5.2", input=QUESTION, stream=True)
    (*_, last) = stream
    assert last.type == "response.completed", last
    return last.response.output_text


@example("openai")
def openai_responses_parse() -> Any:
    from openai import OpenAI

    found: Any = OpenAI().responses.parse(model="m", input=QUESTION, text_format=city_model())
    assert found.output_parsed.city
    return found.output_parsed


@example("openai")
def openai_chat() -> Any:
    from openai import OpenAI

    messages: Any = [{"role": "developer", "content": "Be brief."}]
    messages += [{"role": "user", "content": QUESTION}]
    return OpenAI().chat.completions.create(model="gpt-5.2", messages=messages)


@example("openai")
def openai_chat_parse() -> Any:
    from openai import OpenAI

    messages: Any = [{"role": "user", "content": QUESTION}]
    found: Any = OpenAI().chat.completions.parse(
        model="m", messages=messages, response_format=city_model()
    )
    assert found.choices[0].message.parsed.city
    return found.choices[0].message.parsed


# ---- openai-agents -------------------------------------------------------------------------


@example("openai-agents")
def openai_agents_hello() -> Any:
    from agents import Agent, Runner

    agent = Agent(name="Assistant", instructions="You are a helpful assistant")
    return Runner.run_sync(agent, "Write a haiku about recursion in programming.").final_output


@example("openai-agents")
def openai_agents_streamed() -> Any:
    from agents import Agent, Runner

    async def run() -> Any:
        result = Runner.run_streamed(Agent(name="Joker", instructions="Be funny."), input="Joke!")
        async for _ in result.stream_events():
            pass
        return result.final_output

    # The loop that `run_sync` uses, too: its client belongs to it.
    return asyncio.get_event_loop_policy().get_event_loop().run_until_complete(run())


@example("openai-agents")
def openai_agents_function() -> Any:
    from agents import Agent, Runner, function_tool

    called = []

    @function_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return f"The weather in {city} is sunny."

    agent = Agent(name="Hello world", instructions="You help.", tools=[get_weather])
    answer = Runner.run_sync(agent, input="What's the weather in Tokyo?").final_output
    assert called, answer
    return answer


@example("openai-agents")
def openai_agents_output_type() -> Any:
    from agents import Agent, Runner

    agent = Agent(name="City", instructions="Name it.", output_type=city_model())
    return Runner.run_sync(agent, QUESTION).final_output.city


def main(url: str, client: str) -> None:
    """Run a client's examples."""
    os.environ.update(
        OPENAI_API_KEY="sk-any",
        OPENAI_BASE_URL=url,
        OPENAI_API_BASE=url,
        OPENAI_AGENTS_DISABLE_TRACING="1",
    )
    for name, run in EXAMPLES[client]:
        line = {"what": "example", "client": client, "version": version(client), "example": name}
        try:
            run()
        except Exception as error:
            print(json.dumps({**line, "problem": f"{type(error).__name__}: {error}"[:500]}))
        else:
            print(json.dumps({**line, "problem": ""}))
    print(json.dumps({"what": "end"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
