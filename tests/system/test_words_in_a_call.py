"""A running server with the pocket model, through the Python clients: what is written into a call
is answered aloud, and what is said is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support import speech
from tests.support.processes import running

from parley.client import DuplexClient, HalfDuplexClient, RealtimeClient
from parley.client.events import Event, Piece, Speaking, Transcript, TurnDone
from parley.media.pcm import OUTPUT_RATE_HZ, Pcm, join
from parley.protocol.half_duplex import Config
from parley.protocol.values import TurnGeneration

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ("--http", "--host", "127.0.0.1", "--port", "0")
    with running(tmp_path_factory.mktemp("words"), "serve", *flags) as process:
        process.line_with("ready after")
        yield process.url


def words_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece | Speaking | TurnDone))


def is_aloud(events: list[Event]) -> bool:
    sounds = [event.sound for event in events if isinstance(event, Piece | Speaking)]
    spoken = join([sound for sound in sounds if sound is not None], OUTPUT_RATE_HZ)
    return len(spoken) > 0 and float(np.sqrt(np.mean(spoken.samples**2))) > 0.01


async def turn(talk: HalfDuplexClient) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(120):
        async for event in talk:
            events.append(event)
            if isinstance(event, TurnDone):
                break
    return events


async def test_half_duplex(url: str) -> None:
    config = Config(transcribe=True, generation=TurnGeneration(temperature=0))
    async with HalfDuplexClient(url, config=config, record=False) as talk:
        await talk.ready(timeout_s=60)
        talk.write("What is the capital of Portugal?")
        written = await turn(talk)
        said = asyncio.create_task(talk.say(speech.say("What is the capital of France?", "en-us")))
        spoken = await turn(talk)
        await said

    assert "Lisbon" in words_of(written)
    assert is_aloud(written)
    assert not any(isinstance(event, Transcript) for event in written)
    assert is_aloud(spoken)
    (heard,) = [event.text for event in spoken if isinstance(event, Transcript)]
    assert "What is the capital" in heard


@pytest.mark.parametrize("kind", [DuplexClient, RealtimeClient])
async def test_units(url: str, kind: type[DuplexClient] | type[RealtimeClient]) -> None:
    async with kind(url, transcribe=True, record=False) as talk:
        await talk.ready(timeout_s=60)
        written = await answer(talk, "What is the capital of Portugal?", None)
        spoken = await answer(talk, "", speech.say("What is the capital of France?", "en-us"))

    assert "Lisbon" in words_of(written)
    assert is_aloud(written)
    assert "Paris" in words_of(spoken)
    (heard,) = [event.text for event in spoken if isinstance(event, Transcript)]
    # The recogniser is small: one of the short words between may be another.
    assert "capital" in heard
    assert "France" in heard


async def answer(talk: DuplexClient | RealtimeClient, text: str, pcm: Pcm | None) -> list[Event]:
    """What comes until the assistant has spoken to its end."""
    if text:
        talk.write(text)
    silence = Pcm.silence(1600, 16_000)
    saying = asyncio.create_task(talk.say(silence if pcm is None else pcm))
    events: list[Event] = []
    async with asyncio.timeout(120):
        async for event in talk:
            events.append(event)
            if isinstance(event, Speaking) and event.end_of_turn:
                break
    await saying
    return events
