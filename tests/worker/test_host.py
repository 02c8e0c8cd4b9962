import asyncio
import gc
import weakref
from typing import Any

import pytest
from tests.support.dialects import DialectName
from tests.support.patience import HANG_S, until
from tests.support.present import present
from tests.support.session_logs import FakeSessionLogs
from tests.support.sessions import Talk, WorkerHarness, feed, loud, worker_harness
from tests.support.sockets import FakeSocket
from tests.support.timeline import silence, sound, speak

from parley.dialects.events import ChatRequested, InterruptionChanged, SessionInterrupted
from parley.engine import loop
from parley.engine.engine import Engine
from parley.engine.loop import SlotRequest
from parley.engine.segments import Audio
from parley.engine.work import GenerateResult, Prefill, Result, Stage
from parley.protocol.control import (
    BUSY_STATUS,
    CUT_CODE,
    EndSession,
    HandOver,
    SessionPhase,
    StopResult,
    StopTurn,
)
from parley.protocol.kinds import Phase
from parley.protocol.resume import hash_of
from parley.session_log.redis_logs import RedisSessionLogs

HELLO = {"messages": [{"role": "user", "content": "Hello there, parrot!"}]}


def unit(**more) -> dict:
    return {"type": "audio_chunk", "audio_base64": loud(), **more}


async def test_a_second_session_on_a_busy_worker_is_refused_before_it_is_accepted():
    async with worker_harness() as harness:
        await harness.ready("duplex", "one")
        dialects: tuple[DialectName, ...] = ("duplex", "chat", "half_duplex")
        for dialect in dialects:
            other = harness.begin(dialect, "two")
            assert await other.over() == BUSY_STATUS
            assert other.socket.closed == (BUSY_STATUS, "worker_busy")
            assert other.socket.sent == []
        realtime = harness.begin("realtime", "three")
        assert await realtime.over() == BUSY_STATUS
        assert harness.host.heartbeat().errors == {"worker_busy": 4}


@pytest.mark.parametrize("dialect", ["chat", "half_duplex"])
async def test_all_tokens_of_an_answer_are_reported(
    monkeypatch: pytest.MonkeyPatch, dialect: DialectName
):
    made: list[int] = []
    completed = loop._completed

    def noted(result: Result, request: SlotRequest) -> Result:
        if isinstance(result, GenerateResult):
            made.append(result.text_tokens + result.speech_tokens)
        return completed(result, request)

    monkeypatch.setattr(loop, "_completed", noted)
    async with worker_harness() as harness:
        if dialect == "chat":
            talk = harness.begin(dialect)
            talk.say({**HELLO, "tts": {}})
        else:
            talk = await harness.ready(dialect)
            assert harness.host.heartbeat().tokens == {}
            harness.gate.shut(Stage.VOCODE)
            feed(talk, sound(silence(0.6), speak(1.0), silence(1.0)))
            await harness.gate.arrived()
            # On a busy machine what was prepared while the user was silent is that far, too.
            runner: Any = next(iter(harness._lives()))._runner
            await until(lambda: runner._response is not None and runner._response.is_started)
            harness.host.stop_turn(StopTurn("r", talk.lease.lease_id))
            harness.gate.open()
            await talk.until("turn_done")
            await until(lambda: bool(harness.host.heartbeat().tokens))
            assert harness.host.heartbeat().tokens == {talk.lease.lease_id: sum(made)}
            talk.say({"type": "stop"})
        await talk.over()
        reports = [each for each in harness.reports if isinstance(each, SessionPhase)]

    assert (reports[-1].phase, reports[-1].tokens) == (Phase.ENDED, sum(made))
    assert sum(made) > 0


async def hung_up(harness: WorkerHarness) -> Talk:
    """A client that left while the model decodes its answer, until the gate is opened."""
    talk = harness.begin("chat", "one")
    harness.gate.shut(Stage.DECODE)
    talk.say(HELLO)
    await harness.gate.arrived()
    talk.socket.hang_up()
    await until(lambda: harness.host.state in ("cleanup", "error"))
    return talk


async def test_a_newcomer_waits_for_a_session_that_is_being_cleaned_up():
    async with worker_harness() as harness:
        await hung_up(harness)

        second = harness.begin("chat", "two")
        second.say(HELLO)
        await asyncio.sleep(0)
        assert second.types == []
        harness.gate.open()

        assert await second.over() == 1000
        assert second.types[-1] == "done"


async def test_a_newcomer_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("parley.worker.host.CLEANUP_GRACE_S", 0.01)
    async with worker_harness() as harness:
        await hung_up(harness)

        second = harness.begin("chat", "two")

        assert await second.over() == BUSY_STATUS
        harness.gate.open()


async def test_a_slot_that_does_not_come_back_makes_the_worker_an_error():
    async with worker_harness(cleanup_limit_s=0.05) as harness:
        talk = await hung_up(harness)
        await asyncio.wait_for(harness.host.broken.wait(), HANG_S)

        assert harness.host.state == "error"
        assert harness.host.health()["status"] == "error"
        refused = harness.begin("chat")
        assert await refused.over() == BUSY_STATUS
        assert refused.socket.closed == (BUSY_STATUS, "service_unavailable")
        harness.gate.open()
        await talk.over()


async def test_a_session_that_waits_for_a_busy_model_is_not_stuck(monkeypatch: pytest.MonkeyPatch):
    async with worker_harness(cleanup_limit_s=0.01) as harness:
        talk = await hung_up(harness)
        looks: list[Engine] = []

        def look(engine: Engine) -> float:
            looks.append(engine)
            if len(looks) == 3:
                harness.gate.open()
            return 9.0 * len(looks)  # in several steps: none is longer than the limit

        monkeypatch.setattr("parley.worker.host.STEP_LIMITS", 10**6)
        monkeypatch.setattr(Engine, "stepped_s", property(look))
        await talk.over()

        assert not harness.host.broken.is_set()
        assert harness.host.state == "idle"


async def test_a_lost_device_ends_every_session_and_is_an_error():
    async with worker_harness(slots=2) as harness:
        one = await harness.ready("duplex", "one")
        two = await harness.ready("realtime", "two")
        harness.engine._loop.fault = "fault"
        harness.engine._break()
        one.say(unit())
        two.say({"type": "input_audio_buffer.append", "audio": loud()})

        assert await one.over() == 1011
        assert await two.over() == 1011
        assert two.socket.sent[-1] == {"type": "session.closed", "reason": "error"}
        assert harness.host.state == "error"
        harness.host.broken.set()


async def test_leaving_lets_requests_finish_ends_conversations_and_refuses_newcomers():
    async with worker_harness(slots=3) as harness:
        live = await harness.ready("duplex", "live")
        harness.gate.shut(Stage.DECODE)
        request = harness.begin("chat", "request")
        request.say(HELLO)
        await harness.gate.arrived()

        harness.host.leave(20.0)
        newcomer = harness.begin("chat", "newcomer")
        assert await newcomer.over() == BUSY_STATUS
        assert await live.socket.until_closed() == 1001
        assert not harness.host.leaving.is_set()
        harness.gate.open()

        assert await request.over() == 1000
        assert request.types[-1] == "done"
        await asyncio.wait_for(harness.host.leaving.wait(), HANG_S)


async def test_a_worker_that_is_drained_lets_sessions_run_to_their_end():
    async with worker_harness() as harness:
        talk = await harness.ready("duplex", "live", resume=True)

        harness.host.leave(0.0, drain_s=HANG_S, moves=False)

        assert (await talk.until("session.going_away"))["reason"] == "shutdown"
        talk.say(unit())
        await talk.until("result")
        assert not harness.host.leaving.is_set()
        talk.say({"type": "stop"})
        assert await talk.over() == 1000
        await asyncio.wait_for(harness.host.leaving.wait(), HANG_S)


@pytest.mark.parametrize("is_logged", [True, False])
async def test_a_session_is_handed_over_if_another_worker_can_continue_it(is_logged: bool):
    async with worker_harness() as harness:
        harness.host.session_logs = FakeSessionLogs()
        talk = await harness.ready("duplex", "it", resume=is_logged)
        reports: list[object] = []
        harness.host.report = reports.append

        harness.host.hand_over(HandOver("order", talk.lease.lease_id))

        await until(lambda: any(isinstance(each, StopResult) for each in reports))
        assert StopResult("order", is_logged) in reports
        # The gateway may have ended it meanwhile.
        harness.host.hand_over(HandOver("late", "unknown"))
        await until(lambda: StopResult("late", False) in reports)
        assert harness.host.end_session(EndSession(talk.lease.lease_id, "moved"))
        await talk.over()


async def test_new_limits_are_for_sessions_that_start_from_now_on():
    async with worker_harness() as harness:
        before = harness.host.limits
        redis = harness.host.session_logs = RedisSessionLogs("redis://localhost:1", window_s=30.0)

        harness.host.change_limits({"duplex_silence_s": 7.0, "unknown": 1})
        assert harness.host.limits == before.model_copy(update={"duplex_silence_s": 7.0})
        assert redis.ttl_ms == 120_000

        harness.host.change_limits({"resume_window_s": 300.0})
        assert redis.ttl_ms == 1_200_000

        harness.host.change_limits({"duplex_silence_s": "long"})
        assert harness.host.limits.resume_window_s == 300.0


@pytest.mark.parametrize(
    ("dialect", "reason", "close_code", "last"),
    [
        ("duplex", "server_shutdown", 1001, "error"),
        ("duplex", "stopped", 1000, "stopped"),
        ("half_duplex", "stopped", 1000, "stopped"),
        ("realtime", "server_shutdown", 1001, "session.closed"),
    ],
)
async def test_a_session_can_be_ended_from_outside(dialect, reason, close_code, last):
    async with worker_harness() as harness:
        talk = await harness.ready(dialect, "it")
        assert harness.host.end_session(EndSession(talk.lease.lease_id, reason))
        assert not harness.host.end_session(EndSession("it", reason))

        assert await talk.over() == close_code
        assert not harness.host.end_session(EndSession(talk.lease.lease_id, reason))
        assert talk.types[-1] == last


async def test_a_session_that_has_moved_ends_without_a_word():
    async with worker_harness() as harness:
        harness.host.session_logs = FakeSessionLogs()
        talk = await harness.ready("duplex", "it", resume=True)

        assert harness.host.end_session(EndSession(talk.lease.lease_id, "moved"))

        assert await talk.over() == CUT_CODE
        assert talk.types[-1] == "prepared"
        # The next gateway must not take it for a session that has ended.
        assert [each.session_id for each in harness.host.hello().sessions] == []


async def test_a_beat_counts_stages_units_and_errors_since_the_last_one():
    async with worker_harness() as harness:
        talk = await harness.ready("duplex")
        harness.host.heartbeat()
        talk.say(unit())
        await talk.until("result")
        talk.say({"type": "sing"})
        await talk.until("error")
        talk.say({"type": "stop"})
        await talk.over()
        heartbeat, next_heartbeat = harness.host.heartbeat(), harness.host.heartbeat()

        assert heartbeat.total_requests == 1
        assert sum(heartbeat.stages["unit"].counts) == 1
        assert sum(heartbeat.stages["encode"].counts) == 1
        assert heartbeat.stages["unit"].sum_ms > 0
        assert heartbeat.answers == {"omni_duplex": heartbeat.stages["unit"]}
        assert heartbeat.errors == {"unknown_event": 1}
        assert heartbeat.avg_inference_time_ms > 0
        assert next_heartbeat.stages == next_heartbeat.answers == {}
        assert next_heartbeat.errors == {}


async def test_a_beat_counts_who_spoke_while_the_assistant_did():
    async with worker_harness() as harness:
        await harness.ready("duplex")
        (held,) = harness.host._held.values()
        meter = present(held.meter)
        harness.host.heartbeat()
        meter.observe(InterruptionChanged("suspected", 0, 100), 0.0)
        meter.observe(InterruptionChanged("stopped", 0, 200), 0.1)
        meter.observe(SessionInterrupted(), 0.2)
        heartbeat, next_heartbeat = harness.host.heartbeat(), harness.host.heartbeat()

    assert heartbeat.interruptions == {"suspected": 1, "stopped": 2}
    assert next_heartbeat.interruptions == {}


async def test_an_ended_session_can_be_asked_for_its_last_words_all_the_time():
    async with worker_harness() as harness:
        host = harness.host
        talk = await harness.ready("duplex", resume=True)
        ready = talk.socket.sent[-1]
        token, seq = hash_of(ready["resume_token"]), ready["seq"]
        talk.say(unit())
        await talk.until("result")
        asked: list[str] = []

        def ask(report: object) -> None:
            if isinstance(report, SessionPhase) and report.phase in ("cleanup", "ended"):
                host.resumable(talk.lease.lease_id).check(token, seq)
                asked.append(report.phase)

        host.report = ask
        talk.socket.hang_up()

        def is_waiting() -> bool:
            (phase,) = host.living()
            return phase.resume is not None and phase.resume.left_s is not None

        await until(is_waiting)
        assert host.end_session(EndSession(talk.lease.lease_id, "stopped"))
        await talk.over()

        assert asked == ["cleanup", "ended"]
        (told,) = host.hello().sessions
        assert (told.phase, told.resume is not None) == ("ended", True)
        assert host.is_looked_for
        last = FakeSocket()
        coming = asyncio.create_task(host.resumable(talk.lease.lease_id).attach(last, token, seq))
        assert (await last.until("stopped"))["seq"] > seq
        await coming


async def test_of_a_session_that_has_ended_only_its_last_words_are_remembered(monkeypatch):
    monkeypatch.setattr("parley.worker.host.ENDED_LIMIT", 1)
    async with worker_harness() as harness:
        before = await harness.ready("duplex", "before", resume=True)
        before.say({"type": "stop"})
        await before.over()
        talk = await harness.ready("duplex", resume=True)
        (held,) = harness.host._held.values()
        session = weakref.ref(held.session)
        del held
        talk.say(unit())
        await talk.until("result")
        talk.say({"type": "stop"})
        await talk.over()
        # What the test's own client remembers of it.
        talk.task = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        gc.collect()

        (told,) = harness.host.hello().sessions
        assert (told.session_id, told.phase) == ("session", "ended")
        assert session() is None, [type(each) for each in gc.get_referrers(session())]


@pytest.mark.parametrize("picture", [None, "AAAA"])
async def test_what_a_request_contained_is_freed_without_the_garbage_collector(picture):
    content = {"type": "audio", "data": loud()}
    if picture is not None:
        content = {"type": "image", "data": picture}

    def contents() -> int:
        return sum(type(each) in (ChatRequested, Audio, Prefill) for each in gc.get_objects())

    async with worker_harness() as harness:
        gc.collect()
        of_other_tests = contents()
        gc.disable()
        try:
            talk = harness.begin("chat")
            talk.say({"messages": [{"role": "user", "content": [content]}]})

            assert await talk.over() == (1000 if picture is None else 1008)
            # A thread that has just returned its result may still refer to its input.
            await until(lambda: contents() <= of_other_tests)
        finally:
            gc.enable()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("dialect", "told"), [("half_duplex", "turn_done"), ("duplex", "result")])
async def test_a_conversation_is_freed_without_the_garbage_collector(dialect, told, fails):
    async with worker_harness() as harness:
        gc.disable()
        try:
            talk = await harness.ready(dialect)
            runner = weakref.ref(harness._lives()[0]._runner)
            if fails:
                harness.faults.fail_at(Stage.DECODE)
            feed(talk, sound(silence(0.6), speak(1.0), silence(1.0)))
            await talk.until("error" if fails and dialect == "duplex" else told)
            talk.say({"type": "stop"})
            await talk.over()

            await until(lambda: runner() is None)
        finally:
            gc.enable()
