"""The three ways of talking, through the engine and the public views."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.contracts.conversations import picture, voice
from tests.support.small_minicpmo import small_model

from parley.engine import Engine
from parley.protocol.values import DuplexConfig, Generation
from parley.views.chat import ChatView
from parley.views.content import AudioPart, ImagePart, Message
from parley.views.duplex import DuplexView
from parley.views.half_duplex import HalfDuplexView, TurnRequest


@pytest.fixture
async def engine():
    async with Engine(small_model(slots=3)) as engine:
        await engine.warm_up()
        yield engine


async def _chat(engine: Engine) -> str:
    async with await engine.take_slot() as slot:
        view = ChatView(slot)
        message = Message.of("user", "What is it?", AudioPart(voice(1.2)), ImagePart(picture()))
        await view.prefill("c", [message], seed=4)
        chunks = [
            chunk async for chunk in view.streaming_generate("c", Generation(max_new_tokens=20))
        ]
        text = "".join(chunk.text_delta or "" for chunk in chunks)
        assert view.decoded is not None
        assert text == view.decoded.text
        return text


async def _turns(engine: Engine) -> str:
    async with await engine.take_slot() as slot:
        view = HalfDuplexView(slot)
        await view.reset_session("h", seed=5)
        said: list[str] = []
        await view.prefill(TurnRequest("h", (Message.of("system", "Be brief."),)))
        for number in range(2):
            await view.prefill(
                TurnRequest("h", (Message.of("user", AudioPart(voice(1.0, number))),))
            )
            chunks = [chunk async for chunk in view.generate("h", Generation(max_new_tokens=12))]
            said += [chunk.text_delta or "" for chunk in chunks]
        return "".join(said)


async def _units(engine: Engine) -> str:
    async with await engine.take_slot() as slot:
        view = DuplexView(slot)
        await view.prepare("Hello.", voice(1.0), options=DuplexConfig(force_listen_count=1), seed=6)
        said = []
        for number in range(5):
            heard = await view.prefill(voice(1.0, number), [picture(seed=number)])
            assert heard.success
            result = await view.generate()
            said.append(result.text)
            if not result.is_listen and result.audio is not None:
                assert np.isfinite(result.audio.samples).all()
            await view.finalize()
        assert said[0] == ""
        return "|".join(said)


async def test_three_ways_at_once_say_what_each_says_alone(engine):
    alone = [await way(engine) for way in (_chat, _turns, _units)]

    together = await asyncio.gather(_chat(engine), _turns(engine), _units(engine))

    assert list(together) == alone
    assert any(alone)
