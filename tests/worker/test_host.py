from __future__ import annotations

import asyncio

import pytest
from tests.support.sessions import house, loud

from parley.engine.work import Stage
from parley.protocol.control import EndSession, SessionPhase
from parley.protocol.dialects import DialectName

HELLO = {"messages": [{"role": "user", "content": "Hello there, parrot!"}]}


def unit(**more) -> dict:
    return {"type": "audio_chunk", "audio_base64": loud(), **more}


async def test_a_second_session_on_a_busy_worker_is_refused_with_try_later():
    async with house() as home:
        await home.ready("duplex", "one")
        dialects: tuple[DialectName, ...] = ("duplex", "chat", "half_duplex")
        for dialect in dialects:
            other = home.begin(dialect, "two")
            assert await other.over() == 1013
            assert other.socket.sent[0]["code"] == "worker_busy"
            assert other.socket.sent[0]["error"] == "No idle worker is available."
        realtime = home.begin("realtime", "three")
        assert await realtime.over() == 1013
        assert realtime.socket.sent[0]["error"]["code"] == "worker_busy"


async def test_two_slots_hold_two_sessions():
    async with house(slots=2) as home:
        one = await home.ready("duplex", "one")
        two = await home.ready("half_duplex", "two")
        third = home.begin("chat", "three")

        assert await third.over() == 1013
        assert one.socket.closed is None
        assert two.socket.closed is None
        assert home.host.free_slots == 0


async def test_a_newcomer_waits_for_a_session_that_is_being_cleaned_up():
    async with house() as home:
        first = await home.ready("duplex", "one")
        home.gate.shut(Stage.DECODE)
        first.say(unit())
        await home.gate.arrived()
        first.socket.hang_up()
        await _until(lambda: home.host.state == "cleanup")

        second = home.begin("chat", "two")
        second.say(HELLO)
        await asyncio.sleep(0)
        assert second.types == []
        home.gate.open()

        assert await second.over() == 1000
        assert second.types[-1] == "done"


async def test_a_newcomer_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("parley.worker.host.CLEANUP_GRACE_S", 0.01)
    async with house() as home:
        first = await home.ready("duplex", "one")
        home.gate.shut(Stage.DECODE)
        first.say(unit())
        await home.gate.arrived()
        first.socket.hang_up()
        await _until(lambda: home.host.state == "cleanup")

        second = home.begin("chat", "two")

        assert await second.over() == 1013
        home.gate.open()


async def test_idle_is_reported_only_when_the_model_has_let_go():
    async with house() as home:
        talk = home.begin("chat")
        home.gate.shut(Stage.DECODE)
        talk.say(HELLO)
        await home.gate.arrived()
        talk.socket.hang_up()
        await _until(lambda: home.host.state == "cleanup")

        assert home.host.free_slots == 0
        assert home.host.beat().free_slots == 0
        assert home.phases(talk)[-1] == "cleanup"
        home.gate.open()
        await talk.over()

        assert home.phases(talk)[-1] == "ended"
        assert home.host.state == "idle"
        assert home.host.beat().free_slots == 1


async def test_a_slot_that_does_not_come_back_makes_the_worker_an_error():
    async with house(cleanup_limit_s=0.05) as home:
        talk = home.begin("chat")
        home.gate.shut(Stage.DECODE)
        talk.say(HELLO)
        await home.gate.arrived()
        talk.socket.hang_up()
        await asyncio.wait_for(home.host.broken.wait(), 10)

        assert home.host.state == "error"
        assert home.host.health()["status"] == "error"
        refused = home.begin("chat")
        assert await refused.over() == 1013
        assert refused.socket.sent[0]["code"] == "service_unavailable"
        home.gate.open()
        await talk.over()


async def test_a_lost_device_ends_every_session_and_is_an_error():
    async with house(slots=2) as home:
        one = await home.ready("duplex", "one")
        two = await home.ready("realtime", "two")
        home.engine._loop._fault = "fault"
        home.engine._break()
        one.say(unit())
        two.say({"type": "input_audio_buffer.append", "audio": loud()})

        assert await one.over() == 1011
        assert await two.over() == 1011
        assert two.socket.sent[-1] == {"type": "session.closed", "reason": "error"}
        assert home.host.state == "error"
        home.host.broken.set()


async def test_leaving_lets_requests_finish_ends_conversations_and_refuses_newcomers():
    async with house(slots=3) as home:
        live = await home.ready("duplex", "live")
        home.gate.shut(Stage.DECODE)
        request = home.begin("chat", "request")
        request.say(HELLO)
        await home.gate.arrived()

        home.host.leave(20.0)
        newcomer = home.begin("chat", "newcomer")
        assert await newcomer.over() == 1013
        assert await live.socket.until_closed() == 1001
        assert not home.host.leaving.is_set()
        home.gate.open()

        assert await request.over() == 1000
        assert request.types[-1] == "done"
        await asyncio.wait_for(home.host.leaving.wait(), 10)


async def test_leaving_ends_requests_when_the_time_is_over():
    async with house() as home:
        home.gate.shut(Stage.DECODE)
        request = home.begin("chat", "request")
        request.say(HELLO)
        await home.gate.arrived()

        home.host.leave(0.01)

        assert await request.socket.until_closed() == 1001
        home.gate.open()
        await asyncio.wait_for(home.host.leaving.wait(), 10)


@pytest.mark.parametrize(
    ("dialect", "reason", "close_code", "last"),
    [
        ("duplex", "server_shutdown", 1001, "error"),
        ("duplex", "cancelled", 1000, "stopped"),
        ("half_duplex", "cancelled", 1000, "stopped"),
        ("realtime", "server_shutdown", 1001, "session.closed"),
    ],
)
async def test_a_session_can_be_ended_from_outside(dialect, reason, close_code, last):
    async with house() as home:
        talk = await home.ready(dialect, "it")
        home.host.end_session(EndSession("it", reason))

        assert await talk.over() == close_code
        assert talk.types[-1] == last


async def test_a_beat_counts_stages_units_and_errors_since_the_last_one():
    async with house() as home:
        talk = await home.ready("duplex")
        home.host.beat()
        talk.say(unit())
        await talk.until("result")
        talk.say({"type": "sing"})
        await talk.until("error")
        talk.say({"type": "stop"})
        await talk.over()
        beat, next_beat = home.host.beat(), home.host.beat()

        assert beat.total_requests == 1
        assert sum(beat.stages["unit"].counts) == 1
        assert sum(beat.stages["encode"].counts) == 1
        assert beat.stages["unit"].sum_ms > 0
        assert beat.answers == {"omni_duplex": beat.stages["unit"]}
        assert beat.errors == {"unknown_event": 1}
        assert beat.avg_inference_time_ms > 0
        assert next_beat.stages == next_beat.answers == {}
        assert next_beat.errors == {}


async def test_health_tells_what_is_going_on():
    async with house() as home:
        idle = home.host.health()
        await home.ready("half_duplex", "hdx_1")
        busy = home.host.health()

        assert (idle["status"], idle["worker_status"]) == ("healthy", "idle")
        assert idle["current_session_id"] is None
        assert busy["worker_status"] == "busy_half_duplex"
        assert busy["current_session_id"] == "hdx_1"
        assert busy["total_requests"] == 1
        assert busy["kv_cache_length"] > 0


async def test_living_sessions_are_described_for_a_gateway_that_returns():
    async with house(slots=2) as home:
        await home.ready("duplex", "one")
        home.begin("half_duplex", "two")
        await asyncio.sleep(0)

        described = {phase.session_id: phase for phase in home.host.living()}

        assert described["one"].phase == "active"
        assert described["one"].was_ready
        assert described["two"].phase == "preparing"
        assert not described["two"].was_ready


async def test_phases_of_a_request():
    async with house() as home:
        talk = home.begin("chat")
        talk.say(HELLO)
        await talk.over()

        assert home.phases(talk) == ["preparing", "generating", "cleanup", "ended"]
        last = home.reports[-1]
        assert isinstance(last, SessionPhase)
        assert last.was_ready


async def test_a_session_that_is_cancelled_gives_its_slot_back():
    async with house() as home:
        talk = await home.ready("duplex")
        talk.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talk.task
        await _until(lambda: home.engine.free_slots == 1)
        home._talks.clear()

        assert talk.socket.close_code == 1001


async def _until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
