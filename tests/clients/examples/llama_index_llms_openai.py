from typing import Any

from examples.shared import QUESTION, TOOL_QUESTION, city_model, weather_function
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI, OpenAIResponses


def _model() -> Any:
    return OpenAI(model="gpt-4o")


def complete() -> Any:
    assert _model().complete("Paul Graham is ").text


def stream_chat() -> Any:
    pieces = _model().stream_chat([ChatMessage(role="user", content=QUESTION)])
    assert "".join(piece.delta for piece in pieces)


def predict_and_call() -> Any:
    weather = weather_function()
    tool = FunctionTool.from_defaults(fn=weather, name="get_weather")
    _model().predict_and_call([tool], TOOL_QUESTION)
    assert weather.called


def structured_predict() -> Any:
    assert _model().structured_predict(city_model(), PromptTemplate(QUESTION)).city


def responses() -> Any:
    assert OpenAIResponses(model="gpt-4o").complete(QUESTION).text
