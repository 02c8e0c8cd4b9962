from typing import Any

from examples.shared import (
    QUESTION,
    TOO_LONG,
    TOOL_QUESTION,
    city_model,
    raises,
    refused,
    weather_function,
)
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def _model() -> Any:
    return init_chat_model("openai:gpt-5.5")


def invoke() -> Any:
    assert _model().invoke("Hello, world!").text


def stream() -> Any:
    assert "".join(chunk.text for chunk in _model().stream(QUESTION))


def responses() -> Any:
    assert ChatOpenAI(model="gpt-5.5", use_responses_api=True).invoke(QUESTION).text


def agent() -> Any:
    weather = weather_function()
    agent = create_agent("openai:gpt-5.5", tools=[weather], system_prompt="You help.")
    agent.invoke({"messages": [{"role": "user", "content": TOOL_QUESTION}]})
    assert weather.called


def structured_output() -> Any:
    assert _model().with_structured_output(city_model()).invoke(QUESTION).city


def structured_by_function() -> Any:
    model = _model().with_structured_output(city_model(), method="function_calling")
    assert model.invoke(QUESTION).city


def errors() -> Any:
    raises(ContextOverflowError, lambda: _model().invoke(TOO_LONG))


@refused("make no embeddings")
def embeddings() -> Any:
    OpenAIEmbeddings(check_embedding_ctx_length=False).embed_query("Hello")
