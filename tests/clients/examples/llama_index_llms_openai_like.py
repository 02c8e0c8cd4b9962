import os
from typing import Any

from examples.shared import QUESTION, TOOL_QUESTION, refused, weather_function
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def complete() -> Any:
    model = OpenAILike(
        model="m", api_base=os.environ["OPENAI_BASE_URL"], api_key="any", is_chat_model=True
    )
    assert model.complete(QUESTION).text


def predict_and_call() -> Any:
    weather = weather_function()
    tool = FunctionTool.from_defaults(fn=weather, name="get_weather")
    model = OpenAILike(
        model="m",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key="any",
        is_chat_model=True,
        is_function_calling_model=True,
    )
    model.predict_and_call([tool], TOOL_QUESTION)
    assert weather.called


@refused("/v1/chat/completions")
def text_completion() -> Any:
    base = os.environ["OPENAI_BASE_URL"]
    OpenAILike(model="m", api_base=base, api_key="any", max_retries=0).complete(QUESTION)
