"""How clients are told that the server stops."""

import asyncio
import contextlib

import pytest
from tests.support.gateways import (
    HELLO,
    PATHS,
    end_of,
    hear,
    occupied,
    running_gateway,
    say,
    until,
)
from tests.support.patience import HANG_S
from tests.support.stand_in_worker import StandInWorker
from websockets.asyncio.client import connect


@pytest.mark.parametrize(
    ("dialect", "code"),
    [("chat", 1013), ("half_duplex", 1013), ("duplex", 1013), ("realtime", 1001)],
)
async def test_waiting_clients_are_told_in_their_dialect(dialect: str, code: int):
    async with (
        running_gateway() as gateway,
        StandInWorker(gateway.url),
        occupied(gateway),
        connect(gateway.ws(PATHS[dialect])) as client,
    ):
        if dialect == "chat":
            await say(client, **HELLO)
        await hear(client)
        gateway.gateway.stop()
        messages, close_code = await end_of(client)

    last = messages[-1]
    assert close_code == code
    if dialect == "realtime":
        assert last == {"type": "session.closed", "reason": "server_shutdown"}
    else:
        assert (last["type"], last["code"]) == ("error", "service_unavailable")


async def test_running_sessions_are_ended_by_their_worker_in_its_words():
    async with (
        running_gateway() as gateway,
        StandInWorker(gateway.url) as worker,
        connect(gateway.ws(PATHS["realtime"])) as client,
    ):
        await hear(client)
        await until(lambda: worker.sessions)
        gateway.gateway.stop()
        messages, code = await end_of(client)

    assert messages == [{"type": "session.closed", "reason": "server_shutdown"}]
    assert code == 1001


async def test_newcomers_are_refused_while_the_last_sessions_end():
    async with (
        running_gateway() as gateway,
        StandInWorker(gateway.url) as worker,
        connect(gateway.ws(PATHS["realtime"])) as running,
    ):
        await hear(running)
        await until(lambda: worker.sessions)
        worker.freeze()
        worker._control = None  # it does not hear that it should end anything
        gateway.runtime.serving.worker_control.end_sessions = lambda **_: 1  # type: ignore[method-assign]
        gateway.gateway.stop()
        await until(lambda: gateway.runtime.closing.done())
        outcomes = []
        resuming = f"{PATHS['duplex']}?resume=true"
        for path in (PATHS["duplex"], PATHS["realtime"], PATHS["chat"], resuming):
            async with connect(gateway.ws(path)) as client:
                outcomes.append((await end_of(client))[1])
        async with gateway.http() as http:
            rest = await http.post("/api/chat", json=HELLO)

    # Whoever comes back to a session may find it at the next gateway.
    assert outcomes == [1013, 1001, 1013, 1012]
    assert (rest.status_code, rest.json()["code"]) == (503, "service_unavailable")


async def test_whoever_does_not_end_in_time_is_cut_off():
    async with (
        running_gateway() as gateway,
        StandInWorker(gateway.url) as worker,
        connect(gateway.ws(PATHS["duplex"])) as client,
    ):
        await hear(client)
        await until(lambda: worker.sessions)
        gateway.runtime.serving.worker_control.end_sessions = lambda **_: 1  # type: ignore[method-assign]
        async with asyncio.timeout(HANG_S):
            await gateway.runtime.shut_down(grace_s=0.1)
        messages, code = await end_of(client)

        assert code == 1001
        assert (messages[-1]["type"], messages[-1]["code"]) == ("error", "service_unavailable")
        assert gateway.runtime.scheduling.worker_pool.leases == []
        assert not gateway.runtime.serving.connection_handler.live


async def test_workers_that_outlive_the_gateway_join_the_next_one():
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_gateway())
        worker = await stack.enter_async_context(StandInWorker(first.url))
        first.gateway.stop()
        await until(
            lambda: (
                not first.runtime.scheduling.worker_pool
                or not any(w.is_usable for w in first.runtime.scheduling.worker_pool)
            )
        )
        second = await stack.enter_async_context(running_gateway())
        worker.gateway_url = second.url
        await worker.join()
        async with connect(second.ws(PATHS["realtime"])) as client:
            assert (await hear(client))["type"] == "session.queue_done"
