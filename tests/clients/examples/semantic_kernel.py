import asyncio
from typing import Any

from examples.shared import QUESTION, city_model
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.functions import KernelArguments, kernel_function


def _agent(**more: Any) -> Any:
    return ChatCompletionAgent(
        service=OpenAIChatCompletion(), name="SK-Assistant", instructions="You help.", **more
    )


def agent() -> Any:
    assert str(asyncio.run(_agent().get_response(messages=QUESTION)).content)


def streamed() -> Any:
    async def run() -> str:
        stream = _agent().invoke_stream(messages=QUESTION)
        return "".join([str(piece.content) async for piece in stream])

    assert asyncio.run(run())


def plugin() -> Any:
    called = []

    class MenuPlugin:
        @kernel_function(description="Price of the requested menu item.")
        def get_item_price(self, menu_item: str) -> str:
            called.append(menu_item)
            return "$9.99"

    agent = _agent(plugins=[MenuPlugin()])
    asyncio.run(agent.get_response(messages="What is the price of the soup special?"))
    assert called


def response_format() -> Any:
    settings = OpenAIChatPromptExecutionSettings(response_format=city_model())
    agent = _agent(arguments=KernelArguments(settings))
    found = asyncio.run(agent.get_response(messages=QUESTION))
    assert city_model().model_validate_json(str(found.content))
