"""A session goes on at another worker from every copy that its gateway may have had: its client
hears what it would have heard, bit for bit."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.models.cascade.parts import small_cascade
from tests.support.long import times
from tests.support.patience import HANG_S
from tests.support.resumed_talks import UNITS, comparable
from tests.support.session_logs import FakeSessionLogs
from tests.support.sessions import KINDS, Talk, WorkerHarness, worker_harness
from tests.support.sockets import FakeSocket
from tests.support.talking import b64
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock, SystemClock
from parley.dialects.events import UnitDone
from parley.engine.engine import Engine
from parley.errors import ParleyError
from parley.media.resample import resample
from parley.models.parrot import Parrot
from parley.protocol.resume import hash_of
from parley.recording import lines
from parley.recording.layout import Folder, RecordingFolders
from parley.recording.lines import AnswerLine, HeadLine, TurnLine, UnitLine
from parley.session import state_codec
from parley.session.entries import Committed
from parley.session.log import decoded
from parley.session.rerun import rerun
from parley.session_log.contract import LogContents
from parley.worker.lease import LeasedSlot
from parley.worker.recording import Recordings

Message = dict[str, Any]
Step = Message | str
"""What the client says, or the type of the message for which it waits."""

NOT_NUMBERED = frozenset({"session.resumed", "session.input_ack"})

# The turn ends within its last piece: what comes while it is answered is dropped by design.
SPOKEN = sound(silence(0.6), speak(1.0), silence(0.9))
TURN: list[Step] = [
    *({"type": "audio_chunk", "audio_base64": b64(SPOKEN.slice(at, at + 8000))}
      for at in range(0, len(SPOKEN), 8000)),
    "turn_done",
]  # fmt: skip


def in_units(name: str, answer: str, messages: list[Message], last: str) -> list[Step]:
    steps: list[Step] = []
    for message in messages:
        steps += [{"type": name, **message}, answer]
    return [*steps, {"type": last}]


LIVE = "session."


def live_sound(*parts: Any) -> Message:
    samples = resample(sound(*parts), 24_000).samples * 32767
    audio = base64.b64encode(samples.astype("<i2").tobytes()).decode()
    return {"type": f"{LIVE}input_audio.append", "audio": audio}


def written(number: int) -> Message:
    content = [{"type": "input_text", "text": f"Say {number}."}]
    item = {"id": f"item_w{number}", "type": "message", "role": "user", "content": content}
    return {"type": "conversation.item.create", "item": item}


def openai_turns() -> Iterator[Step]:
    """A spoken and a written turn, twice; the client says when one is complete."""
    update: dict[str, Any] = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    update |= {"max_output_tokens": 12}
    yield {"type": "session.update", "session": update}
    yield "session.updated"
    for number in range(2):
        for _ in range(2):
            yield {**live_sound(speak(0.5)), "type": "input_audio_buffer.append"}
        yield {"type": "input_audio_buffer.commit"}
        yield {"type": "response.create"}
        yield "response.done"
        yield written(number)
        yield {"type": "response.create", "response": {"output_modalities": ["text"]}}
        yield "response.done"
    yield {"type": "conversation.item.delete", "item_id": "item_w0"}
    yield "conversation.item.deleted"
    yield written(2)
    yield {"type": "response.create", "response": {"output_modalities": ["text"]}}
    yield "response.done"
    yield "rate_limits.updated"


# What marks the time, where nothing else is told.
MARK: list[Step] = [
    *({"type": f"{LIVE}input_audio.mute"}, f"{LIVE}input_audio.muted"),
    *({"type": f"{LIVE}input_audio.unmute"}, f"{LIVE}input_audio.unmuted"),
]

TALKS: dict[str, tuple[Message, list[Step]]] = {
    "half_duplex": (
        {"type": "prepare", "resume": True},
        [
            *TURN,
            *TURN,
            # Each is in a copy of its own, however busy the machine is.
            *({"type": "input_text", "text": "Hello."}, "turn_done"),
            *({"type": "input_text", "text": "And again."}, "turn_done"),
            {"type": "stop"},
        ],
    ),
    "duplex": (
        {"type": "prepare", "resume": True},
        in_units("audio_chunk", "result", [{"audio_base64": unit} for unit in UNITS], "stop"),
    ),
    "realtime": (
        {"type": "session.update", "session": {"instructions": "Be kind.", "resume": True}},
        in_units(
            "input_audio_buffer.append", "response", [{"audio": u} for u in UNITS], "session.close"
        ),
    ),
    # Nothing is said while the model listens. The first second is a little longer, because the
    # resampler keeps the end of what it was given.
    "openai_live": (
        {"type": "session.start", "session": {"model": "any", "resume": True}},
        [
            *(live_sound(speak(1.0), silence(0.1)), *MARK),
            *(live_sound(speak(0.5), silence(0.5)), *MARK),
            *(live_sound(silence(1.0)), *MARK),
            *(live_sound(silence(1.0)), f"{LIVE}output_audio.delta", *MARK),
            *(live_sound(silence(1.0)), f"{LIVE}output_audio.delta", *MARK),
            *({"type": "session.close"}, "session.closed"),
        ],
    ),
    "openai_realtime": (
        {"type": "session.update", "session": {"type": "realtime", "resume": True}},
        list(openai_turns()),
    ),
}


class GatewayEnd:
    """The gateway's end of the socket that asks for rebuilding."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def send(self, frame: str) -> None:
        self.answer.set_result(json.loads(frame))

    async def close(self, code: int, reason: str) -> bool:
        return True


def matches(heard: Message, wanted: str) -> bool:
    return bool(heard["type"].startswith(wanted))


async def until_true(what: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def hear_all(
    socket: FakeSocket, steps: list[Step], heard: list[Message], received: int
) -> list[Message]:
    """Go through a conversation, of which `heard` was heard and so many messages were received;
    everything that was heard."""
    said = 1

    def everything() -> list[Message]:
        fresh = [each for each in socket.sent if each["type"] not in NOT_NUMBERED and "seq" in each]
        return [*heard, *fresh]

    async def until(wanted: str, since: int) -> int:
        def found() -> list[int]:
            known = everything()
            assert socket.closed is None or len(known) > since, wanted
            return [at for at in range(since, len(known)) if matches(known[at], wanted)]

        await until_true(found)
        return found()[0] + 1

    waited = 1
    for step in steps:
        if isinstance(step, str):
            waited = await until(step, waited)
            continue
        said += 1
        if said > received:
            socket.say(step)
    if steps[-1] == "rate_limits.updated":
        # Whoever has heard everything leaves, where there is no word for it.
        socket.leave()
        return everything()
    await until_true(lambda: socket.closed is not None)
    return everything()


async def whole_talk(harness: WorkerHarness, name: Any) -> tuple[list[Message], FakeSessionLogs]:
    logs = harness.host.session_logs = FakeSessionLogs()
    first, steps = TALKS[name]
    talk: Talk = harness.begin(name, extensions=name == "half_duplex")
    talk.say(first)
    await until_true(lambda: [m for m in talk.socket.sent if "resume_token" in m])
    heard = await hear_all(talk.socket, steps, [], 1)
    await talk.over()
    return heard, logs


async def rebuilt_talk(
    harness: WorkerHarness,
    name: Any,
    number: int,
    kept: LogContents,
    whole: list[Message],
    past: Message | None = None,
) -> list[Message]:
    """`past`: sent before the worker was lost, and again now."""
    lease = LeasedSlot(f"again-{number}", "session", name, KINDS[name])
    asking = GatewayEnd()
    harness.host.session_logs = FakeSessionLogs(offered=kept)
    slot = await harness.host.admit(lease)
    holding = asyncio.create_task(harness.host.rebuild(lease, slot, asking))  # type: ignore[arg-type]
    answer = await asking.answer
    assert answer == {"type": "rebuild_result", "problem": ""}
    # Nothing that is not in the copy was told; all of it may have been.
    seq = kept.outputs[-1].seq if kept.outputs else whole[0]["seq"]
    seen = whole[:seq]
    assert all(plain([json.loads(o.frame)]) == plain([whole[o.seq - 1]]) for o in kept.outputs)
    socket = FakeSocket()
    token = hash_of(whole[0]["resume_token"])
    sent = 0 if past is None else state_codec.joined(kept.state)["received"] + 1
    attaching = asyncio.create_task(harness.host.attach(lease.lease_id, socket, token, seq, sent))
    resumed = await socket.until("session.resumed")
    if past is not None:
        socket.say(past)
    heard = await hear_all(socket, TALKS[name][1], seen, resumed["received"])
    await asyncio.gather(holding, attaching)
    return heard


UNHURRIED: dict[str, Any] = {"mailbox_units": 16}
"""Seconds that wait because the machine is busy are not dropped: they would be missing in one of
two runs."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that an answer takes long: on a busy machine one of two runs would be."""
    for runner in ("duplex", "conversation"):
        monkeypatch.setattr(f"parley.session.{runner}.MODEL_S", HANG_S)


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with worker_harness(slots=2, **UNHURRIED) as running:
        yield running


@pytest.mark.parametrize("name", TALKS)
async def test_a_session_goes_on_from_every_copy(harness: WorkerHarness, name: str) -> None:
    await goes_on_from_every_copy(harness, name)


@pytest.mark.parametrize("name", TALKS)
async def test_a_session_of_a_model_that_says_what_it_chose_does_so_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "openai_live":
        # Nothing is told of a second that leaves the answer to the next one.
        monkeypatch.setattr("parley.models.cascade.units.UNIT_COST", 1000)
    async with worker_harness(slots=2, model=small_cascade(rows=2), **UNHURRIED) as harness:
        # What does not depend on the model is tried from every copy, above.
        every = times(2, 1)
        await goes_on_from_every_copy(harness, name, every=every)


@pytest.mark.parametrize("name", ["duplex", "half_duplex"])
async def test_sound_that_nobody_needs_any_more_is_not_kept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.session.log.COMPACT_BYTES", 0)
    monkeypatch.setattr("parley.session.log.COMPACT_GROWTH", 0)
    monkeypatch.setattr("parley.session.duplex.KEPT_UNITS", 0)
    async with worker_harness(slots=2, model=small_cascade(rows=2), **UNHURRIED) as harness:
        logs = await goes_on_from_every_copy(harness, name, every=4)

    entries = list(decoded(logs[-1]))
    sounds = [entry.pcm for entry in entries if isinstance(entry, Committed)]
    sounds += [e.unit.pcm for e in entries if isinstance(e, UnitDone) and e.unit is not None]
    silent = [not pcm.samples.any() for pcm in sounds if len(pcm)]
    assert silent.count(True) > len(silent) / 2


async def goes_on_from_every_copy(
    harness: WorkerHarness, name: str, *, every: int = 1
) -> list[bytes]:
    """The logs from which it went on.

    Args:
        every: of so many copies one is tried, and the last.
    """
    whole, logs = await whole_talk(harness, name)
    taken = logs.taken
    assert len(taken) >= 6

    for number, kept in [*enumerate(taken)][::-every]:
        heard = await rebuilt_talk(harness, name, number, kept, whole)
        assert comparable(plain(heard)) == comparable(plain(whole)), number
    return [kept.entries for kept in taken if state_codec.joined(kept.state)["closing"] is None]


async def test_sound_sent_while_an_answer_was_said_is_not_heard_after_it(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = Parrot.step

    def step(*given: Any) -> None:
        time.sleep(0.01)
        at_once(*given)

    # Slow enough for copies in the middle of an answer.
    monkeypatch.setattr(Parrot, "step", step)
    whole, logs = await whole_talk(harness, "half_duplex")
    kept = next(kept for kept in logs.taken if is_half_said(kept))
    # It is no multiple of what the detector hears at once, so the next turn would be cut elsewhere.
    past = {"type": "audio_chunk", "audio_base64": b64(sound(silence(0.3)))}

    heard = await rebuilt_talk(harness, "half_duplex", 1, kept, whole, past)

    assert comparable(plain(heard)) == comparable(plain(whole))


def is_half_said(kept: LogContents) -> bool:
    """True if the client knew the beginning of an answer."""
    answer = state_codec.joined(kept.state)["runner"]["response"]
    return bool(answer and answer["emitted"] and not answer["has_ended"])


def plain(messages: list[Message]) -> list[Message]:
    return [
        {key: value for key, value in each.items() if key not in ("received", "resume_token")}
        for each in messages
    ]


@pytest.mark.parametrize("part", [0.3, 0.5])
@pytest.mark.parametrize("name", ["duplex", "half_duplex", "openai_realtime"])
async def test_the_rest_of_a_recorded_session_is_recorded_as_a_second_part(
    tmp_path: Path, name: str, part: float
) -> None:
    recordings = Recordings(
        RecordingFolders(tmp_path),
        worker_id="w",
        model="parrot",
        clock=SystemClock(),
        min_free_gb=0,
    )
    async with worker_harness(slots=2, recordings=recordings) as harness:
        whole, logs = await whole_talk(harness, name)
        kept = logs.taken[round(part * len(logs.taken))]
        await rebuilt_talk(harness, name, 1, kept, whole)
    recordings.close()

    folders = sorted(recordings.folders, key=lambda folder: head_of(folder).created_s)
    first, second = map(head_of, folders)
    assert second.continues == first.recording_id
    assert not first.continues
    assert second.seed == first.seed
    whole_count, part_count = (
        len([line for line in lines.read(folder.journal).lines if isinstance(line, WHAT_HAPPENS)])
        for folder in folders
    )
    assert 0 < part_count < whole_count
    assert all(folder.path.joinpath("recording.json").exists() for folder in folders)
    for folder in folders:
        async with Engine(Parrot(1)) as engine:
            slot = await engine.take_slot()
            found = await rerun(folder, slot)
            await slot.close()
        assert (found.differences, found.ended) == ([], ""), folder
        assert found.is_equal
        assert found.compared == whole_count_of(folders[0])


def whole_count_of(folder: Folder) -> int:
    """Number of units or answers."""
    whole = lines.read(folder.journal).lines
    return sum(isinstance(line, UnitLine | AnswerLine) for line in whole)


WHAT_HAPPENS = (UnitLine, TurnLine, AnswerLine)


def head_of(folder: Folder) -> HeadLine:
    head = lines.read(folder.journal).last(HeadLine)
    assert head is not None
    return head


async def test_a_client_that_asks_late_finds_the_items_of_before(harness: WorkerHarness) -> None:
    logs = harness.host.session_logs = FakeSessionLogs()
    talk = harness.begin("openai_realtime", extensions=False)
    talk.say(written(1))
    talk.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
    await talk.until("response.done")
    talk.say({"type": "session.update", "session": {"type": "realtime", "resume": True}})
    ready = await talk.until("session.updated")
    await until_true(lambda: logs.taken)

    lease = LeasedSlot("again", "session", "openai_realtime", KINDS["openai_realtime"])
    asking = GatewayEnd()
    harness.host.session_logs = FakeSessionLogs(offered=logs.taken[-1])
    slot = await harness.host.admit(lease)
    holding = asyncio.create_task(harness.host.rebuild(lease, slot, asking))  # type: ignore[arg-type]
    assert (await asking.answer)["problem"] == ""
    socket = FakeSocket()
    token = hash_of(ready["resume_token"])
    attaching = asyncio.create_task(harness.host.attach("again", socket, token, ready["seq"]))
    socket.say({"type": "conversation.item.retrieve", "item_id": "item_w1"})
    assert (await socket.until("conversation.item.retrieved"))["item"]["role"] == "user"
    socket.say(written(2))
    socket.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
    response = (await socket.until("response.done"))["response"]
    socket.leave()
    talk.socket.leave()
    await asyncio.gather(holding, attaching)

    assert response["status"] == "completed"
    assert "Say 2." in response["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("part", ["entries", "state"])
async def test_a_copy_of_which_something_is_missing_is_refused(
    harness: WorkerHarness, part: str
) -> None:
    _, logs = await whole_talk(harness, "duplex")
    kept = logs.taken[-1]
    # A log of another build has no parts of a state.
    left: dict[str, Any] = {"entries": kept.entries[:-3], "state": {}}
    harness.host.session_logs = FakeSessionLogs(
        offered=dataclasses.replace(kept, **{part: left[part]})
    )
    lease = LeasedSlot("again", "session", "duplex", KINDS["duplex"])
    slot = await harness.host.admit(lease)

    asking = GatewayEnd()

    with pytest.raises(ParleyError) as refused:
        await harness.host.rebuild(lease, slot, asking)  # type: ignore[arg-type]

    assert harness.engine.free_slots == 2
    assert asking.answer.result() == {"type": "rebuild_result", "problem": str(refused.value)}


def _is_answered(talk: Talk, number: int) -> bool:
    return talk.types.count("result") > number or bool(talk.socket.closed)


@pytest.mark.parametrize("rolls", [False, True])
async def test_a_conversation_that_rolls_over_outlives_length_and_context(rolls: bool) -> None:
    clock = ManualClock()
    async with worker_harness(
        context_tokens=200, clock=clock, rollover=rolls, duplex_session_s=30.0
    ) as harness:
        talk = await harness.ready("duplex", resume=True)
        for number in range(40):
            talk.say({"type": "audio_chunk", "audio_base64": UNITS[number % len(UNITS)]})
            answered = partial(_is_answered, talk, number)
            await until_true(answered)
            if talk.socket.closed:
                break
        clock.advance(31.0)
        for session in harness._lives():
            session.check_deadlines()
        if rolls:
            talk.say({"type": "stop"})
        await talk.over()

    assert (talk.types.count("result") == 40) is rolls
    assert max(m.get("kv_cache_length", 0) for m in talk.socket.sent) <= 200


async def test_a_response_does_not_repeat_the_setup_in_the_log(harness: WorkerHarness) -> None:
    logs = harness.host.session_logs = FakeSessionLogs()
    talk = harness.begin("openai_realtime", extensions=False)
    setup = {"type": "realtime", "instructions": "Speak of lighthouses.", "resume": True}
    talk.say({"type": "session.update", "session": setup})
    await talk.until("session.updated")
    said = []
    for number in range(1, 4):
        talk.say(written(number))
        talk.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
        await talk.until("response.done", number)
        written_now = b"".join(
            b"".join((update.entries, *(update.state or {}).values())) for update in logs.updates
        )
        said.append(written_now.count(b"lighthouses"))
    talk.socket.leave()
    await talk.over()

    assert said[0] == said[2] > 0
