"""A session leaves a worker that is drained when another one has nearly caught up with it."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from tests.gateway.test_session_registry import Young, hello, left, of_session
from tests.support.gateways import until
from tests.support.present import present

from parley.gateway import moving, rebuilding
from parley.gateway.moving import Moving
from parley.gateway.rebuilding import NotRebuilt, Rebuilding
from parley.gateway.sessions import SessionState
from parley.gateway.successor import LostSession, ReservedSlot
from parley.gateway.worker_pool import Lease, Worker
from parley.protocol.control import FOLLOW_HEADER, Heartbeat
from parley.protocol.kinds import Phase
from parley.settings import LimitSettings
from parley.transport import Closure, ConnectionClosed

READY: dict[str, Any] = {"type": "rebuild_ready"}
DONE: dict[str, Any] = {"type": "rebuild_result", "problem": ""}
FAILED: dict[str, Any] = {"type": "rebuild_result", "problem": "It decides otherwise."}


class FakeUpstream:
    """A connection to a worker that is asked to continue a session."""

    def __init__(self, lease: Lease, settings: object, *, dialect: str, headers: dict[str, str]):
        self.lease, self.connection, self.follows = lease, self, FOLLOW_HEADER in headers
        self.is_refused = self.is_closed = False
        self.ordered: list[str] = []
        self._messages: asyncio.Queue[dict[str, Any] | Closure | None] = asyncio.Queue()
        opened.append(self)

    is_reachable = True

    async def open(self) -> bool:
        return self.is_reachable

    def close(self) -> None:
        self.is_closed = True

    def answer(self, message: dict[str, Any] | Closure | None) -> None:
        """None: the worker dies. A closure: it closes the connection."""
        self._messages.put_nowait(message)

    async def receive(self) -> SimpleNamespace:
        message = await self._messages.get()
        if message is None or isinstance(message, Closure):
            raise ConnectionClosed(message or Closure(1006))
        return SimpleNamespace(payload=lambda: json.dumps(message).encode())

    def send_text(self, payload: bytes) -> None:
        self.ordered.append(json.loads(payload)["type"])


opened: list[FakeUpstream] = []


class Draining(Young):
    """One session whose worker is drained, and another worker with room."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[str] = []
        self.ended: list[str] = []
        rebuilding = Rebuilding(self.dispatcher, Mock(), LimitSettings(resume_window_s=30.0))
        self.kept.rebuilding = rebuilding
        control = Mock(hand_over=self._hand_over, end_doubled=self._end)
        self.moving = Moving(sessions=self.kept, worker_control=control)
        self.worker = self.pool.welcome(hello(of_session(Phase.ACTIVE)), object())
        (lease,) = self.pool.leases
        lease.granted_at = -600.0  # Whatever the system's clock was set to since then.
        self.other = self.add("other")
        self.worker.is_draining = True

    def add(self, name: str) -> Worker:
        """Another worker, which has room."""
        added = self.pool.welcome(hello(worker_id=name), object())
        self.pool.heard(added, Heartbeat("idle", 2, 0, 0.0, 0))
        return added

    def _end(self, lease: Lease) -> None:
        self.ended.append(lease.lease_id)

    async def _hand_over(self, lease: Lease) -> bool:
        self.stopped.append(lease.lease_id)
        return True

    @property
    def state(self) -> SessionState:
        return present(self.kept.get("call")).state

    async def successor(self, number: int) -> FakeUpstream:
        """The worker that is asked as `number` of all, once it is."""
        await until(lambda: len(opened) > number)
        return opened[number]


@pytest.fixture
async def prepared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Draining]:
    opened.clear()
    monkeypatch.setattr(FakeUpstream, "is_reachable", getattr(request, "param", True))
    monkeypatch.setattr(rebuilding, "UpstreamConnection", FakeUpstream)
    monkeypatch.setattr(moving, "LOOK_EVERY_S", 0.01)
    made = Draining()
    yield made
    await made.moving.close()
    await made.kept.close()
    assert all(each.is_closed for each in opened)


@pytest.fixture
async def draining(prepared: Draining) -> Draining:
    prepared.moving.begin(prepared.worker)
    return prepared


@pytest.fixture
async def lost(prepared: Draining) -> Draining:
    """The worker of the session has just died."""
    prepared.pool.left(prepared.worker)
    return prepared


async def test_it_is_stopped_when_its_successor_has_nearly_caught_up(draining: Draining) -> None:
    successor = await draining.successor(0)
    (old,) = draining.worker.leases.values()
    await asyncio.sleep(0.1)
    before = list(draining.stopped)

    successor.answer(READY)
    await until(lambda: successor.ordered)
    successor.answer(DONE)

    await until(lambda: draining.state is SessionState.AWAY)
    assert (before, draining.stopped) == ([], ["lease"])
    assert successor.ordered == ["take_over"]
    assert old.is_lost, "a connection to it would end the session"
    lease = present(present(draining.kept.get("call")).lease)
    assert (lease.worker, lease.granted_at) == (draining.other, -600.0)
    await until(lambda: draining.ended == ["lease"])


async def test_a_worker_that_is_lost_meanwhile_is_succeeded_without_delay(
    draining: Draining,
) -> None:
    successor = await draining.successor(0)
    session = present(draining.kept.get("call"))
    # Asked is not yet offered: lost before that, the session is continued by another slot.
    await until(lambda: session.slot is not None)

    draining.pool.left(draining.worker)
    await until(lambda: successor.ordered)
    successor.answer(DONE)

    await until(lambda: draining.state is SessionState.AWAY)
    assert (len(opened), draining.stopped) == (1, [])


@pytest.mark.parametrize("is_ready", [False, True])
async def test_a_successor_that_fails_is_replaced_by_one_that_reads_the_whole_log(
    draining: Draining, is_ready: bool
) -> None:
    successor = await draining.successor(0)
    if is_ready:
        successor.answer(READY)
        await until(lambda: successor.ordered)

    successor.answer(FAILED)
    second = await draining.successor(1)
    second.answer(DONE)

    await until(lambda: draining.state is SessionState.AWAY)
    assert (successor.follows, second.follows) == (True, False)
    assert len(draining.other.leases) == 1, "the first slot was given back"
    assert second.lease is not successor.lease, "no lease is used for two connections"
    assert second.ordered == []


@pytest.mark.parametrize("prepared", [False], indirect=True)
async def test_without_a_worker_that_can_be_reached_it_stays(draining: Draining) -> None:
    await draining.successor(0)
    await until(lambda: opened[0].is_closed)
    await asyncio.sleep(0.1)

    assert draining.stopped == []


async def test_a_drain_that_is_called_off_leaves_everything_as_it_was(draining: Draining) -> None:
    successor = await draining.successor(0)

    draining.worker.is_draining = False

    await until(lambda: successor.is_closed)
    await until(lambda: draining.other.free_slots == 2)
    assert (draining.state, draining.stopped) == (SessionState.AWAY, [])
    assert draining.worker.leases


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FAILED, "It decides otherwise."),
        (Closure(1011), "The second worker closed the connection."),
        ({"type": "joke"}, "The worker's answer is invalid: "),
    ],
)
async def test_a_session_that_the_second_worker_cannot_continue_is_lost_for_its_reason(
    lost: Draining, answer: Any, why: str
) -> None:
    (await lost.successor(0)).answer(answer)

    await until(lambda: lost.state is SessionState.LOST)
    assert present(lost.kept.get("call")).why.startswith(why)
    assert (lost.other.free_slots, lost.dropped) == (2, ["lease"])
    assert lost.kept.rebuilding.outcomes == {"lost": 1}


async def test_two_workers_that_die_of_a_session_are_enough(lost: Draining) -> None:
    for number in range(2):
        lost.add(f"spare {number}")
        (await lost.successor(number)).answer(None)

    await until(lambda: lost.state is SessionState.LOST)
    assert len(opened) == 2


async def test_a_worker_that_dies_while_it_continues_a_session_is_replaced(lost: Draining) -> None:
    lost.add("third")
    first = await lost.successor(0)
    first.answer(None)
    second = await lost.successor(1)
    second.answer(DONE)

    await until(lambda: lost.state is SessionState.AWAY)
    assert first.lease.lease_id in present(lost.kept.get("call")).left
    assert first.lease.worker is not second.lease.worker
    lease = present(present(lost.kept.get("call")).lease)
    resume = present(lease.resume)
    assert (resume.log_id, resume.left_s, lease.resume_ends_at) == ("lease", 30.0, 30.0)
    assert lost.kept.rebuilding.outcomes == {"rebuilt": 1}


async def test_a_lease_counts_only_what_leases_before_it_have_not_counted(
    prepared: Draining,
) -> None:
    (lease,), asks = prepared.pool.leases, prepared.kept.rebuilding
    note = '{"granted_time":0.0,"ran_s":60.0}'
    counted = []
    stored = dataclasses.replace(left(note=note), ran_s=600.0)

    for lost in (LostSession.of(lease), LostSession.of_log(stored, prepared.clock.monotonic())):
        slot = ReservedSlot(asks.ask(lost))
        await asks.open(lost, slot, follows=False)
        successor = present(slot.ticket.lease)
        counted.append((successor.ran_s, successor.counted_s))
        await slot.close()

    # Also by a gateway that ended, whose clock is not asked.
    here_s = 600.0 + prepared.clock.monotonic()
    assert counted == [(here_s, here_s), (600.0, 600.0)]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("parrot", "There was no free slot in time."),
        ("crow", "It began on another model or version (parley 1, parrot"),
    ],
)
async def test_a_session_waits_for_a_slot_until_its_window_is_over(model: str, why: str) -> None:
    made = Draining()
    (lease,) = made.pool.leases
    lost = LostSession.of(lease)
    made.pool.left(made.worker)
    await made.kept.close()
    made.pool.heard(made.other, Heartbeat("idle", 0, 0, 0.0, 0))
    made.other.hello = replace(made.other.hello, model=model)

    asking = asyncio.create_task(made.kept.rebuilding.rebuild(lost, None, set()))
    await asyncio.sleep(0)
    for waited_s in (29.0, 1.0):
        assert not asking.done()
        made.clock.advance(waited_s)
        made.pool.changed.notify()
        await asyncio.sleep(0.01)

    with pytest.raises(NotRebuilt) as refused:
        await asking
    assert str(refused.value).startswith(why)
