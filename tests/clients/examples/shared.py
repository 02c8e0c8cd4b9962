"""What examples of several clients have in common."""

from collections.abc import Callable
from typing import Any

QUESTION = "What is the capital of Italy?"
TOOL_QUESTION = "What's the weather in Tokyo?"
TOO_LONG = "word " * 13_000
"""More than the context of any model in these tests."""


def refused(sentence: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Marks an example to which the server says `sentence`, or more, instead of an answer."""

    def mark(run: Callable[[], Any]) -> Callable[[], Any]:
        run.refused = sentence  # type: ignore[attr-defined]
        return run

    return mark


def city_model() -> Any:
    from pydantic import BaseModel

    class City(BaseModel):
        city: str
        country: str

    return City


def weather_function() -> Any:
    """A tool that counts its calls, as plain functions with a docstring are tools in most SDKs."""
    called: list[str] = []

    def get_weather(city: str) -> str:
        """Weather of a city."""
        called.append(city)
        return f"The weather in {city} is sunny."

    get_weather.called = called  # type: ignore[attr-defined]
    return get_weather


def asked() -> list[Any]:
    return [{"role": "user", "content": QUESTION}]


def raises(expected: type[Exception], run: Callable[[], Any]) -> None:
    """Fails unless the client raises its own error."""
    try:
        run()
    except expected:
        return
    raise AssertionError(f"no {expected.__name__}")
