"""Messages of a client of the whole server, and helpers to send and receive them in each
dialect."""

import asyncio
import base64
import contextlib
import json
from typing import Any

import numpy as np
from tests.support.patience import HANG_S
from tests.support.timeline import silence, sound, speak
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, from_float32_bytes, to_float32_bytes
from parley.media.resample import resample

Message = dict[str, Any]


def b64(data: Pcm | bytes) -> str:
    """Audio or a file as clients send it."""
    return base64.b64encode(to_float32_bytes(data) if isinstance(data, Pcm) else data).decode()


def pcm16(pcm: Pcm) -> str:
    """Audio in the encoding of OpenAI's dialects."""
    samples = resample(pcm, 24_000).samples * 32767
    return b64(samples.astype("<i2").tobytes())


def heard(message: Message, field: str) -> Pcm:
    """Audio in a server's message; empty if it contains none."""
    return from_float32_bytes(base64.b64decode(message[field] or ""), OUTPUT_RATE_HZ)


LOUD = b64(sound(speak(1.0)))
QUIET = b64(sound(silence(1.0)))


def tone(level: float, seconds: float = 1.0) -> str:
    """A tone of recognisable loudness, which the parrot reports."""
    count = round(seconds * 16_000)
    wave = level * np.sin(2 * np.pi * 220 * np.arange(count) / 16_000)
    return b64(Pcm(wave.astype(np.float32), 16_000))


async def hear(socket: ClientConnection, limit_s: float = HANG_S) -> Message:
    async with asyncio.timeout(limit_s):
        return json.loads(await socket.recv())


async def end_of(socket: ClientConnection) -> tuple[list[Message], int]:
    """The remaining messages, and the close code."""
    messages = []
    async with asyncio.timeout(HANG_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                messages.append(json.loads(await socket.recv()))
        await socket.wait_closed()
    assert socket.close_code is not None
    return messages, socket.close_code


async def hear_until(
    socket: ClientConnection, kind: str, limit_s: float = HANG_S
) -> tuple[list[Message], Message]:
    """All messages before the first one of a type, and that message."""
    before: list[Message] = []
    async with asyncio.timeout(limit_s):
        while (message := json.loads(await socket.recv()))["type"] != kind:
            before.append(message)
    return before, message


async def say(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def begin_half_duplex(socket: ClientConnection, **options: Any) -> None:
    """Prepare a session and wait until it listens."""
    await hear_until(socket, "queue_done")
    await say(socket, type="prepare", **options)
    await hear_until(socket, "prepared")


async def ask_aloud(socket: ClientConnection) -> None:
    """Send one second of voice and enough silence to end a turn, as a microphone does.

    It is repeated until the server answers, which does not listen in the first half second after
        `prepared`.
    """
    turn = sound(speak(1.0), silence(1.5))
    chunks = [b64(turn.slice(at, at + 8000)) for at in range(0, len(turn), 8000)]
    heard: asyncio.Task[Any] = asyncio.create_task(hear_until(socket, "generating"))
    while not heard.done():
        for chunk in chunks:
            await say(socket, type="audio_chunk", audio_base64=chunk)
        await asyncio.wait({heard}, timeout=0.3)
    heard.result()


async def begin_duplex(socket: ClientConnection, **options: Any) -> Message:
    await hear_until(socket, "queue_done")
    await say(socket, type="prepare", **options)
    return (await hear_until(socket, "prepared"))[1]


async def begin_realtime(socket: ClientConnection) -> Message:
    await hear_until(socket, "session.queue_done")
    await say(socket, type="session.update", session={"instructions": "Be kind."})
    return (await hear_until(socket, "session.created"))[1]


PATHS = {
    "chat": "/ws/chat",
    "half_duplex": "/ws/half_duplex/hdx_1",
    "duplex": "/ws/duplex/omni_1",
    "realtime": "/v1/realtime?mode=audio",
}
ASK = {"messages": [{"role": "user", "content": "How are you?"}]}
