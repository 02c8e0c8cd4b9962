"""Never silent without reason: what clients with extensions are told while nothing comes."""

import pytest
from tests.support.sessions import loud, pcm64, worker_harness
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Stage
from parley.session.silence import DEADLINE


async def test_a_model_that_lets_wait_is_told_again_after_twice_the_time():
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await harness.ready("half_duplex")
        harness.gate.shut(Stage.DECODE)
        question = sound(silence(0.5), speak(1.0), silence(1.2))
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(question)})
        await harness.gate.arrived()
        await harness.pass_time(2.0, due=DEADLINE)
        await harness.pass_time(3.9, due=DEADLINE)
        await harness.pass_time(0.1, due=DEADLINE)
        harness.gate.open()
        await talk.until("turn_done")

        told = [message for message in talk.socket.sent if message["type"] == "status"]
        assert told == [
            {"type": "status", "reason": "waiting_for_model", "elapsed_ms": ms}
            for ms in (2000, 6000)
        ]
        assert harness.host.meter.counts.silences == {"waiting_for_model": 2}


async def test_speech_without_an_end_is_told():
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await harness.ready("half_duplex")
        speech = sound(silence(0.3), speak(1.0))
        talk.say({"type": "audio_chunk", "audio_base64": pcm64(speech)})
        await talk.until("vad_state")
        await harness.pass_time(10.0, due=DEADLINE)

        assert (await talk.until("status"))["reason"] == "speech_is_heard"


@pytest.mark.parametrize(
    ("dialect", "type_", "field", "told"),
    [
        ("duplex", "audio_chunk", "audio_base64", "status"),
        ("realtime", "input_audio_buffer.append", "audio", "session.status"),
    ],
)
async def test_a_late_unit_is_told(dialect, type_, field, told):
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await harness.ready(dialect)
        harness.gate.shut(Stage.DECODE)
        talk.say({"type": type_, field: loud()})
        await harness.gate.arrived()
        clock.advance(1.7)
        harness.gate.open()
        message = await talk.until(told)

        assert message["reason"] == "unit_late"
        assert message["elapsed_ms"] == pytest.approx(700, abs=1)


async def test_without_extensions_nothing_is_told():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await harness.ready("duplex", asks_for_extensions=False)
        harness.gate.shut(Stage.DECODE)
        talk.say({"type": "audio_chunk", "audio_base64": loud()})
        await harness.gate.arrived()
        clock.advance(5.0)
        harness.gate.open()
        await talk.until("result")

        assert "status" not in talk.types
