"""A session continues at another worker from every copy that its gateway may have had: its client
hears what it would have heard, bit for bit."""

import asyncio
import dataclasses
import gc
import json
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tests.models.cascade.parts import small_cascade
from tests.support.long import times
from tests.support.patience import HANG_S, until
from tests.support.recordings import JPEG, recordings
from tests.support.resumed_talks import (
    LAST_OF_ALL,
    TALKS,
    UNITS,
    Step,
    comparable,
    matches,
    spoken_turn,
    written,
)
from tests.support.session_logs import FakeSessionLogs
from tests.support.sessions import KINDS, Talk, WorkerHarness, worker_harness
from tests.support.sockets import FakeSocket
from tests.support.talking import Message, b64
from tests.support.timeline import silence, sound, speak

from parley.clock import ManualClock
from parley.dialects.events import (
    AudioInput,
    InputCommitted,
    SessionEnded,
    TurnCompleted,
    TurnStarted,
    UnitDone,
)
from parley.engine.engine import Engine
from parley.errors import ParleyError
from parley.models.parrot import Parrot
from parley.protocol.resume import hash_of
from parley.protocol.values import InterruptionOptions
from parley.recording import lines
from parley.recording.layout import Folder
from parley.recording.lines import HeadLine
from parley.session.log import decoded
from parley.session.mailbox import OWN_BY_TIME
from parley.session.rerun import rerun
from parley.session.resumable import ResumeRefused
from parley.session.socket import Disconnected
from parley.session_log import state_codec
from parley.session_log.contract import LogContents
from parley.worker.lease import LeasedSlot

NOT_NUMBERED = frozenset({"session.resumed", "session.input_ack"})

STEPS: dict[str, list[Step]] = {
    "half_duplex": [
        # The turn ends within its last piece: what comes while it is answered is dropped by design.
        *spoken_turn(0.9),
        *spoken_turn(0.9),
        # Each is in a copy of its own, however busy the machine is.
        *({"type": "input_text", "text": "Hello."}, "turn_done"),
        *({"type": "input_text", "text": "And again."}, "turn_done"),
        {"type": "stop"},
    ],
    **{
        name: TALKS[name].steps for name in ("duplex", "realtime", "openai_live", "openai_realtime")
    },
}


class GatewayEnd:
    """The gateway's end of the socket that asks for rebuilding.

    Attributes:
        holding: ends with the session.
    """

    holding: asyncio.Task[None]

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.ready = asyncio.Event()
        self.orders: asyncio.Queue[str] = asyncio.Queue()

    async def receive(self) -> str:
        return await self.orders.get()

    async def send(self, frame: str) -> None:
        message = json.loads(frame)
        if message == {"type": "rebuild_ready"}:
            self.ready.set()
        else:
            self.answer.set_result(message)

    async def close(self, code: int, reason: str) -> bool:
        return True


async def asked(
    harness: WorkerHarness, name: Any, kept: LogContents, lease_id: str = "again"
) -> GatewayEnd:
    """A worker that has continued the session of this log."""
    lease, asking = LeasedSlot(lease_id, "session", name, KINDS[name]), GatewayEnd()
    harness.host.session_logs = FakeSessionLogs(offered=kept)
    slot = await harness.host.admit(lease)
    asking.holding = asyncio.create_task(harness.host.rebuild(lease, slot, asking))  # type: ignore[arg-type]
    assert (await asking.answer)["problem"] == ""
    return asking


async def hear_all(
    socket: FakeSocket, steps: list[Step], heard: list[Message], received: int
) -> list[Message]:
    """Go through a conversation, of which `heard` was heard and so many messages were received;
    everything that was heard."""
    said = 1

    def everything() -> list[Message]:
        fresh = [each for each in socket.sent if each["type"] not in NOT_NUMBERED and "seq" in each]
        return [*heard, *fresh]

    async def heard_at(wanted: str, since: int) -> int:
        def found() -> list[int]:
            known = everything()
            assert socket.closed is None or len(known) > since, wanted
            return [at for at in range(since, len(known)) if matches(known[at], wanted)]

        await until(found)
        return found()[0] + 1

    waited = 1
    for step in steps:
        if isinstance(step, str):
            waited = await heard_at(step, waited)
            continue
        said += 1
        if said > received:
            socket.say(step)
    if steps[-1] == LAST_OF_ALL:
        socket.leave()
        return everything()
    await until(lambda: socket.closed is not None)
    return everything()


async def whole_talk(harness: WorkerHarness, name: Any) -> tuple[list[Message], FakeSessionLogs]:
    logs = harness.host.session_logs = FakeSessionLogs()
    first, steps = TALKS[name].first, STEPS[name]
    talk: Talk = harness.begin(name, extensions=name == "half_duplex")
    talk.say(first)
    await until(lambda: [m for m in talk.socket.sent if "resume_token" in m])
    heard = await hear_all(talk.socket, steps, [], 1)
    await talk.over()
    return heard, logs


def aged(kept: LogContents) -> LogContents:
    """The copy, as if all had been much longer ago and the client had been warned of an end."""
    past = {"announced": state_codec.encode(["shutdown"])} | {
        name: state_codec.encode(state_codec.decode(data) + 10 * HANG_S)
        for name, data in kept.state.items()
        if name.endswith("_ago_s")
    }
    return dataclasses.replace(kept, state=kept.state | past)


def assert_restored(kept: dict[str, Any], now: dict[str, Any] | None) -> None:
    """The session is as it was kept, but for a response, which is no longer generated."""
    if now is None:
        return  # it is answering already
    if kept["runner"].get("response") is not None:
        kept["runner"]["listener"]["is_answering"] = now["runner"]["listener"]["is_answering"]
        kept["runner"]["response"] = now["runner"]["response"]

    def compare(path: str, before: Any, after: Any) -> None:
        if isinstance(before, dict):
            assert before.keys() == after.keys(), path
            # Whether a worker had fallen behind says nothing of the next one.
            for key in before.keys() - {"has_backlog"}:
                compare(f"{path}.{key}", before[key], after[key])
        elif isinstance(before, float):
            assert after == pytest.approx(before, abs=HANG_S), path
        else:
            assert state_codec.encode(after) == state_codec.encode(before), path

    compare("", {part: kept[part] for part in now}, now)


async def rebuilt_talk(
    harness: WorkerHarness,
    name: Any,
    number: int,
    kept: LogContents,
    whole: list[Message],
    past: Message | None = None,
    more_turns: int = 0,
    followed: Sequence[LogContents] = (),
) -> list[Message]:
    """What its client hears of a session that continues from what was kept.

    Args:
        past: sent before the worker was lost, and again now. `more_turns`: that it makes.
        followed: what was in the log while its worker still ran it, if this one followed it.
    """
    lease, kept = LeasedSlot(f"again-{number}", "session", name, KINDS[name]), aged(kept)
    asking = GatewayEnd()
    logs = harness.host.session_logs = FakeSessionLogs(offered=[*followed, kept][0])
    slot = await harness.host.admit(lease)
    rebuilding = harness.host.rebuild(lease, slot, asking, follows=bool(followed))  # type: ignore[arg-type]
    holding = asyncio.create_task(rebuilding)
    for each in followed:
        logs.offered = each
        await asking.ready.wait()
        await asyncio.sleep(0.01)
    if followed:
        logs.offered = kept
        asking.orders.put_nowait('{"type":"take_over"}')
    answer = await asking.answer
    assert answer == {"type": "rebuild_result", "problem": ""}
    (session,) = harness._lives()
    state = state_codec.joined(kept.state)
    assert_restored(state, session._remembered())
    runner: Any = session._rebuildable
    if name == "openai_live" and runner is not None:
        assert runner._mailbox.own == OWN_BY_TIME, "its setup applies again"
    # Nothing that is not in the copy was told; all of it may have been.
    seq = kept.outputs[-1].seq if kept.outputs else whole[0]["seq"]
    seen = whole[:seq]
    assert all(plain([json.loads(o.frame)]) == plain([whole[o.seq - 1]]) for o in kept.outputs)
    socket = FakeSocket()
    token = hash_of(whole[0]["resume_token"])
    sent = 0 if past is None else state["received"] + 1
    client = harness.host.resumable(lease.lease_id)
    assert client._ready_seq == state["ready_seq"]
    with pytest.raises(ResumeRefused, match="lost the session") as refused:
        client.check(token, state["last_seq"] + 1)
    assert refused.value.reason == "lost", "what came after the copy was not stored"
    attaching = asyncio.create_task(client.attach(socket, token, seq, sent))
    resumed = await socket.until("session.resumed")
    if past is not None:
        socket.say(past)
    steps = [*STEPS[name]]
    if more_turns:
        # What the client says next would be dropped while one of them is answered.
        waits = [at for at, step in enumerate(steps) if step == "turn_done"]
        at = waits[[each["type"] for each in seen].count("turn_done")]
        steps[at:at] = ["turn_done"] * more_turns
    heard = await hear_all(socket, steps, seen, resumed["received"])
    await asyncio.gather(holding, attaching)
    return heard


UNHURRIED: dict[str, Any] = {"mailbox_units": 16}
"""Seconds that wait because the machine is busy are not dropped: they would be missing in one of
two runs."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client hears that an answer takes long, or what was dropped meanwhile: on a busy machine
    one of two runs would be."""
    wait_for_the_model(monkeypatch)


def wait_for_the_model(patches: pytest.MonkeyPatch) -> None:
    for runner in ("duplex", "conversation"):
        patches.setattr(f"parley.session.{runner}.MODEL_S", HANG_S)
    patches.setattr("parley.session.session.DROPPED_S", HANG_S)


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with worker_harness(slots=2, **UNHURRIED) as running:
        yield running


@pytest.mark.parametrize("name", STEPS)
async def test_a_session_continues_from_every_copy(harness: WorkerHarness, name: str) -> None:
    await goes_on_from_every_copy(harness, name)


@pytest.mark.parametrize("name", STEPS)
async def test_a_session_of_a_model_that_says_what_it_chose_does_so_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "openai_live":
        # Nothing is told of a second that leaves the answer to the next one.
        monkeypatch.setattr("parley.models.cascade.units.UNIT_COST", 1000)
    async with worker_harness(
        slots=2, model=small_cascade(rows=2, takes_notes=False), **UNHURRIED
    ) as harness:
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
    async with worker_harness(
        slots=2, model=small_cascade(rows=2, takes_notes=False), **UNHURRIED
    ) as harness:
        logs = await goes_on_from_every_copy(harness, name, every=4)

    entries = list(decoded(logs[-1]))
    sounds = [entry.pcm for entry in entries if isinstance(entry, InputCommitted)]
    sounds += [e.unit.pcm for e in entries if isinstance(e, UnitDone) and e.unit is not None]
    silent = [not pcm.samples.any() for pcm in sounds if len(pcm)]
    assert silent.count(True) > len(silent) / 2


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("is_small", [False, True])
async def test_a_worker_that_has_followed_a_session_continues_it_as_well(
    name: str, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.worker.rebuilding.FOLLOW_S", 0.001)
    monkeypatch.setattr("parley.models.cascade.units.UNIT_COST", 1000)
    model = small_cascade(rows=2, takes_notes=False) if is_small else Parrot(rows=2)
    async with worker_harness(slots=2, model=model, **UNHURRIED) as harness:
        await goes_on_from_every_copy(harness, name, every=times(3, 1), follows=True)


async def test_a_session_that_ends_while_it_is_followed_is_not_recorded_again(
    tmp_path: Path,
) -> None:
    made = recordings(tmp_path)
    async with worker_harness(slots=2, recordings=made) as harness:
        whole, logs = await whole_talk(harness, "duplex")
        ended = [state_codec.joined(kept.state)["closing"] is not None for kept in logs.taken]
        at = ended.index(True)
        followed = logs.taken[at - 1 : at]
        heard = await rebuilt_talk(harness, "duplex", 1, logs.taken[at], whole, followed=followed)
    made.close()

    assert comparable(plain(heard)) == comparable(plain(whole))
    assert len([*made.folders]) == 1


async def goes_on_from_every_copy(
    harness: WorkerHarness, name: str, *, every: int = 1, follows: bool = False
) -> list[bytes]:
    """The logs from which it continued.

    Args:
        every: of so many copies one is tried, and the last.
        follows: True if earlier ones were followed before.
    """
    whole, logs = await whole_talk(harness, name)
    taken = logs.taken
    assert len(taken) >= 6

    for number, kept in [*enumerate(taken)][::-every]:
        followed = taken[number // 3 : number : max(1, number // 4)] if follows else ()
        heard = await rebuilt_talk(harness, name, number, kept, whole, followed=followed)
        assert comparable(plain(heard)) == comparable(plain(whole)), number
    return [kept.entries for kept in taken if state_codec.joined(kept.state)["closing"] is None]


LAST_HEARD = {"duplex": "result", "half_duplex": "turn_done"}
"""Of the first unit, or turn."""


@pytest.mark.parametrize("name", LAST_HEARD)
async def test_a_session_whose_device_fails_continues_at_another_worker(
    harness: WorkerHarness, name: Any
) -> None:
    """Its client hears nothing of that; the gateway does not hear that it is over."""
    whole, _ = await whole_talk(harness, name)
    logs = harness.host.session_logs = FakeSessionLogs()
    talk = harness.begin(name, extensions=name == "half_duplex")
    talk.say(TALKS[name].first)
    await until(lambda: [m for m in talk.socket.sent if "resume_token" in m])
    hearing = asyncio.create_task(hear_all(talk.socket, STEPS[name], [], 1))
    await talk.until(LAST_HEARD[name])
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    harness.faults.fail_at(None, times=99, error=fault)
    await asyncio.wait_for(harness.engine.broken.wait(), HANG_S)
    # As its process does, which ends then.
    harness.host.leave(0.0, moves=False)
    await talk.over()
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)

    # It does not become idle again.
    harness.host.broken.set()

    assert "ended" not in harness.phases(talk)
    told = [m for m in talk.socket.sent if m["type"] not in NOT_NUMBERED and "seq" in m]
    assert comparable(plain(told)) == comparable(plain(whole[: len(told)]))
    async with worker_harness(slots=2, **UNHURRIED) as other:
        expected = [*told, *whole[len(told) :]]
        heard = await rebuilt_talk(other, name, 1, logs.taken[-1], expected)
    assert comparable(plain(heard)) == comparable(plain(whole))


async def test_a_session_that_continues_keeps_no_second_copy_of_its_log(
    harness: WorkerHarness,
) -> None:
    whole, logs = await whole_talk(harness, "duplex")
    kept = next(kept for kept in logs.taken[::-1] if len([*decoded(kept.entries)]) > 4)
    before = units_in_memory()

    asking = await asked(harness, "duplex", kept)
    socket, token = FakeSocket(), hash_of(whole[0]["resume_token"])
    seq = kept.outputs[-1].seq
    attaching = asyncio.create_task(harness.host.resumable("again").attach(socket, token, seq))
    await socket.until("session.resumed")
    after = units_in_memory()
    socket.leave()
    await asyncio.gather(asking.holding, attaching)

    assert after == before


def units_in_memory() -> int:
    gc.collect()
    # `isinstance` asks objects for their class, at which deprecated ones of torch warn.
    return sum(type(each) is UnitDone for each in gc.get_objects())


async def test_last_words_of_a_lost_worker_take_no_slot(harness: WorkerHarness) -> None:
    whole, logs = await whole_talk(harness, "duplex")
    kept = next(
        kept
        for kept in logs.taken
        if state_codec.joined(kept.state)["closing"] is not None and kept.outputs
    )

    asking = await asked(harness, "duplex", kept)
    # Other sessions may wait for the slot; the client may never come.
    done, _ = await asyncio.wait({asking.holding}, timeout=10.0)
    assert done
    assert harness.engine.free_slots == 2

    socket, token = FakeSocket(), hash_of(whole[0]["resume_token"])
    first = kept.outputs[0].seq - 1
    attaching = asyncio.create_task(harness.host.resumable("again").attach(socket, token, first))
    await until(lambda: socket.closed is not None)
    await attaching
    told = [message for message in socket.sent if message["type"] != "session.resumed"]
    assert plain(told) == plain(whole[first:])


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
    detection = state_codec.joined(kept.state)["runner"]["listener"]["detection"]
    interruptible = dataclasses.replace(detection, interruption=InterruptionOptions(mode="stop"))
    await answers_what_was_said(harness, kept, whole, has_backlog=True)
    await answers_what_was_said(harness, kept, whole, detection=interruptible)
    # Not a multiple of the detector's windows, so the next turn would be cut elsewhere.
    past = {"type": "audio_chunk", "audio_base64": b64(sound(silence(0.3)))}

    heard = await rebuilt_talk(harness, "half_duplex", 1, kept, whole, past)

    assert comparable(plain(heard)) == comparable(plain(whole))


async def answers_what_was_said(
    harness: WorkerHarness, kept: LogContents, whole: list[Message], **listener: Any
) -> None:
    """The same sound, if the answer began after it had been said, because the worker had stood
    still, or if it may interrupt."""
    state = state_codec.joined(kept.state)
    state["runner"]["listener"] |= listener
    _, changed = state_codec.parts(state, {})
    socket, changed_log = FakeSocket(), dataclasses.replace(kept, state=changed)
    asking = await asked(harness, "half_duplex", changed_log, "late")
    token, sent = hash_of(whole[0]["resume_token"]), state["received"] + 1
    work = harness.host.resumable("late").attach(socket, token, kept.outputs[-1].seq, sent)
    attaching = asyncio.create_task(work)
    question = sound(speak(1.0), silence(1.5))
    socket.say({"type": "audio_chunk", "audio_base64": b64(question)})

    # The answer that was being made, and the one to the question.
    await until(lambda: [each["type"] for each in socket.sent].count("turn_done") == 2)
    socket.leave()
    await asyncio.gather(asking.holding, attaching)


async def test_what_was_said_before_anything_of_an_answer_was_sent_is_answered_after_it(
    harness: WorkerHarness,
) -> None:
    whole, logs = await whole_talk(harness, "half_duplex")
    kept = next(kept for kept in logs.taken if is_unsaid(kept))
    question = sound(silence(0.3), speak(1.0), silence(1.2))
    past = {"type": "audio_chunk", "audio_base64": b64(question)}

    heard = await rebuilt_talk(harness, "half_duplex", 1, kept, whole, past, more_turns=1)

    def turns(messages: list[Message]) -> int:
        return [each["type"] for each in messages].count("generating")

    assert turns(heard) == turns(whole) + 1


def is_unsaid(kept: LogContents) -> bool:
    """True if an answer is being made of which the client had nothing."""
    answer = state_codec.joined(kept.state)["runner"]["response"]
    return bool(answer and not answer["audio_ms"] and not answer["has_ended"])


def is_half_said(kept: LogContents) -> bool:
    """True if the client had the first third of a second of an answer."""
    answer = state_codec.joined(kept.state)["runner"]["response"]
    return bool(answer and answer["audio_ms"] > 300 and not answer["has_ended"])


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
    made = recordings(tmp_path)
    async with worker_harness(slots=2, recordings=made) as harness:
        whole, logs = await whole_talk(harness, name)
        kept = logs.taken[round(part * len(logs.taken))]
        await rebuilt_talk(harness, name, 1, kept, whole)
    made.close()

    folders = sorted(made.folders, key=lambda folder: head_of(folder).created_s)
    first, second = map(head_of, folders)
    assert second.continues == first.recording_id
    assert not first.continues
    assert second.seed == first.seed
    whole_count, part_count = (
        sum(isinstance(each.entry, WHAT_HAPPENS) for each in lines.read(folder.journal))
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


async def test_a_question_that_waited_for_its_answer_is_recorded_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = STEPS["openai_realtime"]
    at = steps.index({"type": "input_audio_buffer.commit"}) + 1
    asked = [*steps[:at], "input_audio_buffer.committed", *steps[at:]]
    monkeypatch.setitem(STEPS, "openai_realtime", asked)
    made = recordings(tmp_path)
    async with worker_harness(slots=2, recordings=made) as harness:
        whole, logs = await whole_talk(harness, "openai_realtime")
        kept = next(
            kept for kept in logs.taken if isinstance([*decoded(kept.entries)][-1], InputCommitted)
        )
        await rebuilt_talk(harness, "openai_realtime", 1, kept, whole)
    made.close()

    folders = sorted(made.folders, key=lambda folder: head_of(folder).created_s)
    recorded = [json.loads(folder.recording.read_bytes())["turns"] for folder in folders]
    inputs = [[turn["input"].get("duration_ms", 0) for turn in turns] for turns in recorded]
    assert inputs[1] == inputs[0]
    assert inputs[0][0] > 0
    async with Engine(Parrot(1)) as engine:
        slot = await engine.take_slot()
        assert (await rerun(folders[1], slot)).is_equal
        await slot.close()


def whole_count_of(folder: Folder) -> int:
    """Number of units or answers."""
    whole = lines.read(folder.journal)
    return sum(isinstance(each.entry, UnitDone | TurnCompleted) for each in whole)


WHAT_HAPPENS = UnitDone | TurnStarted | TurnCompleted


def head_of(folder: Folder) -> HeadLine:
    head = lines.read_head(folder.journal)
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
    await until(lambda: logs.taken)

    asking = await asked(harness, "openai_realtime", logs.taken[-1])
    socket = FakeSocket()
    token = hash_of(ready["resume_token"])
    client = harness.host.resumable("again")
    attaching = asyncio.create_task(client.attach(socket, token, ready["seq"]))
    socket.say({"type": "conversation.item.retrieve", "item_id": "item_w1"})
    assert (await socket.until("conversation.item.retrieved"))["item"]["role"] == "user"
    socket.say(written(2))
    socket.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
    response = (await socket.until("response.done"))["response"]
    socket.leave()
    talk.socket.leave()
    await asyncio.gather(asking.holding, attaching)

    assert "again" not in harness.host._held
    assert response["status"] == "completed"
    assert "Say 2." in response["output"][0]["content"][0]["text"]


async def test_a_follower_whose_gateway_leaves_takes_nothing_over(harness: WorkerHarness) -> None:
    _, logs = await whole_talk(harness, "duplex")
    harness.host.session_logs = FakeSessionLogs(offered=logs.taken[3])
    lease, asking = LeasedSlot("again", "session", "duplex", KINDS["duplex"]), GatewayEnd()
    asking.receive = AsyncMock(side_effect=Disconnected)  # type: ignore[method-assign]
    slot = await harness.host.admit(lease)

    with pytest.raises(Disconnected):
        await harness.host.rebuild(lease, slot, asking, follows=True)  # type: ignore[arg-type]

    assert not asking.answer.done()
    assert harness.engine.free_slots == 2


async def test_a_unit_that_is_due_again_keeps_its_pictures(harness: WorkerHarness) -> None:
    _, logs = await whole_talk(harness, "duplex")
    state = state_codec.joined(logs.taken[3].state)
    state["runner"] |= {"frames": (JPEG,), "must_go_back": True, "unsent_units": 2, "failures": 1}
    state["runner"]["pending"] = [AudioInput(sound(silence(1.0)))] * 3
    state["runner"] |= {"unheard_chars": 5, "continues": True}
    _, changed = state_codec.parts(state, {})

    asking = await asked(harness, "duplex", dataclasses.replace(logs.taken[3], state=changed))
    (session,) = harness._lives()
    assert_restored(state, session._remembered())
    assert session.arrivals.restored_s == len(state["runner"]["pending"]) == 3
    session.end(SessionEnded("stopped"))
    await asking.holding


@pytest.mark.parametrize("part", ["entries", "state", "session"])
async def test_a_copy_that_cannot_be_continued_is_refused(
    harness: WorkerHarness, part: str
) -> None:
    _, logs = await whole_talk(harness, "duplex")
    kept = logs.taken[-1]
    # A log of another build has no parts of a state; one that has ended cannot be followed.
    left: dict[str, Any] = {"entries": kept.entries[:-3], "state": {}, "session": kept.session}
    harness.host.session_logs = FakeSessionLogs(
        offered=dataclasses.replace(kept, **{part: left[part]})
    )
    lease = LeasedSlot("again", "session", "duplex", KINDS["duplex"])
    slot = await harness.host.admit(lease)

    asking: Any = GatewayEnd()

    with pytest.raises(ParleyError) as refused:
        await harness.host.rebuild(lease, slot, asking, follows=part == "session")

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
            await until(answered)
            if talk.socket.closed:
                break
        clock.advance(31.0)
        for session in harness._lives():
            session.check_deadlines()
        if rolls:
            talk.say({"type": "stop"})
        await talk.over()

    assert (talk.types.count("result") == 40) is rolls
    assert "timeout" not in talk.types
    lengths = [m["kv_cache_length"] for m in talk.socket.sent if "kv_cache_length" in m]
    # The oldest units go at 85 % of the context, down to 60 %.
    assert min(lengths[11:]) >= 120
    assert 170 <= max(lengths) <= 200


async def test_a_change_of_the_setup_is_logged_at_every_worker_and_no_response_repeats_it(
    harness: WorkerHarness,
) -> None:
    logs = harness.host.session_logs = FakeSessionLogs()
    talk = harness.begin("openai_realtime", extensions=False)
    setup = {"type": "realtime", "instructions": "Speak of lighthouses.", "resume": True}
    talk.say({"type": "session.update", "session": setup})
    ready = await talk.until("session.updated")
    said = []
    for number in range(1, 4):
        talk.say(written(number))
        talk.say({"type": "response.create", "response": {"output_modalities": ["text"]}})
        await talk.until("response.done", number)
        written_now = b"".join(
            b"".join((update.entries, *(update.state or {}).values())) for update in logs.updates
        )
        said.append(written_now.count(b"lighthouses"))
    talk.say({"type": "session.update", "session": {**setup, "instructions": "Of towers."}})
    await talk.until("session.updated", 2)
    await until(lambda: any(b"Of towers." in update.entries for update in logs.updates))

    asking = await asked(harness, "openai_realtime", logs.taken[-1])
    later: Any = harness.host.session_logs
    socket, client = FakeSocket(), harness.host.resumable("again")
    work = client.attach(socket, hash_of(ready["resume_token"]), ready["seq"])
    attaching = asyncio.create_task(work)
    socket.say({"type": "session.update", "session": {**setup, "instructions": "Of bridges."}})
    await until(lambda: any(b"Of bridges." in update.entries for update in later.updates))
    for each in (socket, talk.socket):
        each.leave()
    await asyncio.gather(asking.holding, attaching, talk.over())

    assert said[0] == said[2] > 0
