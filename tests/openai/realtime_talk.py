"""Steps of a conversation on `/v1/realtime` with OpenAI's own Python client, which checks every
event strictly."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import numpy as np
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from tests.openai.sdk_client import talking as serving
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack

from parley.models.parrot import Parrot

RATE_HZ = 24_000
ENERGY: dict[str, Any] = {"vad": "energy"}


def tone(seconds: float) -> str:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    samples = 0.4 * np.sin(2 * np.pi * 300 * t) * 32767
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


def noise(seconds: float) -> str:
    """What interrupts: a steady tone while an answer is heard is taken for an echo of it."""
    rng = np.random.default_rng(1)
    samples = 0.2 * rng.standard_normal(round(seconds * RATE_HZ)) * 32767
    return base64.b64encode(samples.clip(-32767, 32767).astype("<i2").tobytes()).decode()


def quiet(seconds: float) -> str:
    return base64.b64encode(bytes(2 * round(seconds * RATE_HZ))).decode()


class Talk:
    """A connection that keeps its events."""

    schema: ClassVar[TypeAdapter[Any]] = TypeAdapter(RealtimeServerEvent)

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[Any] = []

    async def next(self) -> Any:
        async with asyncio.timeout(HANG_S):
            raw = await self.connection.recv_bytes()
        event = self.schema.validate_json(raw, strict=True)
        assert type(event).__name__ != "dict"
        assert event.type == json.loads(raw)["type"]
        self.events.append(event)
        return event

    async def until(self, type_name: str) -> Any:
        while True:
            event = await self.next()
            if event.type == type_name:
                return event
            assert event.type != "error", event

    async def error(self) -> Any:
        while (event := await self.next()).type != "error":
            pass
        return event.error

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def deltas(self, kind: str) -> list[Any]:
        """What each `response.KIND.delta` carries."""
        return [event.delta for event in self.events if event.type == f"response.{kind}.delta"]

    def sound(self) -> bytes:
        return b"".join(map(base64.b64decode, self.deltas("output_audio")))

    async def say(self, seconds: float = 1.0, sound: Callable[[float], str] = tone) -> None:
        """Speak, and fall silent."""
        for _ in range(round(seconds * 10)):
            await self.connection.input_audio_buffer.append(audio=sound(0.1))
        for _ in range(10):
            await self.connection.input_audio_buffer.append(audio=quiet(0.1))

    async def send(self, **message: Any) -> None:
        await self.connection.send(message)

    async def set(self, **session: Any) -> Any:
        """The session, once it is changed."""
        await self.send(type="session.update", session={"type": "realtime", **session})
        return (await self.until("session.updated")).session

    async def add(self, **item: Any) -> Any:
        await self.send(type="conversation.item.create", item=item)
        return await self.until("conversation.item.done")

    async def write(self, text: str, **more: Any) -> Any:
        return await self.add(**message(text, **more))

    async def result(self, call: Any, output: str) -> None:
        """Of a function that an answer called."""
        await self.add(type="function_call_output", call_id=call.call_id, output=output)

    async def answer(self, **response: Any) -> Any:
        """The whole answer to what is there."""
        asked = {"response": response} if response else {}
        await self.send(type="response.create", **asked)
        return (await self.until("response.done")).response

    async def truncate(self, item: Any, heard_ms: int) -> None:
        """Tell how much of an answer was heard."""
        await self.connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=heard_ms
        )


def message(*content: Any, **more: Any) -> dict[str, Any]:
    """An item of the user's; a string is words."""
    parts = [{"type": "input_text", "text": p} if isinstance(p, str) else p for p in content]
    return {"type": "message", "role": "user", "content": parts, **more}


@contextlib.asynccontextmanager
async def talking(
    model: Parrot | None = None, **parts: Any
) -> AsyncIterator[tuple[RunningStack, Talk]]:
    async with (
        serving(model, worker=ENERGY, **parts) as (running, client),
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        talk = Talk(connection)
        await talk.until("session.created")
        yield running, talk
