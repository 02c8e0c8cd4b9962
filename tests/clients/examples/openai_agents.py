import asyncio
from typing import Any

from agents import Agent, Runner, function_tool
from examples.shared import QUESTION, city_model


def hello() -> Any:
    agent = Agent(name="Assistant", instructions="You are a helpful assistant")
    return Runner.run_sync(agent, "Write a haiku about recursion in programming.").final_output


def streamed() -> Any:
    async def run() -> Any:
        result = Runner.run_streamed(Agent(name="Joker", instructions="Be funny."), input="Joke!")
        async for _ in result.stream_events():
            pass
        return result.final_output

    # The loop that `run_sync` uses, too: its client belongs to it.
    return asyncio.get_event_loop_policy().get_event_loop().run_until_complete(run())


def function() -> Any:
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


def output_type() -> Any:
    agent = Agent(name="City", instructions="Name it.", output_type=city_model())
    return Runner.run_sync(agent, QUESTION).final_output.city
