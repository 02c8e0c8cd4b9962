import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from examples.shared import QUESTION, city_model
from livekit.agents import function_tool, utils
from livekit.agents.llm import ChatContext
from livekit.plugins import openai


def _run(example: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with utils.http_context.open():
            await example()

    asyncio.run(run())


async def _text(model: Any = None, **more: Any) -> tuple[str, list[Any]]:
    """Words and calls of an answer."""
    context = ChatContext.empty()
    context.add_message(role="user", content=QUESTION)
    text, calls = "", []
    model = model or openai.LLM(model="gpt-5.2")
    async with model.chat(chat_ctx=context, **more) as stream:
        async for chunk in stream:
            if chunk.delta is not None:
                text += chunk.delta.content or ""
                calls += chunk.delta.tool_calls
    return text, calls


def llm() -> Any:
    async def run() -> None:
        assert (await _text())[0]

    _run(run)


def function() -> Any:
    @function_tool
    async def lookup_weather(location: str) -> str:
        """Used to look up weather information."""
        return location

    async def run() -> None:
        _, calls = await _text(tools=[lookup_weather])
        assert calls[0].name == "lookup_weather"

    _run(run)


def response_format() -> Any:
    async def run() -> None:
        text, _ = await _text(response_format=city_model())
        assert city_model().model_validate_json(text)

    _run(run)


def responses_by_websocket() -> Any:
    async def run() -> None:
        address = os.environ["OPENAI_BASE_URL"] + "/responses"
        model = openai.responses.LLM(model="gpt-5.2", base_url=address)
        assert (await _text(model))[0]
        await model.aclose()

    _run(run)


def speech_and_transcription() -> Any:
    async def run() -> None:
        async with openai.TTS(model="gpt-4o-mini-tts", voice="ash").synthesize(QUESTION) as stream:
            frame = await stream.collect()
        found = await openai.STT(model="gpt-4o-transcribe").recognize(buffer=frame)
        assert "Italy" in found.alternatives[0].text

    _run(run)
