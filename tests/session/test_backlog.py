"""What a caller says while the connection is broken is taken whole and answered in order; and what
came late, what comes as it is said."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from tests.session.test_conversation_interruption import SERVER_VAD, talking
from tests.support.patience import until
from tests.support.sessions import Talk, WorkerHarness, feed, pcm64, worker_harness
from tests.support.sockets import FakeSocket
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Stage
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.resume import hash_of
from parley.session.arrivals import LATE_LIMIT_S, Arrivals
from parley.session.listener import TurnListener
from parley.session.listening import SoundQueue, find
from parley.session.resumable import ResumeRefused

AWAY_S = 8.0
UNIT = {"type": "audio_chunk", "audio_base64": pcm64(sound(silence(1.0)))}
SAID = sound(silence(0.3), speak(1.0), silence(1.2), speak(2.0), silence(1.2))
"""Two turns, said while the client was away."""


@contextlib.asynccontextmanager
async def returned(harness: WorkerHarness, talk: Talk, seen: str) -> AsyncIterator[Talk]:
    """The client loses its connection, comes back `AWAY_S` later, and talks on over another one.

    Args:
        seen: type of the message with the token, the last one that the client has seen.
    """
    ready = await talk.until(seen)
    (session,) = harness._lives()
    socket: Any = session._socket
    talk.socket.hang_up()
    await until(lambda: socket._attached is None)
    assert isinstance(harness.host.clock, ManualClock)
    harness.host.clock.advance(AWAY_S)
    later = FakeSocket()
    token = hash_of(ready["resume_token"])
    attaching = asyncio.create_task(
        harness.host.resumable(talk.lease.lease_id).attach(later, token, ready["seq"], 1)
    )
    await later.until("session.resumed")
    yield Talk(later, talk.task, talk.lease)
    later.leave()
    await attaching


@pytest.mark.parametrize("mode", ["off", "stop"])
async def test_half_duplex_answers_every_turn_of_an_outage(mode: str) -> None:
    async with worker_harness(clock=ManualClock()) as harness:
        talk = harness.begin("half_duplex")
        config = {"interruption": {"mode": mode}}
        talk.say({"type": "prepare", "resume": True, "config": config})
        async with returned(harness, talk, "prepared") as again:
            harness.gate.shut(Stage.DECODE)
            feed(again, SAID)
            await again.until("generating")
            await again.drained()
            harness.gate.open()
            first = await again.until("turn_done")
            if mode == "stop":
                await harness.pass_time(10.0, due="played")
            second = await again.until("turn_done", 2)

    assert not first["interrupted"]
    assert not second["interrupted"]
    assert "interruption" not in again.types
    spoken = [m["speech_duration_ms"] for m in again.socket.sent if m["type"] == "generating"]
    assert spoken == pytest.approx([1000, 2000], abs=150)


@pytest.mark.parametrize("of_items", [False, True])
async def test_what_was_said_while_the_worker_stood_still_is_answered_and_interrupts_no_answer(
    of_items: bool,
) -> None:
    """It stood still in the middle of an answer, and no connection was lost."""
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        ready = talking(harness, SERVER_VAD) if of_items else harness.ready("half_duplex")
        talk = await ready
        harness.gate.shut(Stage.DECODE)
        feed(talk, sound(silence(0.3), speak(1.0), silence(1.2)))
        await talk.until("response.created" if of_items else "generating")
        clock.advance(SAID.duration_s)
        feed(talk, SAID)
        await talk.drained()
        harness.gate.open()
        await talk.until("response.done" if of_items else "turn_done", 3)

    sent = talk.socket.sent
    if of_items:
        ended = [m["response"]["status"] for m in sent if m["type"] == "response.done"]
        assert ended == ["completed"] * 3
    else:
        spoken = [m["speech_duration_ms"] for m in sent if m["type"] == "generating"]
        assert spoken == pytest.approx([1000, 1000, 2000], abs=150)


async def test_a_conversation_of_items_answers_every_turn_of_an_outage() -> None:
    async with worker_harness(clock=ManualClock()) as harness:
        talk = harness.begin("openai_realtime")
        session = {"type": "realtime", "audio": {"input": {"turn_detection": SERVER_VAD}}}
        talk.say({"type": "session.update", "session": {**session, "resume": True}})
        async with returned(harness, talk, "session.updated") as again:
            harness.gate.shut(Stage.DECODE)
            feed(again, SAID)
            await again.drained()
            harness.gate.open()
            await again.until("response.done", 2)

    answered = [m["response"]["status"] for m in again.socket.sent if m["type"] == "response.done"]
    assert answered == ["completed", "completed"]


async def test_ten_samples_at_a_time_that_wait_for_a_commit_are_kept_in_few_pieces() -> None:
    session = MagicMock()
    session.arrivals.is_late.return_value = False
    listener = TurnListener(
        session, MagicMock(), MagicMock(), index=int, silence=MagicMock(), is_sequential=False
    )
    listener.detect(None)

    said = np.arange(20_000, dtype=np.float32) / 20_000
    for few in said.reshape(-1, 10):
        listener.hear(Pcm(few.astype(np.float32), INPUT_RATE_HZ))

    assert np.array_equal(listener.manual.joined().samples, said)
    assert len(listener.manual) == 2


def test_ten_samples_at_a_time_that_wait_for_the_detector_are_kept_in_few_pieces() -> None:
    said = np.arange(40_000, dtype=np.float32) / 40_000
    queue = SoundQueue(lambda _: None)
    for few in said.reshape(-1, 10):
        queue.put(Pcm(few.astype(np.float32), INPUT_RATE_HZ))
    queue.take()
    queue.put_back(queue.take())

    again = SoundQueue(lambda _: None)
    again.restore(dict(reversed(queue.remembered().items())))

    assert len(queue) < 110
    assert next(iter(again.remembered())) == next(iter(queue.remembered())) == "1"
    assert np.array_equal(again.joined().samples, said[10:])


async def test_a_long_message_is_examined_in_pieces_between_which_others_may_work() -> None:
    said = np.random.default_rng(0).random(25 * INPUT_RATE_HZ, np.float32)
    finder = MagicMock(feed=MagicMock(side_effect=lambda pcm: [pcm]))

    examined: Any = await find(finder, Pcm(said, INPUT_RATE_HZ))

    assert [pcm.duration_s for pcm in examined] == [10.0, 10.0, 5.0]
    assert np.array_equal(np.concatenate([pcm.samples for pcm in examined]), said)


async def test_sound_that_comes_as_it_is_said_counts_as_live() -> None:
    """A client that kept nothing is not heard while it plays an answer, as before the outage."""
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = harness.begin("half_duplex")
        talk.say({"type": "prepare", "resume": True})
        async with returned(harness, talk, "prepared") as again:
            feed(again, Pcm(np.zeros(INPUT_RATE_HZ // 5, np.float32), INPUT_RATE_HZ))
            await again.drained()
            clock.advance(1.0)
            feed(again, sound(silence(0.3), speak(1.0), silence(1.2)))
            harness.gate.shut(Stage.DECODE)
            await again.until("generating")
            feed(again, sound(silence(0.3), speak(1.0), silence(1.2)))
            await again.drained()
            harness.gate.open()
            await again.until("turn_done")
            feed(again, sound(silence(0.3), speak(2.0), silence(1.2)))
            second = await again.until("generating", 2)

    assert second["speech_duration_ms"] == pytest.approx(2000, abs=150)


async def test_a_client_is_sent_the_length_of_what_was_dropped() -> None:
    """More than was said in the outage comes while the model works on the first unit."""
    async with worker_harness(clock=ManualClock()) as harness:
        talk = harness.begin("duplex")
        talk.say({"type": "prepare", "resume": True})
        async with returned(harness, talk, "prepared") as again:
            harness.gate.shut(Stage.DECODE)
            for _ in range(30):
                again.say(UNIT)
            (session,) = harness._lives()
            runner: Any = session._runner
            # One is being processed.
            await until(lambda: len(runner._mailbox.units) + session._dropped_s == 29)
            await harness.pass_time(1.0, due="dropped")
            told = await again.until("session.input_dropped")
            harness.gate.open()
            results = 30 - round(told["dropped_s"])
            await again.until("result", results)

    assert 5.0 <= told["dropped_s"] <= 30.0 - AWAY_S
    assert again.types.count("result") == results


async def test_a_client_that_cannot_resume_is_not_sent_what_was_dropped() -> None:
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await harness.ready("duplex")
        harness.gate.shut(Stage.DECODE)
        for _ in range(8):
            talk.say(UNIT)
        await talk.drained()
        (session,) = harness._lives()
        is_due = session.deadlines.get("dropped") is not None
        harness.gate.open()
        await talk.until("result")
        talk.socket.hang_up()
        await talk.over()

    assert not is_due


async def test_a_client_that_returns_too_late_is_refused_while_its_session_is_cleaned_up() -> None:
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = harness.begin("half_duplex")
        talk.say({"type": "prepare", "resume": True})
        ready = await talk.until("prepared")
        (session,) = harness._lives()
        socket: Any = session._socket
        talk.socket.hang_up()
        await until(lambda: socket._attached is None)

        clock.advance(60.0)
        session.check_deadlines()

        client = harness.host.resumable(talk.lease.lease_id)
        with pytest.raises(ResumeRefused) as refused:
            client.check(hash_of(ready["resume_token"]), ready["seq"])
        await talk.over()

    assert refused.value.reason == "expired"
    assert "No client returned within" in refused.value.why


async def test_a_client_receives_nothing_from_a_worker_whose_session_another_one_continues() -> (
    None
):
    async with worker_harness() as harness:
        talk = harness.begin("half_duplex")
        talk.say({"type": "prepare", "resume": True})
        await talk.until("prepared")
        (held,) = harness.host._held.values()
        assert held.socket is not None
        before = list(talk.socket.sent)

        held.socket._log.on_fenced()
        await talk.over()

    assert talk.socket.sent == before


@pytest.mark.parametrize("piece_s", [0.02, 0.1, 0.5, 1.0])
def test_who_was_silent_and_talks_on_is_late_for_a_moment_only(piece_s: float) -> None:
    """The first message after the silence took 0.1 s longer than the others, which follow it as
    fast as they may: the client never falls behind what can be said in the time."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.is_late(piece_s)
    clock.advance(60.0)
    late_s, began_s, sent_s = 0.0, clock.monotonic(), 0.0
    while sent_s < 20.0:
        arrived_s = max(began_s + 0.1, began_s + sent_s)
        clock.advance(arrived_s - clock.monotonic())
        late_s += piece_s if arrivals.is_late(piece_s) else 0.0
        sent_s += piece_s

    assert late_s <= max(1.0, 2 * piece_s)


@pytest.mark.parametrize("again_s", [0.0, 6.0])
def test_what_comes_faster_than_it_can_be_said_is_late_to_its_end(again_s: float) -> None:
    """Also if the network stands still again meanwhile."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.is_late(0.1)
    clock.advance(20.1)
    late_s = 0.0
    for number in range(350):
        clock.advance(again_s if number == 50 else 0.0)
        late_s += 0.1 if arrivals.is_late(0.1) else 0.0
        clock.advance(0.05)

    assert late_s == pytest.approx(20.0 + again_s, abs=0.2)


def test_a_client_that_was_silent_for_long_may_not_send_all_of_it_together() -> None:
    """It waits in the worker's memory, and is computed while others talk."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.is_late(1.0)
    clock.advance(590.0)
    for _ in range(580):
        arrivals.is_late(1.0)

    assert LATE_LIMIT_S <= arrivals.backlog_s <= LATE_LIMIT_S + 10.0


@pytest.mark.parametrize(("restored_s", "may_wait"), [(0.0, False), (4.0, True)])
def test_new_audio_does_not_push_out_what_waited_at_another_worker(restored_s, may_wait) -> None:
    """A client that talks on in real time."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    arrivals.restored_s = restored_s
    arrivals.end_gap(60.0)
    waiting_s = []
    for number in range(4):
        if number == 3:
            arrivals.end_gap(60.0)
        arrivals.is_late(1.0)
        clock.advance(1.02)
        waiting_s.append(arrivals.backlog_s)

    assert [each >= restored_s > 0 for each in waiting_s] == [may_wait] * 3 + [False]
