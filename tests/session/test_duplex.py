import base64
import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from tests.support.sessions import Talk, WorkerHarness, heard, loud, pcm64, quiet, worker_harness
from tests.support.timeline import silence, sound

from parley.clock import ManualClock
from parley.engine.work import Stage
from parley.media.image import encode_jpeg
from parley.models.parrot import Parrot
from parley.protocol.control import SessionPhase, StopTurn

JPEG = base64.b64encode(encode_jpeg(np.zeros((48, 64, 3), np.uint8))).decode()


def chunk(audio: str | None = None, **more) -> dict:
    return {"type": "audio_chunk", "audio_base64": audio or loud(), **more}


async def started(harness: WorkerHarness, **more) -> Talk:
    return await harness.ready("duplex", "omni_1", **more)


async def one_by_one(talk: Talk, *messages: dict) -> list[dict]:
    """Units as a live client sends them: each after the result of the previous one."""
    results = []
    done = talk.types.count("result")
    for index, message in enumerate(messages):
        talk.say(message)
        results.append(await talk.until("result", done + index + 1))
    return results


async def spoken_to(talk: Talk) -> dict:
    """Talk until the parrot answers; its first speaking result."""
    for message in [chunk(), chunk(), chunk(), chunk(quiet())]:
        (result,) = await one_by_one(talk, message)
        if not result["is_listen"]:
            return result
    raise AssertionError("the parrot kept listening")


async def test_units_are_heard_and_then_answered():
    async with worker_harness() as harness:
        talk = await started(harness)
        first = await spoken_to(talk)
        results = [first, *await one_by_one(talk, *[chunk(quiet())] * 4)]

        prepared = talk.socket.sent[0]
        assert prepared["session_id"] == "omni_1"
        assert prepared["prompt_length"] > 0
        said = "".join(result["text"] for result in results)
        assert "You spoke for 3.0 seconds" in said
        assert any(result["end_of_turn"] for result in results)
        assert len(heard(first["audio_data"])) == 24_000


async def test_a_result_says_how_long_its_unit_took_from_when_it_came():
    clock = ManualClock()
    async with worker_harness(clock=clock) as harness:
        talk = await started(harness)
        harness.gate.shut(Stage.ENCODE)
        talk.say(chunk())
        await harness.gate.arrived()
        clock.advance(0.25)
        harness.gate.open()
        result = await talk.until("result", 1)

        assert result["wall_clock_ms"] == pytest.approx(250, abs=1)
        assert result["current_time"] == pytest.approx(250, abs=1)
        assert result["server_send_ts"] > 0


@pytest.mark.parametrize(
    ("ends_early", "pieces", "units"),
    [
        (False, [loud(0.1)] * 5 + [quiet(0.1)] * 4, 0),
        (True, [loud(0.1)] * 5 + [quiet(0.1)] * 2, 1),
        # A whole second, and 40 ms with the end of the pause.
        (True, [loud(0.1)] * 8 + [loud(0.08), quiet(0.12), quiet(0.04)], 2),
    ],
)
async def test_a_unit_of_short_pieces_ends_where_the_user_falls_silent(
    ends_early: bool, pieces: list[str], units: int
) -> None:
    parrot = Parrot(1)
    parrot._spec = dataclasses.replace(parrot.spec, answers_short_units=ends_early)
    async with worker_harness(model=parrot) as harness:
        # The model has nothing to do after a result.
        talk = await started(harness, config={"force_listen_count": 20}, deferred_finalize=False)
        for piece in pieces:
            talk.say(chunk(piece))
        if units:
            await talk.until("result", units)
        await talk.drained()
        assert talk.types.count("result") == units

        # The rest, up to the end of the first second, is a unit as ever; else units follow each
        # other as long as a pause may last, so that one of them can be answered.
        for more in range(1, 6) if ends_early else [1]:
            talk.say(chunk(quiet(0.1)))
            await talk.until("result", units + more)


@pytest.mark.parametrize(
    ("heard_meanwhile", "continues"),
    [
        pytest.param([loud(0.1), loud(0.1)], True, id="speech"),
        pytest.param([loud(0.06), quiet(0.1)], False, id="a click"),
        pytest.param([quiet(0.1), quiet(0.1)], False, id="quiet"),
    ],
)
async def test_an_answer_that_the_user_overtakes_is_never_sent(
    heard_meanwhile: list[str], continues: bool
) -> None:
    parrot = Parrot(1)
    parrot._spec = dataclasses.replace(parrot.spec, answers_short_units=True)
    async with worker_harness(model=parrot) as harness:
        talk = await started(harness, config={"force_listen_count": 0})
        for piece in [loud(0.1)] * 5 + [quiet(0.1)] * 4:
            talk.say(chunk(piece))
        await talk.until("result", 1)
        harness.gate.shut(Stage.DECODE)
        for _ in range(2):
            talk.say(chunk(quiet(0.1)))
        await harness.gate.arrived()
        for piece in heard_meanwhile:
            talk.say(chunk(piece))
        await talk.drained()
        harness.gate.open()
        result = await talk.until("result", 2)

        assert result["is_listen"] is continues
        if continues:
            # Nothing of it is lost: it is answered with what follows.
            while result["is_listen"]:
                (result,) = await one_by_one(talk, chunk(quiet()))
            (seconds,) = re.findall(r"You spoke for ([\d.]+) ", result["text"])
            assert float(seconds) >= 1.5


@pytest.mark.parametrize("is_external", [True, False])
async def test_an_interruption_makes_the_next_unit_listen(is_external: bool):
    async with worker_harness() as harness:
        talk = await started(harness)
        await spoken_to(talk)
        if is_external:
            assert harness.host.stop_turn(StopTurn("r", talk.lease.lease_id))
        else:
            talk.say({"type": "interrupt"})
        (result,) = await one_by_one(talk, chunk(quiet()))

        assert is_external or "interrupted" in talk.types
        assert result["is_listen"] is True


async def test_a_frame_that_comes_ahead_goes_with_the_next_unit_and_the_newest_four_are_kept():
    async with worker_harness() as harness:
        talk = await started(harness)
        for _ in range(6):
            talk.say({"type": "video_frame", "frame": JPEG})
        first, second = await one_by_one(talk, chunk(), chunk())

        assert first["vision_slices"] == 4
        assert second["vision_slices"] == 0


async def test_every_unit_is_settled_before_the_next_one_begins(monkeypatch):
    async with worker_harness() as harness:
        order: list[str] = []
        step = harness.faults.step

        def watch(stage, jobs):
            order.append(stage.value)
            step(stage, jobs)

        monkeypatch.setattr(harness.faults, "step", watch)
        talk = await started(harness)
        await one_by_one(talk, *[chunk()] * 3)
        talk.say({"type": "stop"})
        await talk.over()

        stages = [stage for stage in order if stage in ("encode", "decode", "finalize")]
        assert stages == ["encode", "decode", "finalize"] * 3


async def test_the_result_is_sent_before_the_unit_is_settled_unless_asked_otherwise():
    async with worker_harness() as harness:
        talk = await started(harness)
        harness.gate.shut(Stage.FINALIZE)
        await one_by_one(talk, chunk())
        await harness.gate.arrived()
        harness.gate.open()

    async with worker_harness() as harness:
        talk = await started(harness, deferred_finalize=False)
        harness.gate.shut(Stage.FINALIZE)
        talk.say(chunk())
        await harness.gate.arrived()
        assert "result" not in talk.types
        harness.gate.open()
        await talk.until("result")


@pytest.mark.parametrize("stage", [Stage.DECODE, Stage.FINALIZE])
async def test_stop_is_heard_while_a_unit_is_computed_and_the_slot_is_free_when_it_is(stage):
    async with worker_harness() as harness:
        talk = await started(harness)
        harness.gate.shut(stage)
        talk.say(chunk())
        await harness.gate.arrived()

        talk.say({"type": "stop"})
        assert await talk.socket.until_closed() == 1000
        result = ["result"] if stage is Stage.FINALIZE else []
        assert talk.types == ["prepared", *result, "stopped"]
        beat = harness.host.heartbeat()
        assert (beat.state, beat.free_slots) == ("cleanup", 0)
        harness.gate.open()
        await talk.over()

        assert harness.host.heartbeat().free_slots == 1


async def test_pause_lets_the_unit_in_flight_finish_and_drops_the_rest():
    async with worker_harness() as harness:
        talk = await started(harness)
        harness.gate.shut(Stage.DECODE)
        for _ in range(3):
            talk.say(chunk(frame_base64_list=[JPEG]))
        await harness.gate.arrived()
        talk.say({"type": "video_frame", "frame": JPEG})
        talk.say({"type": "pause", "timeout": 30})
        paused = await talk.until("paused")
        assert not harness.host.stop_turn(StopTurn("r", talk.lease.lease_id))
        harness.gate.open()
        await talk.until("result")
        talk.say(chunk())
        refused = await talk.until("error")
        talk.say({"type": "resume"})
        await talk.until("resumed")
        (result,) = await one_by_one(talk, chunk())

        assert result["vision_slices"] == 0
        assert paused["timeout"] == 30
        assert refused["error"] == "Worker is paused"
        assert talk.types.count("result") == 2


async def test_the_gateway_hears_about_pauses():
    async with worker_harness() as harness:
        talk = await started(harness)
        talk.say({"type": "pause"})
        await talk.until("paused")
        states = [harness.host.state]
        talk.say({"type": "resume"})
        await talk.until("resumed")
        states.append(harness.host.state)
        talk.say({"type": "stop"})
        await talk.over()

        assert states == ["duplex_paused", "duplex_active"]
        assert harness.phases(talk) == [
            "preparing",
            "active",
            "paused",
            "active",
            "cleanup",
            "ended",
        ]
        told = [r for r in harness.reports if isinstance(r, SessionPhase)]
        paused = next(r for r in told if r.phase == "paused")
        assert paused.pause_left_s == pytest.approx(60, abs=1)
        assert [told[0].was_ready, paused.was_ready] == [False, True]


async def test_a_pause_that_lasts_too_long_ends_the_session():
    async with worker_harness(clock=ManualClock()) as harness:
        talk = await started(harness)
        talk.say({"type": "pause"})
        await talk.until("paused")
        await harness.pass_time(60, due="pause")

        assert await talk.over() == 1000
        assert talk.socket.sent[-1]["type"] == "timeout"
        assert talk.socket.sent[-1]["elapsed_s"] == 60


async def test_silence_ends_an_active_session_but_not_a_paused_one():
    async with worker_harness(clock=ManualClock(), duplex_silence_s=120) as harness:
        talk = await started(harness)
        await harness.pass_time(119, due="silence")
        talk.say({"type": "pause", "timeout": 300})
        await talk.until("paused")
        await harness.pass_time(200, due="pause")
        assert talk.socket.closed is None
        talk.say({"type": "resume"})
        await talk.until("resumed")
        await harness.pass_time(119, due="silence")
        assert talk.socket.closed is None
        await harness.pass_time(1, due="silence")

        assert await talk.over() == 1000
        assert talk.socket.sent[-1]["type"] == "timeout"


async def test_a_failed_unit_is_reported_and_the_session_continues():
    async with worker_harness() as harness:
        talk = await started(harness)
        for stage in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE):
            harness.faults.fail_at(stage)
            talk.say(chunk())
            await talk.until("error", talk.types.count("error") + 1)
            await one_by_one(talk, chunk())

        assert {m["code"] for m in talk.socket.sent if m["type"] == "error"} == {"inference_error"}


async def test_a_unit_that_cannot_be_settled_ends_the_session():
    async with worker_harness() as harness:
        talk = await started(harness)
        harness.faults.fail_at(Stage.FINALIZE)
        talk.say(chunk())

        assert await talk.over() == 1011
        assert talk.types[-1] == "error"


async def test_a_full_context_ends_the_session_after_an_error():
    async with worker_harness(context_tokens=60) as harness:
        talk = await started(harness)
        await one_by_one(talk, *[chunk()] * 3)
        for _ in range(2):  # room for one of them at most
            talk.say(chunk())

        assert await talk.over() == 1000
        assert talk.types[-2:] == ["error", "stopped"]
        assert talk.socket.sent[-2]["code"] == "context_full"


async def test_a_failed_preparation_leaves_another_try():
    async with worker_harness() as harness:
        talk = harness.begin("duplex")
        talk.say({"type": "prepare", "config": {"temperature": 9}})
        talk.say({"type": "prepare", "ref_audio_base64": "?"})
        talk.say({"type": "prepare", "ref_audio_base64": pcm64(sound(silence(0.01)))})
        await talk.until("error", 3)
        talk.say({"type": "prepare"})
        await talk.until("prepared")

        assert [m["code"] for m in talk.socket.sent[:3]] == [
            "invalid_config",
            "invalid_payload",
            "invalid_payload",
        ]


async def test_bad_input_is_answered_and_the_session_continues():
    rows: list[tuple[Any, str]] = [
        (chunk("AADAfw=="), "invalid_payload"),
        (chunk(pcm64(sound(silence(11)))), "invalid_payload"),
        (chunk(frame_base64_list=[base64.b64encode(b"no picture").decode()]), "invalid_payload"),
        ({"type": "resume"}, "invalid_event"),
    ]
    async with worker_harness() as harness:
        talk = await started(harness)
        for count, (frame, code) in enumerate(rows, 1):
            talk.say(frame)
            assert (await talk.until("error", count))["code"] == code, frame
        await one_by_one(talk, chunk())
