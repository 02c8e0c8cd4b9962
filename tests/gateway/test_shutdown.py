"""How clients learn that the server stops."""

import asyncio
import contextlib

from structlog.testing import capture_logs
from tests.support.gateways import HELLO, running_gateway, until
from tests.support.patience import HANG_S
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear
from websockets.asyncio.client import connect


async def test_newcomers_are_refused_while_the_last_sessions_end(gateway, worker):
    async with connect(gateway.ws(PATHS["realtime"])) as running:
        await hear(running)
        await until(lambda: worker.sessions)
        worker.freeze()
        worker._control = None  # it does not hear that it should end anything
        gateway.runtime.serving.worker_control.end_sessions = lambda **_: 1
        gateway.gateway.stop()
        await until(lambda: gateway.runtime.closing.done())
        outcomes = []
        resuming = f"{PATHS['duplex']}?resume=true"
        for path in (PATHS["duplex"], PATHS["realtime"], PATHS["chat"], resuming):
            async with connect(gateway.ws(path)) as client:
                outcomes.append((await end_of(client))[1])
        async with gateway.http() as http:
            rest = await http.post("/api/chat", json=HELLO)

    # Anyone who comes back to a session may find it at the next gateway.
    assert outcomes == [1013, 1001, 1013, 1012]
    assert (rest.status_code, rest.json()["code"]) == (503, "service_unavailable")


async def test_anyone_who_does_not_end_in_time_is_cut_off(gateway, worker):
    async with connect(gateway.ws(PATHS["duplex"])) as client:
        await hear(client)
        await until(lambda: worker.sessions)
        gateway.runtime.serving.worker_control.end_sessions = lambda **_: 1
        async with asyncio.timeout(HANG_S):
            await gateway.runtime.shut_down(grace_s=0.1)
        messages, code = await end_of(client)

        assert code == 1001
        assert (messages[-1]["type"], messages[-1]["code"]) == ("error", "service_unavailable")
        assert gateway.runtime.dispatcher.worker_pool.leases == []
        assert not gateway.runtime.serving.connection_handler.live


async def test_workers_that_outlive_the_gateway_join_the_next_one():
    async with contextlib.AsyncExitStack() as stack:
        lines = stack.enter_context(capture_logs())
        first = await stack.enter_async_context(running_gateway())
        worker = await stack.enter_async_context(StandInWorker(first.url))
        first.gateway.stop()
        await until(
            lambda: (
                not first.runtime.dispatcher.worker_pool
                or not any(w.is_usable for w in first.runtime.dispatcher.worker_pool)
            )
        )
        second = await stack.enter_async_context(running_gateway())
        worker.gateway_url = second.url
        await worker.join()
        async with connect(second.ws(PATHS["realtime"])) as client:
            assert (await hear(client))["type"] == "session.queue_done"
        # Nothing is wrong: the gateway itself closed the worker's socket.
        assert not [line for line in lines if line["event"] == "control_socket_lost"]
