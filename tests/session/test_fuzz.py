"""Random sessions of all dialects: whatever a client does, nothing crashes and nothing leaks."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.dialects import MESSAGES, NAMES, DialectName
from tests.support.long import times
from tests.support.patience import HANG_S
from tests.support.sessions import Talk, WorkerHarness, loud, pcm64, quiet, worker_harness
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.engine.work import Stage
from parley.media.image import encode_jpeg
from parley.protocol.control import BUSY_STATUS

JPEG = base64.b64encode(encode_jpeg(np.zeros((24, 32, 3), np.uint8))).decode()
NAN = base64.b64encode(b"\0\0\xc0\x7f" * 4000).decode()
INFINITE = base64.b64encode(b"\0\0\x80\x7f" * 4000).decode()

SOUNDS = [
    loud(),
    quiet(),
    loud(0.25),
    pcm64(sound(speak(1.0), silence(1.2), speak(0.5), silence(1.0))),
    loud(3.0),
    loud(0.001),
    quiet(11),
    NAN,
    INFINITE,
    "",
    "AAA",
    "AAAA",
    "!!!!",
    JPEG,
]
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1e300,
    10**30,
    "",
    "x" * 70_000,
    [],
    {},
    [[]],
    {"a": {}},
    "\u0000",
]
RAW: list[str | bytes] = [
    "",
    "{",
    "null",
    "[]",
    "7",
    '"prepare"',
    "[" * 10_000,
    '{"a":' * 200 + "1" + "}" * 200,
    '{"type": "\\ud800"}',
    '{"type": NaN}',
    "x" * 300_000,
    b"\xff\x00",
    b'{"type": "stop"}',
]

sounds = st.sampled_from(SOUNDS)
junk = st.sampled_from(JUNK)
frames = st.lists(
    st.sampled_from([JPEG, "?", "", base64.b64encode(b"GIF89a").decode()]), max_size=5
)


def objects(name: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A message with some of its fields, each good or junk."""
    return st.fixed_dictionaries(
        {"type": st.just(name)},
        optional={key: st.one_of(value, value, value, junk) for key, value in fields.items()},
    )


def valid(**message: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.just(message)


system = st.lists(
    st.one_of(
        st.just({"type": "text", "text": "Be kind."}),
        st.builds(lambda data: {"type": "audio", "data": data}, sounds),
        junk,
    ),
    max_size=3,
)

VOCABULARY: dict[DialectName, st.SearchStrategy[Any]] = {
    "chat": st.one_of(
        valid(messages=[{"role": "user", "content": "Hello!"}], tts={}),
        valid(messages=[{"role": "user", "content": [{"type": "audio", "data": loud()}]}], tts={}),
        st.fixed_dictionaries(
            {
                "messages": st.lists(
                    st.fixed_dictionaries(
                        {
                            "role": st.sampled_from(["user", "system", "assistant", "robot"]),
                            "content": st.one_of(
                                st.just("Hello!"),
                                junk,
                                st.lists(
                                    st.one_of(
                                        junk,
                                        objects("text", text=st.just("words")),
                                        objects("audio", data=sounds, sample_rate=junk),
                                        objects("image", data=st.sampled_from([JPEG, "?"])),
                                        objects("video", data=st.just(JPEG), stack_frames=junk),
                                    ),
                                    max_size=3,
                                ),
                            ),
                        }
                    ),
                    max_size=3,
                )
            },
            optional={
                "streaming": st.booleans(),
                "tts": st.one_of(junk, st.builds(lambda s: {"ref_audio_data": s}, sounds)),
                "generation": st.one_of(junk, st.just({"max_new_tokens": 3})),
                "image": junk,
            },
        ),
        valid(type="stop"),
        objects("anything"),
    ),
    "half_duplex": st.one_of(
        valid(type="prepare"),
        valid(type="prepare"),
        valid(type="audio_chunk", audio_base64=SOUNDS[3]),
        valid(type="audio_chunk", audio_base64=SOUNDS[3]),
        objects("prepare", system_prompt=st.just("x"), system_content=system, config=junk),
        objects("prepare", ref_audio_base64=sounds, config=st.just({"tts": {"enabled": False}})),
        objects("audio_chunk", audio_base64=sounds),
        valid(type="stop"),
        objects("sing"),
    ),
    "duplex": st.one_of(
        valid(type="prepare"),
        valid(type="prepare"),
        valid(type="audio_chunk", audio_base64=SOUNDS[0], frame_base64_list=[JPEG]),
        valid(type="audio_chunk", audio_base64=SOUNDS[1]),
        objects("prepare", system_prompt=st.just("x"), config=junk, ref_audio_base64=sounds),
        objects("audio_chunk", audio_base64=sounds, frame_base64_list=frames, force_listen=junk),
        objects("video_frame", frame=st.sampled_from([JPEG, "?"])),
        objects("pause", timeout=st.sampled_from([0, 5, 1000])),
        valid(type="resume"),
        valid(type="interrupt"),
        objects("client_diagnostic", metrics=junk),
        valid(type="stop"),
        objects("sing"),
    ),
    "realtime": st.one_of(
        valid(type="session.update", session={"instructions": "Be kind."}),
        valid(type="session.update", session={"instructions": "Be kind."}),
        valid(type="input_audio_buffer.append", audio=SOUNDS[0], video_frames=[JPEG]),
        valid(type="input_audio_buffer.append", audio=SOUNDS[1]),
        objects("session.update", session=st.one_of(junk, st.just({"instructions": ""}))),
        objects("input_audio_buffer.append", audio=sounds, video_frames=frames, force_listen=junk),
        objects("session.close", reason=junk),
        objects("sing"),
    ),
}

SETUP: dict[DialectName, Any] = {
    "chat": {"messages": [{"role": "user", "content": "Hello! " * 20}], "tts": {}},
    "half_duplex": {"type": "prepare", "config": {"session": {"timeout_s": 60}}},
    "duplex": {"type": "prepare"},
    "realtime": {"type": "session.update", "session": {"instructions": "Be kind."}},
}

USUAL: dict[DialectName, list[Any]] = {
    "chat": [{"type": "stop"}, {"type": "keep-alive"}],
    "half_duplex": [
        {"type": "audio_chunk", "audio_base64": SOUNDS[3]},
        {"type": "audio_chunk", "audio_base64": SOUNDS[0]},
        {"type": "audio_chunk", "audio_base64": SOUNDS[1]},
    ],
    "duplex": [
        {"type": "audio_chunk", "audio_base64": SOUNDS[0], "frame_base64_list": [JPEG]},
        {"type": "audio_chunk", "audio_base64": SOUNDS[1]},
        {"type": "audio_chunk", "audio_base64": SOUNDS[1], "force_listen": True},
        {"type": "pause"},
        {"type": "resume"},
    ],
    "realtime": [
        {"type": "input_audio_buffer.append", "audio": SOUNDS[0], "video_frames": [JPEG]},
        {"type": "input_audio_buffer.append", "audio": SOUNDS[1]},
        {"type": "input_audio_buffer.append", "audio": SOUNDS[1], "force_listen": True},
    ],
}
"""What a live client says all the time."""

# How long the client waits before it does the next thing.
pauses = st.one_of(
    st.tuples(st.just("yield"), st.integers(0, 40)),
    st.tuples(st.just("finalize"), st.just(0)),
    st.tuples(st.just("finalize"), st.just(0)),
)

endings = st.one_of(
    st.tuples(st.just("hang up"), st.just(0)),
    st.tuples(st.just("finalize"), st.just(0)),
    st.tuples(st.just("shut down"), st.just(0)),
    st.tuples(st.just("time"), st.sampled_from([31.0, 200.0, 2000.0])),
)

CLOSE_CODES = {1000, 1001, 1003, 1008, 1009, 1011, 1013, BUSY_STATUS}
ERROR_CODES: dict[DialectName, set[str]] = {
    "chat": {
        "invalid_json",
        "invalid_request",
        "invalid_payload",
        "context_full",
        "too_large",
        "timeout",
        "inference_error",
        "service_unavailable",
    },
    "half_duplex": {
        "invalid_json",
        "not_prepared",
        "already_prepared",
        "invalid_config",
        "invalid_payload",
        "missing_field",
        "unknown_event",
        "too_large",
        "context_full",
        "inference_error",
        "service_unavailable",
    },
    "duplex": {
        "invalid_json",
        "not_ready",
        "invalid_event",
        "invalid_config",
        "invalid_payload",
        "missing_field",
        "unknown_event",
        "context_full",
        "inference_error",
        "service_unavailable",
    },
    "realtime": {
        "not_ready",
        "unknown_event",
        "missing_field",
        "invalid_payload",
        "invalid_event",
        "inference_error",
        "service_unavailable",
    },
}


def sessions(dialect: DialectName) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Most begin as they should; then anything may come, each followed by a pause."""
    setup = [("say", SETUP[dialect]), ("finalize", 0)]
    usual = st.tuples(st.just("say"), st.sampled_from(USUAL[dialect]))
    step = st.one_of(
        usual,
        usual,
        usual,
        st.tuples(st.just("say"), VOCABULARY[dialect]),
        st.tuples(st.just("fault"), st.sampled_from(list(Stage))),
        st.tuples(st.just("time"), st.sampled_from([0.1, 1.0, 15.0])),
        st.tuples(st.just("say"), st.sampled_from(RAW)),
    )
    steps = st.lists(st.tuples(step, pauses), max_size=8)
    return st.builds(
        lambda begin, middle, end: [*begin, *(each for pair in middle for each in pair), end],
        st.sampled_from([setup, setup, setup, setup[:1], []]),
        steps,
        endings,
    )


async def live(dialect: DialectName, actions: list[tuple[str, Any]]) -> None:
    async with asyncio.timeout(HANG_S), worker_harness(clock=ManualClock(), slots=1) as harness:
        talk = harness.begin(dialect)
        for name, value in actions:
            await act(harness, talk, name, value)
        await harness.close()
        # A newcomer to a worker that leaves is turned away and has no phases.
        assert harness.phases(talk)[-1:] == ["ended"] or talk.socket.close_code == BUSY_STATUS
    check(dialect, talk)


async def act(harness: WorkerHarness, talk: Talk, name: str, value: Any) -> None:
    match name:
        case "say":
            talk.say(value)
        case "yield":
            for _ in range(value):
                await asyncio.sleep(0)
        case "finalize":
            await settled(harness, talk)
        case "time":
            assert isinstance(harness.host.clock, ManualClock)
            harness.host.clock.advance(value)
            for each in harness._lives():
                each.check_deadlines()
        case "fault":
            harness.faults.fail_at(value)
        case "hang up":
            talk.socket.hang_up()
        case "shut down":
            harness.host.leave(0.0)
        case _:
            raise AssertionError(name)


async def settled(harness: WorkerHarness, talk: Talk) -> None:
    """Pace the client: until nothing seems to happen any more. Lives need not be exact here."""
    calm = 0
    while calm < 5 and not talk.task.done():
        before = len(talk.socket.sent)
        await asyncio.sleep(0.0005)
        is_busy = (
            not talk.socket._incoming.empty()
            or harness.engine._loop._order.count > 0
            or len(talk.socket.sent) != before
        )
        calm = 0 if is_busy and talk.socket.closed is None else calm + 1


def check(dialect: DialectName, talk: Talk) -> None:
    for message in talk.socket.sent:
        MESSAGES[dialect].decode_server(json.dumps(message))
        if message["type"] == "error":
            body = message["error"]
            code = body["code"] if isinstance(body, dict) else message["code"]
            assert code in ERROR_CODES[dialect], message
            assert "Traceback" not in json.dumps(message)
            assert "injected" not in json.dumps(message)
    assert talk.socket.close_code in CLOSE_CODES
    if dialect == "realtime":
        assert talk.types.count("session.closed") <= 1
        assert "session.closed" not in talk.types[:-1]
    if dialect == "half_duplex":
        assert_turns_in_order(talk.types)
    if dialect == "chat":
        assert talk.types.count("done") <= 1
        assert talk.types.count("prefill_done") <= 1


def assert_turns_in_order(types: list[str]) -> None:
    """`generating` follows the end of speech at once, and each one has its `turn_done`."""
    open_turn = False
    for before, name in zip(["", *types], types, strict=False):
        if name == "generating":
            assert before == "vad_state"
            assert not open_turn
            open_turn = True
        elif name == "chunk":
            assert open_turn
        elif name == "turn_done":
            assert open_turn
            open_turn = False


@pytest.mark.parametrize("dialect", NAMES)
def test_random_lives_leave_nothing_behind(dialect: DialectName):
    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(actions=sessions(dialect))
    def run(actions: list[tuple[str, Any]]) -> None:
        asyncio.run(live(dialect, actions))

    run()


@pytest.mark.slow
def test_one_worker_lives_through_random_sessions_of_every_dialect():
    """Each on the same engine as the one before; at the end all is as it was at the beginning."""
    with asyncio.Runner() as runner:
        runner.run(asyncio.sleep(0))
        before = held_by_process()
        home_context = worker_harness(clock=ManualClock(), slots=1)
        harness = runner.run(home_context.__aenter__())

        def live_once(dialect: DialectName, actions: list[tuple[str, Any]]) -> None:
            kept = [each for each in actions if each[0] != "shut down"]
            runner.run(live_in(harness, dialect, kept))

        examples = times(15, 250)
        many = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        for dialect in NAMES:
            many(given(st.just(dialect), sessions(dialect))(live_once))()

        assert harness.host.meter.total_requests >= 4 * examples
        runner.run(home_context.__aexit__(None, None, None))
        threads, files = held_by_process()
        assert threads <= before[0] + 8  # the loop's pool keeps its threads
        assert files <= before[1]


async def live_in(
    harness: WorkerHarness, dialect: DialectName, actions: list[tuple[str, Any]]
) -> None:
    async with asyncio.timeout(HANG_S):
        talk = harness.begin(dialect)
        for name, value in actions:
            await act(harness, talk, name, value)
        talk.socket.hang_up()
        await talk.task
        harness.faults._plans.clear()
        harness._talks.clear()
        assert harness.phases(talk)[-1] == "ended"
        harness.reports.clear()
        assert harness.engine.free_slots == 1
        assert harness.host.state == "idle"
    check(dialect, talk)


def held_by_process() -> tuple[int, int]:
    """Threads and open files."""
    process = psutil.Process()
    return process.num_threads(), process.num_fds()
