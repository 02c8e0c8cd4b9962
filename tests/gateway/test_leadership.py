"""Who of several gateways is active, with a clock of our own and with a real Redis."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.support.certificates import self_signed
from tests.support.gateways import until
from tests.support.raw_sockets import raw_client
from tests.support.redis_server import redis_server
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley import __version__
from parley.clock import ManualClock, SystemClock
from parley.errors import SetupError
from parley.gateway.leadership import Leadership, RedisStore
from parley.gateway.standby import stand_by
from parley.protocol.control import STANDBY_HEADER
from parley.transport import OpenConnections, listen

TTL_S = 0.4


class FakeLeaderStore(RedisStore):
    """Answers what the test says."""

    failures = (ConnectionError,)

    def __init__(self) -> None:
        self.holder: str | None = None
        self.is_reachable = True
        self.asked: Callable[[], object] = lambda: None

    async def hold(self, name: str, ttl_s: float, *, limit_s: float) -> str:
        self.asked()
        if not self.is_reachable:
            raise ConnectionError("away")
        self.holder = self.holder or name
        return self.holder

    async def release(self, name: str, *, limit_s: float) -> None:
        if self.holder == name:
            self.holder = None


async def test_a_holder_is_one_until_its_lifetime_ends_from_before_the_question():
    store, clock = FakeLeaderStore(), ManualClock()
    store.asked = lambda: clock.advance(TTL_S / 2)
    leadership = Leadership(store, ttl_s=TTL_S, clock=clock, name="a")

    await leadership.acquire()
    assert leadership.is_held
    clock.advance(TTL_S / 2 - 0.01)
    assert leadership.is_held
    clock.advance(0.01)

    assert not leadership.is_held


async def test_doubt_comes_before_the_lifetime_ends_and_goes_with_the_next_answer():
    store, clock = FakeLeaderStore(), ManualClock()
    leadership = Leadership(store, ttl_s=TTL_S, clock=clock, name="a")
    await leadership.acquire()
    doubts: list[bool] = []
    keeping = asyncio.create_task(leadership.keep(doubts.append))

    store.is_reachable = False
    clock.advance(TTL_S / 2)
    await until(lambda: doubts)
    assert leadership.is_held
    store.is_reachable = True
    await until(lambda: len(doubts) == 2)
    assert not keeping.done()
    store.holder = "b#1"
    await keeping

    assert doubts == [True, False]
    assert leadership.in_doubt
    assert leadership.leader == "b#1"


async def test_another_gateway_waits_until_it_is_released(tmp_path: Path):
    with redis_server(tmp_path) as redis:
        one, two = (
            Leadership(RedisStore(redis.url, "k"), ttl_s=30.0, clock=SystemClock(), name=name)
            for name in "ab"
        )
        two._ttl_s = TTL_S  # asks often
        await one.acquire()
        waiting = asyncio.create_task(two.acquire())
        await until(lambda: two.leader == one.name)
        assert not waiting.done()
        await two.release()
        await one._claim()
        assert one.is_held, "somebody else cannot release it"
        await one.release()
        await waiting
        await two.release()
        for each in (one, two):
            await each.store.close()


async def test_a_standby_answers_that_it_is_one_and_counts_handshakes(tmp_path: Path):
    context, cert = self_signed(tmp_path)
    store, stopping = FakeLeaderStore(), asyncio.Event()
    store.holder = "another"
    leadership = Leadership(store, ttl_s=TTL_S, clock=SystemClock())
    trust = ssl.create_default_context(cafile=cert)

    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        clients = OpenConnections(1)
        standing_by = stand_by(
            leadership, listener, tls=context, clients=clients, url="here", stopping=stopping
        )
        waiting = asyncio.create_task(standing_by)
        async with httpx.AsyncClient(verify=trust, base_url=f"https://127.0.0.1:{port}") as http:
            ready, health = await http.get("/ready"), await http.get("/health")
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"wss://127.0.0.1:{port}/ws/chat", ssl=trust, proxy=None)
        await until(lambda: not clients.by_address)
        async with raw_client(port), raw_client(port) as second:
            assert await second.rest() == b""
        stopping.set()

        assert not await waiting

    why = "This gateway is on standby; another one is active."
    assert (ready.status_code, ready.json()) == (502, {"ready": False, "why": why})
    standby = {"status": "standby", "healthy": True, "version": __version__}
    assert (health.status_code, health.json()) == (200, standby)
    answer = refused.value.response
    assert (answer.status_code, answer.headers[STANDBY_HEADER]) == (502, "1")
    assert b'"service_unavailable"' in answer.body


async def test_a_redis_that_lost_everything_or_is_full_is_no_reason_to_change(tmp_path: Path):
    with redis_server(tmp_path) as redis:
        leadership = Leadership(RedisStore(redis.url, "k"), ttl_s=2.0, clock=SystemClock())
        await leadership.acquire()
        doubts: list[bool] = []
        keeping = asyncio.create_task(leadership.keep(doubts.append))
        redis.kill()
        await until(lambda: doubts == [True])
        redis.start()
        await until(lambda: doubts == [True, False])
        assert leadership.is_held
        await leadership.store.client.config_set("maxmemory", 1)
        valid_until = leadership._valid_until
        await leadership._claim()
        assert leadership._valid_until > valid_until
        assert not keeping.done()
        keeping.cancel()
        await leadership.store.close()


def test_an_address_of_something_else_is_refused():
    pytest.importorskip("redis", reason="the package 'redis' is not installed")

    with pytest.raises(SetupError, match=r"redis_url is not an address"):
        RedisStore("http://localhost", "k")
