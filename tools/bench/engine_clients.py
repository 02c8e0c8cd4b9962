"""The clients of `python -m tools.bench engine`, in a separate process.

`python -m tools.bench.engine_clients GATEWAY_URL SESSIONS SECONDS`: the conversations use the
dialects in turn, alternate between speech and silence for the given time, and send a picture per
second if their dialect has pictures. Prints `ready` when all have started, and finally the number
of answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any, Final

import uvloop
from PIL import Image
from tools.bench.relay_parts import raise_file_limit

from parley.cli.bench.model import SPEECH_UNITS, made_up_picture, made_up_speech
from parley.cli.bench.talkers import OpenAILiveTalker, OpenAIRealtimeTalker, send
from parley.client.duplex import DuplexClient, UnitClient
from parley.client.events import Listening, Speaking
from parley.client.live import LiveClient
from parley.client.realtime import RealtimeClient
from parley.errors import ParleyError
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.values import DuplexConfig, InterruptionOptions

PIECES: Final = 10
"""Messages per second in dialects that stream."""

READY_S: Final = 60.0

_HEEDS: Final = InterruptionOptions()
_EAGER: Final = DuplexConfig(force_listen_count=0)

MAKERS: Final[tuple[Callable[[str], LiveClient], ...]] = (
    lambda url: DuplexClient(url, config=_EAGER),
    lambda url: OpenAILiveTalker(url, {}, _HEEDS),
    lambda url: RealtimeClient(url, mode="video", config=_EAGER),
    lambda url: OpenAIRealtimeTalker(url, {}, _HEEDS),
)


async def run(url: str, sessions: int, seconds: float) -> None:
    """Run all conversations, with their starts spread over a second."""
    photo = io.BytesIO()
    Image.fromarray(made_up_picture()).save(photo, "JPEG")
    clients = [MAKERS[index % len(MAKERS)](url) for index in range(sessions)]
    async with contextlib.AsyncExitStack() as stack:
        for client in clients:
            await stack.enter_async_context(client)
        await asyncio.gather(*(client.ready(timeout_s=READY_S) for client in clients))
        print("ready", flush=True)
        begin_s = asyncio.get_running_loop().time()
        answers = await asyncio.gather(
            *(
                _talk(client, photo.getvalue(), begin_s + index / sessions, seconds)
                for index, client in enumerate(clients)
            )
        )
        print(sum(answers), flush=True)


async def _talk(client: LiveClient, photo: bytes, begin_s: float, seconds: float) -> int:
    """Run one conversation in real time; returns the number of answers."""
    reading = asyncio.create_task(_read(client))
    loop = asyncio.get_running_loop()
    pieces = 1 if isinstance(client, UnitClient) else PIECES
    for index in range(round(seconds * pieces)):
        await asyncio.sleep(max(0.0, begin_s + index / pieces - loop.time()))
        sound = _piece(index / pieces, 1 / pieces)
        if isinstance(client, UnitClient):
            client.send_unit(sound, frames=[photo])
        else:
            send(client, sound)
    await asyncio.sleep(1.0)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await reading
    return 0


async def _read(client: Any) -> int:
    count = 0
    try:
        async for event in client:
            count += isinstance(event, Speaking | Listening)
    except asyncio.CancelledError:
        pass
    return count


_SPEECH = made_up_speech(SPEECH_UNITS)


def _piece(start_s: float, length_s: float) -> Pcm:
    """The audio at a time of the conversation: alternating speech and silence."""
    place = round(start_s * INPUT_RATE_HZ)
    length = round(length_s * INPUT_RATE_HZ)
    if int(start_s) // SPEECH_UNITS % 2:
        return Pcm.silence(length, INPUT_RATE_HZ)
    return _SPEECH.slice(place % len(_SPEECH), place % len(_SPEECH) + length)


def main(words: list[str]) -> None:
    """Run the clients."""
    raise_file_limit()
    url, sessions, seconds = words
    try:
        uvloop.run(run(url, int(sessions), float(seconds)))
    except ParleyError as error:
        raise SystemExit(f"a conversation failed: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
