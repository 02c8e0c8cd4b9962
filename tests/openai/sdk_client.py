"""OpenAI's own Python client, with nothing changed but the address and the key, and a server for
it."""

import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any

from PIL import Image
from tests.openai.talking_model import TalkingModel
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack, running_stack

from openai import AsyncOpenAI
from parley.models.parrot import Parrot

QUESTION: list[Any] = [{"role": "user", "content": "hi"}]


def red_picture() -> bytes:
    """32 by 32 pixels, PNG."""
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    return file.getvalue()


def client_of(running: Any, **more: Any) -> AsyncOpenAI:
    """As a stranger would make it: always with some key."""
    settings = {"api_key": "sk-something", "max_retries": 0, "timeout": HANG_S, **more}
    return AsyncOpenAI(base_url=f"{running.url}/v1", **settings)


@contextlib.asynccontextmanager
async def talking(
    model: Parrot | None = None, **parts: Any
) -> AsyncIterator[tuple[RunningStack, AsyncOpenAI]]:
    made = model or TalkingModel()
    async with (
        running_stack(load_model=lambda: made, **parts) as running,
        client_of(running) as client,
    ):
        yield running, client


async def chat(client: AsyncOpenAI, **asked: Any) -> Any:
    return await client.chat.completions.create(**{"model": "m", "messages": QUESTION, **asked})


async def streamed_chat(client: AsyncOpenAI, **asked: Any) -> list[Any]:
    return [chunk async for chunk in await chat(client, stream=True, **asked)]


async def read_aloud(client: AsyncOpenAI, text: str = "hello", **asked: Any) -> Any:
    return await client.audio.speech.create(
        **{"model": "m", "voice": "alloy", "input": text, **asked}
    )


async def transcribe(client: AsyncOpenAI, file: tuple[str, bytes], /, **asked: Any) -> Any:
    return await client.audio.transcriptions.create(**{"model": "m", "file": file, **asked})


async def respond(client: AsyncOpenAI, **asked: Any) -> Any:
    return await client.responses.create(**{"model": "m", "input": "hi", **asked})
