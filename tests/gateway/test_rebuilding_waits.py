"""A session of a lost worker waits for a slot as long as a worker is loading."""

import asyncio
import json
from unittest.mock import Mock

import pytest
from tests.gateway.test_session_registry import come_back, hello, left, never
from tests.support.gateways import RunningGateway, until
from tests.support.patience import HANG_S
from tests.support.talking import end_of

from parley.clock import ManualClock
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.rebuilding import NotRebuilt, Rebuilding
from parley.gateway.successor import LostSession, ReservedSlot
from parley.protocol.control import RebuildResult
from parley.settings import EtaSettings, LimitSettings, QueueSettings

WINDOW_S = 30.0
LOADING_WAIT_S = 900.0


class Waiting:
    """One lost session and no worker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        dispatcher = Dispatcher(self.clock, QueueSettings(), EtaSettings())
        self.pool = dispatcher.worker_pool
        limits = LimitSettings(resume_window_s=WINDOW_S, rebuild_wait_s=LOADING_WAIT_S)
        self.rebuilding = Rebuilding(dispatcher, Mock(), limits)
        lost = LostSession.of_log(left(), 0.0)
        self.task = asyncio.create_task(self.rebuilding.rebuild(lost, None, set()))

    async def is_waiting(self, at_s: float) -> bool:
        self.clock.advance(at_s - self.clock.monotonic())
        self.pool.changed.notify()
        for _ in range(20):
            await asyncio.sleep(0)
        return not self.task.done()


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


async def test_without_a_worker_that_loads_it_waits_for_the_window(waiting: Waiting) -> None:
    assert await waiting.is_waiting(WINDOW_S - 1)
    assert not await waiting.is_waiting(WINDOW_S + 1)

    with pytest.raises(NotRebuilt, match="no free slot in time"):
        await waiting.task


async def test_while_a_worker_loads_it_waits_for_that(waiting: Waiting) -> None:
    waiting.pool.process_begins(0, pid=1)
    assert await waiting.is_waiting(WINDOW_S + 1)
    told = waiting.rebuilding.waiting("call", began_at=0.0)
    assert told.window_s == LOADING_WAIT_S - WINDOW_S - 1
    assert await waiting.is_waiting(LOADING_WAIT_S - 1)

    assert not await waiting.is_waiting(LOADING_WAIT_S + 1)
    with pytest.raises(NotRebuilt):
        await waiting.task


async def test_while_a_worker_replays_it_its_client_may_come_for_a_whole_window(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = asyncio.Event()

    async def take_over(slot: ReservedSlot) -> RebuildResult:
        await replayed.wait()
        return RebuildResult()

    monkeypatch.setattr(ReservedSlot, "has_successor", True)
    monkeypatch.setattr(ReservedSlot, "take_over", take_over)
    waiting.pool.welcome(hello(), object())

    assert await waiting.is_waiting(WINDOW_S + 5)
    told = waiting.rebuilding.waiting("call", began_at=0.0)
    replayed.set()
    lease = await waiting.task

    assert told.window_s == WINDOW_S
    assert lease.worker.worker_id == "w"


async def test_a_worker_that_ends_while_it_loads_is_not_waited_for(waiting: Waiting) -> None:
    waiting.pool.process_begins(0, pid=1)
    assert await waiting.is_waiting(WINDOW_S + 10)

    waiting.pool.process_ended(0, 1)

    assert not await waiting.is_waiting(WINDOW_S + 11)
    assert isinstance(waiting.task.exception(), NotRebuilt)


@pytest.mark.parametrize("key_id", [None, "another"])
async def test_its_client_learns_how_long_it_may_come_again(
    gateway: RunningGateway, key_id: str | None
) -> None:
    runtime = gateway.runtime
    runtime.sessions.hold_s = 0.05
    runtime.sessions.rebuilding.rebuild = never  # type: ignore[method-assign]
    note = json.dumps({"address": "127.0.0.1", "key_id": key_id})
    runtime.sessions.found(left(note=note, session_id="omni_1"))
    await until(lambda: runtime.sessions.moving("omni_1"))
    async with asyncio.timeout(HANG_S):
        said, code = await end_of(await come_back(gateway))

    assert code == 1012
    if key_id is None:
        assert [message["type"] for message in said] == ["session.resume_waiting"]
        assert 0 < said[0]["window_s"] <= WINDOW_S
    else:
        assert json.dumps(said) == "[]", "a stranger learns nothing"
