import base64
from collections.abc import Iterable
from typing import Any

import pytest
from tests.session.test_duplex import JPEG
from tests.support.sessions import Talk, heard, loud, pcm64, quiet, worker_harness
from tests.support.timeline import chunks, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Stage


def append(audio: str | None = None, **more) -> dict:
    return {"type": "input_audio_buffer.append", "audio": audio or loud(), **more}


def update(**session) -> dict:
    return {"type": "session.update", "session": {"instructions": "Be kind.", **session}}


def responses(talk: Talk) -> list[dict]:
    return [message for message in talk.socket.sent if message["type"].startswith("response.")]


async def one_by_one(talk: Talk, *messages: dict) -> list[dict]:
    for message in messages:
        assert await talk.unit(message), talk.socket.sent
    return responses(talk)


async def test_every_append_is_answered_by_exactly_one_response():
    async with worker_harness() as harness:
        talk = await harness.ready("realtime", "rt_1")
        appends = [append(video_frames=[JPEG])] * 3 + [append(quiet())] * 6
        answers = await one_by_one(talk, *appends)

        assert talk.socket.sent[0]["session_id"] == "rt_1"
        assert talk.socket.sent[0]["prompt_length"] > 0
        assert len(answers) == 9
        times = [(m.pop("wall_clock_ms"), m.pop("server_send_ts")) for m in answers]
        assert all(wall_ms > 0 and sent_s > 1e9 for wall_ms, sent_s in times)
        assert answers[0] == {
            "type": "response.listen",
            "kv_cache_length": answers[0]["kv_cache_length"],
        }
        deltas = [m for m in answers if m["type"] == "response.output_audio.delta"]
        assert "You spoke for 3.0 seconds" in "".join(m["text"] for m in deltas)
        assert all(isinstance(m["audio"], str) for m in deltas)
        assert [m["end_of_turn"] for m in deltas].count(True) == 1
        assert all(len(heard(m["audio"])) == 24_000 for m in deltas[1:-1])


@pytest.mark.parametrize(("kind", "limit_s"), [("omni_duplex", 300), ("audio_duplex", 600)])
async def test_the_total_limit_can_leave_the_queue_out(kind: str, limit_s: int):
    clock = ManualClock()
    async with worker_harness(clock=clock, realtime_counts_queue=False) as harness:
        talk = harness.begin("realtime", kind=kind, queue_wait_ms=200_000)
        await harness.pass_time(limit_s - 1, due="total")
        assert talk.socket.closed is None
        await harness.pass_time(1, due="total")
        assert await talk.over() == 1000


async def test_a_limit_that_has_passed_already_ends_the_session_immediately():
    async with worker_harness() as harness:
        talk = harness.begin("realtime", queue_wait_ms=1_000_000)

        assert await talk.over() == 1000
        assert talk.socket.sent == [{"type": "session.closed", "reason": "timeout"}]


async def test_context_full_comes_once_after_the_event_that_carries_the_length(monkeypatch):
    monkeypatch.setattr("parley.dialects.realtime.RealtimeDialect.context_tokens", 60)
    monkeypatch.setattr("parley.dialects.realtime.RealtimeDialect.prompt_room_tokens", 10)
    async with worker_harness() as harness:
        talk = await harness.ready("realtime")
        while await talk.unit(append()):
            pass

        assert await talk.over() == 1000
        assert talk.types[-1] == "session.closed"
        assert talk.types.count("session.closed") == 1
        assert talk.socket.sent[-1]["reason"] == "context_full"
        assert talk.types[-2].startswith("response.")
        assert talk.socket.sent[-2]["kv_cache_length"] + 2 >= 60


async def test_chunks_of_a_tenth_of_a_second_make_units_where_extensions_are_asked_for():
    async with worker_harness() as harness:
        talk = await harness.ready("realtime")
        for chunk in chunks(sound(speak(2.5)), 0.1):
            talk.say(append(pcm64(chunk)))
        await talk.until("response.listen", 2)
        talk.say({"type": "session.close"})
        await talk.over()

        assert len(responses(talk)) == 2


async def refused(talk: Talk, rows: Iterable[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """The frames with the codes of their errors, all of the client."""
    found = []
    for count, (frame, _) in enumerate(rows, 1):
        talk.say(frame)
        error = (await talk.until("error", count))["error"]
        assert error["type"] == "client_error"
        found.append((frame, error["code"]))
    return found


async def test_client_errors_have_their_code_and_leave_the_session_open():
    rows = [
        (append(pcm64(sound(speak(0.01)))), "invalid_payload"),
        (append(base64.b64encode(b"\0\0\xc0\x7f" * 4000).decode()), "invalid_payload"),
        (append(video_frames=[base64.b64encode(b"nothing").decode()]), "invalid_payload"),
        (update(), "invalid_event"),
        ({"type": "response.create"}, "unknown_event"),
    ]
    async with worker_harness() as harness:
        talk = await harness.ready("realtime")

        assert await refused(talk, rows) == rows
        await one_by_one(talk, append())


async def test_errors_before_the_session_is_created_leave_it_open_for_another_try():
    rows = [
        (append(), "not_ready"),
        ({"type": "session.update", "session": {}}, "missing_field"),
        (update(instructions=""), "invalid_payload"),
        (update(ref_audio=quiet(61)), "invalid_payload"),
        # Longer than the context; the last one leaves no room in it.
        (update(instructions="word " * 9000), "invalid_payload"),
        (update(instructions="word " * 7500), "invalid_payload"),
    ]
    async with worker_harness() as harness:
        talk = harness.begin("realtime")

        assert await refused(talk, rows) == rows
        assert "1024" in talk.socket.sent[-1]["error"]["message"]
        talk.say(update())
        await talk.until("session.created")


async def test_a_failed_unit_is_a_server_error_and_three_in_a_row_close_the_session():
    async with worker_harness() as harness:
        talk = await harness.ready("realtime")
        harness.faults.fail_at(Stage.DECODE, times=1)
        talk.say(append())
        error = (await talk.until("error"))["error"]
        await one_by_one(talk, append())
        harness.faults.fail_at(Stage.DECODE, times=9)
        for index in range(3):
            talk.say(append())
            await talk.until("error", 2 + index)

        assert await talk.over() == 1011
        assert (error["code"], error["type"]) == ("inference_error", "server_error")
        assert talk.socket.sent[-1] == {"type": "session.closed", "reason": "error"}
