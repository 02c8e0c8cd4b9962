from typing import Any

import instructor
from examples.shared import asked, city_model


def _instructed(mode: str = "", **more: Any) -> Any:
    if mode:
        more["mode"] = getattr(instructor.Mode, mode)
    return instructor.from_provider("openai/gpt-4o-mini", **more)


def response_model() -> Any:
    assert _instructed().chat.completions.create(response_model=city_model(), messages=asked()).city


def partial_streamed() -> Any:
    pieces = _instructed().chat.completions.create_partial(
        response_model=city_model(), messages=asked()
    )
    assert list(pieces)[-1].city


def json_schema() -> Any:
    client = _instructed("JSON_SCHEMA")
    assert client.chat.completions.create(response_model=city_model(), messages=asked()).city


def responses_tools() -> Any:
    client = _instructed("RESPONSES_TOOLS")
    assert client.chat.completions.create(response_model=city_model(), messages=asked()).city
