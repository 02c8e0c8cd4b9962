"""A language model of the operator's own that is slow or fails, and what is said afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.models.cascade.endpoint import Script, scripted_endpoint
from tests.models.cascade.parts import LoudnessRecogniser, SizeEyes, ToneSpeaker
from tests.support.patience import HANG_S
from tests.support.sessions import Talk, WorkerHarness, feed, feed_in_time, worker_harness
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Ending, GenerateResult, Stage
from parley.models.cascade.connection import Endpoint
from parley.models.cascade.model import Cascade
from parley.models.cascade.remote import RemoteWriter
from parley.protocol.control import StopTurn
from parley.vad.energy import EnergyDetector
from parley.views.half_duplex import HalfDuplexView
from parley.views.turns import StreamingChunk

SENTENCE = sound(silence(0.5), speak(1.5), silence(1.2))
NEXT = sound(silence(0.5), speak(2.5), silence(1.2))


@asynccontextmanager
async def talking(
    script: Script, *, mode: str = "off", answers_early: bool = True
) -> AsyncIterator[tuple[WorkerHarness, Talk]]:
    with scripted_endpoint(script) as url:
        writer = RemoteWriter(Endpoint(url, "scripted", timeout_s=HANG_S), rows=1, limit_tokens=999)
        model = Cascade(
            writer, LoudnessRecogniser(), ToneSpeaker(), SizeEyes(), EnergyDetector,
            rows=1, answers_early=answers_early,
        )  # fmt: skip
        async with worker_harness(clock=ManualClock(), model=model) as harness:
            yield (
                harness,
                await harness.ready("half_duplex", config={}, interruption={"mode": mode}),
            )


@pytest.mark.parametrize("mode", ["off", "stop"])
@pytest.mark.parametrize("kind", ["thinks", "hangs", "is_mute"])
async def test_who_stops_an_answer_and_speaks_is_heard(kind, mode):
    script = Script()
    setattr(script, kind, True)
    async with talking(script, mode=mode) as (harness, talk):
        await feed_in_time(talk, SENTENCE)
        await talk.until("generating")
        # A request that was not sent yet when its turn is stopped is never sent.
        assert await asyncio.to_thread(script.asked.wait, HANG_S)

        assert harness.host.stop_turn(StopTurn("r", talk.lease.lease_id))
        stopped = await talk.until("turn_done")
        feed(talk, NEXT.slice(0, 32_000), chunk_s=0.1)
        assert await asyncio.to_thread(script.gone.wait, HANG_S)
        setattr(script, kind, False)
        feed(talk, NEXT.slice(32_000), chunk_s=0.1)
        second = await talk.until("generating", 2)
        answered = await talk.until("turn_done", 2)

    assert stopped["interrupted"] is True
    assert second["speech_duration_ms"] > 2300
    assert answered["text"] == "Hello from far away."
    assert [line["role"] for line in script.requests[-1]["messages"]][-1] == "user"


async def test_an_early_answer_to_a_turn_that_was_stopped_meanwhile_is_stopped_too():
    script = Script(thinks=True)
    async with talking(script) as (harness, talk):
        harness.gate.shut(Stage.PREFILL)
        await feed_in_time(talk, SENTENCE)
        await talk.until("generating")
        assert harness.host.stop_turn(StopTurn("r", talk.lease.lease_id))
        await talk.until("turn_done")
        harness.gate.open()

        # Whether its request was sent before or after the stop, it does not stay open.
        await asyncio.sleep(0.2)
        assert not script.requests or await asyncio.to_thread(script.gone.wait, HANG_S)


async def test_what_is_said_while_a_failed_turn_is_taken_back_is_heard(monkeypatch):
    reached, released = asyncio.Event(), asyncio.Event()
    rollback = HalfDuplexView.rollback

    async def fails(view, *_, **__):
        view.decoded = GenerateResult(Ending.DONE, "", True, 0, 0, 0, problem="It is away.")
        yield StreamingChunk(0, is_final=True)

    async def slow(view):
        monkeypatch.undo()
        reached.set()
        await released.wait()
        return await rollback(view)

    monkeypatch.setattr(HalfDuplexView, "generate", fails)
    monkeypatch.setattr(HalfDuplexView, "rollback", slow)
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await harness.ready("half_duplex", config={})
        feed(talk, SENTENCE)
        first = await talk.until("turn_done")
        async with asyncio.timeout(HANG_S):
            await reached.wait()
        feed(talk, NEXT, chunk_s=0.1)
        await talk.drained()
        released.set()
        second = await talk.until("generating", 2)

    assert first["failed"] is True
    assert second["speech_duration_ms"] > 2300
