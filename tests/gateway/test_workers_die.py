"""What clients see when workers go, in every moment of a session. Source: service.md 2.7."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.gateways import (
    HELLO,
    QUICK,
    RunningGateway,
    all_free,
    arriving,
    error_of,
    occupied,
    running_gateway,
    turned_away,
    until,
)
from tests.support.patience import HANG_S
from tests.support.ports import free_port
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear, hear_until, say
from websockets.asyncio.client import connect

from parley.gateway import acquisition, worker_pool
from parley.protocol.control import BEAT_EVERY_S, SILENCE_LIMIT_S


@pytest.fixture
def silence_is_borne(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a closed connection reports of a death then."""
    monkeypatch.setattr(worker_pool, "SILENCE_LIMIT_S", 3600.0)


def statuses(gateway) -> list[str]:
    return [worker.view for worker in gateway.runtime.dispatcher.worker_pool]


@pytest.mark.parametrize("dialect", ["half_duplex", "duplex", "realtime", "chat"])
@pytest.mark.parametrize("was_ready", [True, False])
async def test_a_worker_that_dies_is_told_with_1011_or_before_the_session_is_ready_with_1013(
    gateway: RunningGateway, worker: StandInWorker, dialect: str, was_ready: bool
):
    worker.may_answer.clear()
    async with arriving(gateway, dialect) as client:
        if dialect != "chat":
            await hear(client)
            await say(client, type="prepare")
        await until(lambda: worker.heard)
        (lease,) = gateway.runtime.dispatcher.worker_pool.leases
        await until(lambda: lease.was_ready)
        lease.was_ready = was_ready
        worker.kill()
        messages, code = await end_of(client)

    assert code == (1011 if was_ready else 1013)
    assert (messages[0]["type"], error_of(messages[0])["code"]) == ("error", "worker_lost")
    assert "lost" in error_of(messages[0])["message"]
    if dialect == "realtime":
        assert messages[1:] == [{"type": "session.closed", "reason": "error"}] * was_ready
    assert statuses(gateway) == ["offline"]
    assert gateway.runtime.dispatcher.worker_pool.leases == []


@pytest.mark.usefixtures("silence_is_borne")
async def test_the_loss_of_a_worker_is_reported_in_words_of_the_texts_without_extensions(
    gateway, worker
):
    """`inference_error` would mean there that the session continues."""
    async with connect(gateway.ws("/v1/realtime?mode=audio", extensions=False)) as client:
        await hear(client)
        await say(client, type="session.update")
        await until(lambda: worker.heard)
        worker.kill()
        messages, code = await end_of(client)

    error = next(message["error"] for message in messages if message["type"] == "error")
    assert (error["code"], code) == ("worker_connect_failed", 1011)
    assert error["message"].endswith("(worker_lost)")


@pytest.mark.slow
async def test_a_silent_worker_ends_its_sessions_after_the_silence_limit(gateway, worker):
    async with connect(gateway.ws(PATHS["duplex"])) as client:
        await hear(client)
        worker.freeze()
        began = time.monotonic()
        messages, code = await end_of(client)

    assert (messages[0]["code"], code) == ("worker_lost", 1013)
    assert time.monotonic() - began > SILENCE_LIMIT_S - BEAT_EVERY_S
    assert statuses(gateway) == ["offline"]


async def test_ten_waiters_outlive_the_only_worker_and_are_served_by_the_next(gateway, worker):
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(occupied(gateway))
        clients = []
        for index in range(10):
            client = await stack.enter_async_context(
                connect(gateway.ws(f"/ws/half_duplex/waiter_{index}"))
            )
            assert (await hear(client))["position"] == index + 1
            clients.append(client)

        worker.kill()
        await until(lambda: statuses(gateway) == ["offline"])
        waiting = len(gateway.runtime.dispatcher.queue)
        async with StandInWorker(gateway.url, name="next", slots=10):
            for client in clients:
                while (last := await hear(client))["type"] != "queue_done":
                    assert last["type"] == "queue_update"

    assert waiting == 10


@contextlib.asynccontextmanager
async def unreachable(gateway: RunningGateway, name: str = "broken") -> AsyncIterator[str]:
    """The address of a worker whose control socket works but whose session port is closed."""
    worker = StandInWorker(gateway.url, name=name)
    worker.url = f"http://127.0.0.1:{free_port()}"
    worker._tasks.append(asyncio.create_task(asyncio.sleep(0)))
    await worker.join()
    yield worker.url
    await worker.leave()


async def test_clients_of_an_unreachable_worker_are_served_by_the_next(gateway):
    async with (
        unreachable(gateway),
        StandInWorker(gateway.url, name="sound", slots=2) as sound,
        connect(gateway.ws(PATHS["realtime"])) as first,
        connect(gateway.ws(PATHS["duplex"])) as second,
    ):
        await hear_until(first, "session.queue_done")
        await hear_until(second, "queue_done")
        assert len(sound.sessions) == 2


async def test_a_client_learns_that_it_waits_while_a_worker_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(acquisition, "QUIET_S", 0.2)
    patient = replace(QUICK, pause_s=2 * HANG_S, probe_every_s=2 * HANG_S)
    async with (
        running_gateway(policy=patient) as gateway,
        unreachable(gateway),
        connect(gateway.ws(PATHS["realtime"])) as client,
    ):
        assert (await hear(client))["type"] == "session.queued"
        assert gateway.runtime.dispatcher.worker_pool.leases


async def test_a_client_is_not_kept_once_its_worker_is_known_to_be_unreachable():
    endless = replace(QUICK, attempts=1000, pause_s=0.05, probe_every_s=0.2)
    async with running_gateway(policy=endless) as gateway, unreachable(gateway):
        told, code = await turned_away(gateway.ws(PATHS["realtime"]))

    assert told in ("worker_connect_failed", "service_unavailable")
    assert code == 1013


async def test_an_unreachable_worker_is_found_out_before_a_client_meets_it(gateway, http):
    async with unreachable(gateway) as url:
        (known,) = gateway.runtime.dispatcher.worker_pool
        await until(lambda: known.is_unreachable)
        told = await turned_away(gateway.ws(PATHS["realtime"]))
        ready = await http.get("/ready")
        (listed,) = (await http.get("/workers")).json()["workers"]

    assert told == ("service_unavailable", 1013)
    assert ready.status_code == 503
    assert listed["unreachable"] is True
    assert listed["url"] == url


@pytest.mark.parametrize("dialect", ["realtime", "half_duplex", "chat"])
async def test_a_second_unreachable_worker_ends_the_wait_with_1013(
    gateway: RunningGateway, dialect: str
):
    async with (
        unreachable(gateway, "one"),
        unreachable(gateway, "two"),
        arriving(gateway, dialect) as client,
    ):
        messages, code = await end_of(client)

    # Which of the two depends on whether the gateway has asked the workers already.
    assert error_of(messages[-1])["code"] in ("worker_connect_failed", "service_unavailable")
    assert code == 1013
    assert not any("queue_done" in message["type"] for message in messages)
    assert len(gateway.runtime.dispatcher.queue) == 0
    assert gateway.runtime.dispatcher.worker_pool.leases == []


async def test_an_unreachable_worker_is_used_again_when_its_health_answers(gateway, worker):
    (known,) = gateway.runtime.dispatcher.worker_pool
    worker.answers_health = False
    known.is_unreachable = True
    refused = await turned_away(gateway.ws(PATHS["realtime"]))
    worker.answers_health = True
    await until(lambda: not known.is_unreachable)
    async with connect(gateway.ws(PATHS["realtime"])) as client:
        await hear_until(client, "session.queue_done")

    assert refused == ("service_unavailable", 1013)


async def test_a_client_that_leaves_while_its_worker_is_dialled_gives_the_slot_back():
    patient = replace(QUICK, attempts=2, pause_s=2 * HANG_S, probe_every_s=2 * HANG_S)
    async with running_gateway(policy=patient) as gateway, unreachable(gateway):
        client = await connect(gateway.ws(PATHS["realtime"]))
        await until(lambda: gateway.runtime.dispatcher.worker_pool.leases)

        client.transport.abort()
        await until(lambda: not gateway.runtime.dispatcher.worker_pool.leases)

        await until(lambda: not gateway.runtime.serving.connection_handler.live)


async def test_a_broken_control_socket_alone_does_not_end_sessions(gateway, worker):
    async with connect(gateway.ws(PATHS["duplex"])) as client:
        await hear(client)
        await until(lambda: gateway.runtime.dispatcher.worker_pool.leases[0].phase)
        worker.break_control()
        await until(lambda: statuses(gateway) == ["offline"])
        await worker.join()

        await say(client, type="prepare")
        answer = await hear(client)
        await say(client, type="stop")
        await end_of(client)

    assert answer["type"] == "prepared"
    await all_free(gateway)


@pytest.mark.usefixtures("silence_is_borne")
async def test_a_worker_that_listened_for_a_moment_longer_is_lost_without_delay(monkeypatch):
    answers = iter([False, False, True])

    async def process_is_gone(url: str) -> bool:
        return next(answers)

    monkeypatch.setattr("parley.gateway.worker_control.process_is_gone", process_is_gone)
    async with running_gateway() as gateway, StandInWorker(gateway.url) as worker:
        async with connect(gateway.ws(PATHS["duplex"])) as client:
            await hear(client)
            worker.break_control()
            messages, code = await end_of(client)

        assert (messages[0]["code"], code) == ("worker_lost", 1013)


async def test_rest_chat_reports_a_lost_worker_with_502(gateway, worker, http):
    worker.may_answer.clear()
    asking = asyncio.create_task(http.post("/api/chat", json=HELLO))
    await until(lambda: worker.heard)
    worker.kill()
    response = await asking

    assert response.status_code == 502
    assert response.json()["code"] == "worker_lost"
    assert gateway.runtime.dispatcher.worker_pool.leases == []
