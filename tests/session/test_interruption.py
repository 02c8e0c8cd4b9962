"""Interruptions of answers, in a whole worker: what is sent, and what the context holds."""

import asyncio
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.patience import HANG_S, until
from tests.support.session_logs import FakeSessionLogs
from tests.support.sessions import (
    Talk,
    WorkerHarness,
    feed,
    heard,
    loud,
    pcm64,
    quiet,
    stranger,
    worker_harness,
)
from tests.support.talking import pcm16
from tests.support.timeline import chunks, silence, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Stage
from parley.media.pcm import Pcm
from parley.protocol.values import InterruptionOptions, PlaybackReport
from parley.session.deadlines import Deadlines
from parley.session.interruption import Interruptions
from parley.session.log import decoded
from parley.session_log.entries import WentBack
from parley.turns.interruption import InterruptionDetector, InterruptionEvent
from parley.vad.energy import EnergyDetector
from parley.views.half_duplex import HalfDuplexView

STOP = {"mode": "stop"}
SENTENCE = sound(silence(0.5), speak(2.5), silence(1.2))


async def state(talk: Talk, wanted: str) -> dict[str, Any]:
    """The first `interruption` message in this state."""
    count = 1
    while True:
        message = await talk.until("interruption", count)
        if message["state"] == wanted:
            return message
        count += 1


async def played(harness: WorkerHarness) -> None:
    """Until the session listens for the next turn."""
    (session,) = harness._lives()
    runner: Any = session._runner
    await until(lambda: not runner._listener.interruptions.is_watching)


async def test_an_answer_ends_where_it_was_interrupted_and_nothing_more_of_it_is_sent():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await harness.ready("half_duplex", config={"interruption": STOP})
        feed(talk, SENTENCE)
        done = await talk.until("turn_done")
        clock.advance(1.0)
        feed(talk, stranger(1.5))
        stopped = await state(talk, "stopped")
        feed(talk, sound(silence(1.5)))
        second = await talk.until("turn_done", 2)

        assert stopped["index"] == done["turn_index"] == 0
        assert stopped["heard_ms"] == 1000
        assert done["text"].startswith(stopped["text"])
        assert 0 < len(stopped["text"]) < len(done["text"])
        # What interrupted is the next turn, from its first word.
        generating = await talk.until("generating", 2)
        assert generating["speech_duration_ms"] == pytest.approx(1500, abs=200)
        fence, begins = map(talk.socket.sent.index, (stopped, generating))
        assert "chunk" not in talk.types[fence:begins]
        assert second["interrupted"] is False


async def test_the_context_holds_nothing_of_an_answer_that_was_never_sent(monkeypatch):
    rolled_back: list[bool] = []
    rollback = HalfDuplexView.rollback

    async def noted(view):
        done = await rollback(view)
        rolled_back.append(done.success)
        return done

    monkeypatch.setattr(HalfDuplexView, "rollback", noted)
    async with worker_harness(clock=ManualClock()) as harness:
        harness.gate.shut(Stage.DECODE)
        talk = await harness.ready("half_duplex", config={"interruption": STOP})
        feed(talk, SENTENCE)
        await harness.gate.arrived()
        # The model may have started early; this is about an answer that was requested.
        (session,) = harness._lives()
        runner: Any = session._runner
        await until(lambda: runner._response is not None and runner._response.is_started)
        feed(talk, stranger(1.5))
        await state(talk, "stopped")
        first = await talk.until("turn_done")
        harness.gate.open()
        feed(talk, sound(silence(1.5)))
        second = await talk.until("turn_done", 2)

    assert (first["text"], first["interrupted"]) == ("", True)
    assert second["text"].startswith("You spoke for")
    assert rolled_back == [True]


@pytest.mark.parametrize(("mode", "spoken_s"), [("stop", 0.4), ("duck", 2.0)])
async def test_what_ends_no_answer_is_dismissed_and_is_a_turn_unless_it_is_short(mode, spoken_s):
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await harness.ready("half_duplex", config={"interruption": {"mode": mode}})
        feed(talk, SENTENCE)
        await talk.until("turn_done")
        feed(talk, stranger(spoken_s))
        feed(talk, sound(silence(1.0)))
        await state(talk, "dismissed")
        await harness.pass_time(10.0, due="played")
        if mode == "stop":
            await played(harness)
            feed(talk, SENTENCE)
        await talk.until("turn_done", 2)

        states = [m["state"] for m in talk.socket.sent if m["type"] == "interruption"]
        assert states == ["suspected", "dismissed"]
        assert (await talk.until("generating", 2))["speech_duration_ms"] > 1500
        assert talk.types.count("generating") == 2


def answered(runner: Any, number: int) -> bool:
    return bool(runner._units >= number)


def live(pcm: Pcm) -> dict[str, Any]:
    return {"type": "session.input_audio.append", "audio": pcm16(pcm)}


def v2(pcm: Pcm) -> dict[str, Any]:
    return {"type": "input.append", "input": {"audio": pcm64(pcm)}}


def live_start(options: dict[str, Any]) -> dict[str, Any]:
    return {"type": "session.start", "session": options}


def v2_start(options: dict[str, Any]) -> dict[str, Any]:
    return {"type": "session.init", "payload": {"system_prompt": "Be kind.", **options}}


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(
    ("dialect", "start", "begun", "append", "told"),
    [
        ("openai_live", live_start, "session.started", live, "session.interruption"),
        ("minicpmo_v2", v2_start, "session.created", v2, "response.interruption"),
    ],
)
async def test_newer_dialects_report_interruptions_to_clients_that_ask(
    dialect, start, begun, append, told, is_asked
):
    heed = {"mode": "stop", "backchannel": "heed", "min_speech_ms": 64}
    async with worker_harness(clock=ManualClock()) as harness:
        talk = harness.begin(dialect, kind="audio_duplex")
        talk.say(start({"interruption": heed} if is_asked else {}))
        await talk.until(begun)
        (session,) = harness._lives()
        runner: Any = session._runner
        for number, second in enumerate(chunks(sound(speak(2.0), silence(3.0)), 1.0)):
            talk.say(append(second))
            # More than a few waiting units would be dropped; the resampler keeps the last samples.
            await until(partial(answered, runner, number))
        spoken = "session.output_audio.delta" if dialect == "openai_live" else "audio"
        await until(
            lambda: any(spoken in (each["type"], each.get("kind")) for each in talk.socket.sent)
        )
        for chunk in chunks(stranger(1.5), 0.1):
            talk.say(append(chunk))
        if is_asked:
            stopped = await talk.until(told, 2)
            assert (stopped["state"], stopped["heard_ms"]) == ("stopped", 0)
        talk.say({"type": "session.close"})
        await talk.over()

    assert (told in talk.types) is is_asked


async def test_a_live_client_that_is_told_nothing_never_has_much_sound_to_play():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = harness.begin("openai_live", kind="audio_duplex")
        talk.say(live_start({}))
        await talk.until("session.started")
        (session,) = harness._lives()
        runner: Any = session._runner
        for number, second in enumerate(chunks(sound(speak(2.0), silence(3.0)), 1.0)):
            talk.say(live(second))
            await until(partial(answered, runner, number))

        def sent_ms() -> int:
            deltas = [m for m in talk.socket.sent if m["type"] == "session.output_audio.delta"]
            return sum(m["end_ms"] - m["start_ms"] for m in deltas)

        async def quiet_down() -> int:
            session.check_deadlines()
            await until(lambda: not session._outbox.waiting)
            await asyncio.sleep(0.05)
            return sent_ms()

        await until(sent_ms)
        told = [await quiet_down()]
        for _ in range(4):
            clock.advance(0.101)
            told.append(await quiet_down())
        for chunk in chunks(stranger(1.5), 0.1):
            talk.say(live(chunk))
        await until(lambda: runner._interruptions.is_cut)
        clock.advance(2.0)
        told.append(await quiet_down())
        talk.say({"type": "session.close"})
        await talk.over()

    assert told == [300, 400, 500, 600, 700, 700]


async def test_without_being_asked_for_nothing_is_said_of_interruptions():
    async with worker_harness() as harness:
        talk = await harness.ready("half_duplex")
        feed(talk, SENTENCE)
        await talk.until("turn_done")
        feed(talk, stranger(1.0))
        feed(talk, sound(silence(1.5)))
        await talk.until("turn_done", 2)

        assert "interruption" not in talk.types


def unit(audio: str) -> dict[str, Any]:
    return {"type": "audio_chunk", "audio_base64": audio}


async def spoken_to(talk: Talk, units: int = 6) -> dict[str, Any]:
    """Units of a user who falls silent in the sixth, which is answered; the last result."""
    audio = [quiet(), quiet(), loud(), loud(), loud(), quiet()]
    for sent in range(units):
        talk.say(unit(audio[sent]))
        last = await talk.until("result", sent + 1)
    return last


async def test_a_speaking_unit_is_silenced_in_duplex():
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await harness.ready("duplex", "omni_1", interruption=STOP)
        last = await spoken_to(talk)
        assert not last["is_listen"]
        # Whole seconds and tenths are the same to the watch.
        feed(talk, stranger(1.0))
        await state(talk, "stopped")
        fence = len(talk.socket.sent)
        for count in range(talk.types.count("result") + 1, talk.types.count("result") + 4):
            talk.say(unit(quiet()))
            await talk.until("result", count)

        results = [m for m in talk.socket.sent[fence:] if m["type"] == "result"]
        assert len(results) >= 3
        assert results[0]["is_listen"]
        assert not len(heard(results[0]["audio_data"]))
        # What interrupted is the next question: of the first, nothing more is said.
        later = [result["text"] for result in results if not result["is_listen"]]
        assert later[0].startswith("You spoke for 1.")


async def test_a_unit_that_is_late_ends_no_answer_for_who_speaks_over_it_in_duplex():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await harness.ready("duplex", "omni_1", interruption=STOP)
        last = await spoken_to(talk)
        assert not last["is_listen"]
        # The second is over, and the next has not come.
        clock.advance(1.5)
        feed(talk, stranger(1.0))

        assert (await state(talk, "stopped"))["heard_ms"] == 1000


def playing(pcm: Pcm, received_ms: float, buffered_ms: float) -> dict[str, Any]:
    report = {"received_ms": received_ms, "buffered_ms": buffered_ms}
    return {"type": "audio_chunk", "audio_base64": pcm64(pcm), "playback": report}


@pytest.mark.parametrize("played_ms", [200, 700])
async def test_a_client_that_says_what_it_has_played_is_believed_in_half_duplex(played_ms):
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await harness.ready("half_duplex", config={"interruption": STOP})
        feed(talk, SENTENCE)
        await talk.until("turn_done")
        sent_ms = sum(m["duration_ms"] for m in talk.socket.sent if m["type"] == "chunk")
        # It began late: by the clock a second has been played.
        clock.advance(1.0)
        for chunk in chunks(stranger(1.5), 0.1):
            talk.say(playing(chunk, sent_ms, sent_ms - played_ms))

        assert (await state(talk, "stopped"))["heard_ms"] == played_ms


async def test_the_context_of_duplex_holds_what_a_client_says_it_has_played():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await harness.ready("duplex", "omni_1", interruption=STOP)
        await spoken_to(talk)
        clock.advance(0.9)
        for piece in chunks(stranger(1.0), 0.1):
            talk.say(playing(piece, 1000, 500))
        stopped = await state(talk, "stopped")

        assert (stopped["heard_ms"], stopped["text"]) == (500, "You")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_unit_that_was_never_sent_is_not_in_the_context_of_duplex(fails):
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        logs = harness.host.session_logs = FakeSessionLogs()
        talk = await harness.ready("duplex", "omni_1", interruption=STOP, resume=True)
        last = await spoken_to(talk, 5)
        listened = last["kv_cache_length"] - (await talk.until("result", 4))["kv_cache_length"]
        talk.say(unit(quiet()))
        spoken = await talk.until("result", 6)
        harness.gate.shut(Stage.DECODE)
        talk.say(unit(quiet()))
        await harness.gate.arrived()
        # The model is deciding on a unit that speaks when the user interrupts.
        clock.advance(0.5)
        feed(talk, stranger(1.0))
        stopped = await state(talk, "stopped")
        if fails:
            harness.faults.fail_at(Stage.FINALIZE, after=1)
        harness.gate.open()
        withheld = await talk.until("result", 7)
        after = await talk.until("result", 8)
        talk.say({"type": "stop"})
        await talk.over()

        assert not spoken["is_listen"]
        assert withheld["is_listen"]
        assert withheld["kv_cache_length"] > spoken["kv_cache_length"] + listened, "it spoke"
        words = len(stopped["text"].split())
        again = 1 if fails else 3
        said = 0 if fails else 1 + words
        assert after["kv_cache_length"] == last["kv_cache_length"] + again * listened + said
        logged = next(kept for kept in logs.taken[::-1] if len([*decoded(kept.entries)]) > 1)
        (went_back,) = (e for e in decoded(logged.entries) if isinstance(e, WentBack))
        assert went_back.decided == (0 if fails else None)


def interrupting(clock: ManualClock, told: list[Any]) -> Interruptions:
    session: Any = SimpleNamespace(
        clock=clock,
        deadlines=Deadlines(),
        drop_output=lambda: 600.0,
        emit=told.append,
    )
    interruptions = Interruptions(session, index=lambda: 0, stop=lambda at_sample: None)
    interruptions.arm(InterruptionOptions(mode="stop"), EnergyDetector)
    interruptions.begin()
    return interruptions


async def test_what_the_fence_held_back_is_not_counted_as_sent():
    clock, told = ManualClock(), list[Any]()
    interruptions = interrupting(clock, told)
    interruptions.say("a", None, 1000)

    for kind in ("suspected", "interrupted", "over", "suspected"):
        interruptions._follow(InterruptionEvent(kind, 0))
    assert [event.state for event in told] == ["suspected", "stopped"]
    interruptions.begin()
    interruptions.say("b", None, 1000)
    clock.advance(1.0)
    # Of 2000 ms the client was sent 1400, and has played all of them.
    interruptions.report(PlaybackReport(received_ms=1400, buffered_ms=0))

    assert not interruptions.playback.is_heard
    interruptions.close()


async def test_the_room_is_learned_after_what_was_played_before_it(monkeypatch):
    order: list[str] = []

    def noted(name: str) -> Any:
        def note(*given: Any) -> list[InterruptionEvent]:
            order.append(name)
            return []

        return note

    for name in ("play", "learn"):
        monkeypatch.setattr(InterruptionDetector, name, noted(name))
    interruptions = interrupting(ManualClock(), [])
    piece = Pcm.silence(512, 16_000)
    await interruptions.hand_over()

    interruptions.learn(piece)
    first = list(order)
    interruptions.say("a", Pcm.silence(512, 24_000), 21)
    interruptions.learn(piece)
    await interruptions.hand_over()

    assert first == ["learn"]
    assert order == ["learn", "play", "learn"]
    interruptions.close()


@pytest.mark.parametrize(
    ("seconds", "may_ask", "is_on_loop"),
    [(0.1, False, True), (0.1, True, False), (1.0, False, False)],
)
async def test_work_that_takes_long_is_done_in_a_thread(monkeypatch, seconds, may_ask, is_on_loop):
    threads: list[int] = []
    monkeypatch.setattr(InterruptionDetector, "may_ask", lambda self, samples: may_ask)
    monkeypatch.setattr(
        InterruptionDetector, "feed", lambda *given: threads.append(threading.get_ident())
    )
    interruptions = interrupting(ManualClock(), [])

    interruptions.hear(stranger(seconds))
    await interruptions.hand_over()

    assert (threads == [threading.get_ident()]) is is_on_loop
    interruptions.close()


async def test_of_sound_that_waits_for_the_detector_the_newest_is_kept():
    interruptions = interrupting(ManualClock(), [])
    for _ in range(40):
        interruptions.hear(Pcm.silence(16_000, 16_000))

    assert sum(work.heard_s for work in interruptions._waiting) == 30.0
    interruptions.close()


async def test_a_detector_that_fails_stops_no_conversation(monkeypatch):
    def fail(self, pcm, at_s):
        raise ZeroDivisionError

    monkeypatch.setattr(InterruptionDetector, "feed", fail)
    interruptions = interrupting(ManualClock(), [])
    async with asyncio.timeout(HANG_S):
        interruptions.hear(stranger(0.1))
        assert await interruptions.hand_over() == ()
        interruptions.hear(stranger(0.1))
        assert await interruptions.hand_over() == ()
    interruptions.close()
