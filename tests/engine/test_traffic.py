"""An engine under all of it together: holders come and go, steps fail, answers are cancelled."""

import asyncio
import random

import pytest
from tests.support.faults import Failure
from tests.support.sounds import silence, speak

from parley.engine import Engine
from parley.engine.segments import Audio, Mark, Marker
from parley.engine.work import Generate, StartSession, StepUnit
from parley.errors import InferenceFailed, InvalidRequest
from parley.models.parrot import Parrot
from parley.protocol.values import DuplexConfig

SOUNDS = [speak(1.0), silence(1.0), speak(0.4)]


class Shaky:
    """A parrot some of whose steps fail, with all that takes part in them."""

    def __init__(self, rows, chance, share):
        self._parrot = Parrot(rows)
        self._chance = chance
        self._share = share
        self.failures = 0

    def __getattr__(self, name):
        return getattr(self._parrot, name)

    def step(self, stage, jobs):
        if self._chance.random() < self._share:
            self.failures += 1
            raise Failure("bad luck")
        self._parrot.step(stage, jobs)


async def duplex_tenant(engine, chance, tally):
    async with await engine.take_slot() as handle:
        options = DuplexConfig(force_listen_count=0)
        await handle.start(StartSession("duplex", seed=1, duplex=options))
        for _ in range(chance.randrange(1, 12)):
            checkpoint = await handle.checkpoint()
            try:
                await handle.prefill(
                    [Marker(Mark.UNIT), Audio(chance.choice(SOUNDS), "live")], due_s=chance.random()
                )
                decoding = handle.generate(StepUnit(force_listen=chance.random() < 0.1))
                if chance.random() < 0.2:
                    decoding.cancel()
                pieces = [piece async for piece in decoding]
                decoded = await decoding.result()
                assert decoded.text == "".join(piece.text for piece in pieces)
                await handle.finalize()
                tally["units"] += 1
            except InferenceFailed:
                await handle.roll_back(checkpoint)
                assert handle.context_tokens == checkpoint.context_tokens
                tally["failures"] += 1
            if chance.random() < 0.05:
                return


async def chat_tenant(engine, chance, tally):
    async with await engine.take_slot() as handle:
        await handle.start(StartSession("chat", seed=1))
        turn = [Marker(Mark.TURN_START, "user"), Audio(speak(3.0)), Marker(Mark.TURN_END, "user")]
        await handle.prefill(turn)
        decoding = handle.generate(Generate())
        if chance.random() < 0.3:
            return
        assert (await decoding.result()).text == "You spoke for 3.0 seconds at -13 dB."
        tally["replies"] += 1


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everybody_gets_through_and_nothing_is_left(seed, caplog):
    chance = random.Random(seed)
    tally = {"units": 0, "replies": 0, "failures": 0, "lost": 0}
    model = Shaky(4, random.Random(seed), share=0.02)

    async def holder(index):
        kind = chat_tenant if index % 3 == 0 else duplex_tenant
        try:
            await kind(engine, chance, tally)
        except (InferenceFailed, InvalidRequest):
            tally["lost"] += 1

    with caplog.at_level("CRITICAL"):
        async with Engine(model) as engine, asyncio.TaskGroup() as group:
            # Threads decide whom a failing step hits: enough holders that plenty get through.
            for index in range(300):
                group.create_task(holder(index))

    assert engine.context_tokens == 0
    assert model.memory().used_bytes == 0
    assert model.failures > 10
    assert tally["units"] > 200
    assert tally["replies"] > 20
    assert tally["failures"] > 0
