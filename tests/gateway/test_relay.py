"""Bytes go through as they are, no faster than they are read, and no larger than allowed."""

import asyncio
import contextlib
import json

import pytest
import websockets
from structlog.testing import capture_logs
from tests.support.gateways import RunningGateway, until
from tests.support.patience import HANG_S
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve


@contextlib.asynccontextmanager
async def scripted(gateway: RunningGateway, script):
    """A worker whose session sockets run `script(connection)`, a plain `websockets` server."""
    worker = StandInWorker(gateway.url)
    worker._tasks.append(asyncio.create_task(asyncio.sleep(0)))
    async with serve(script, "127.0.0.1", 0, max_size=None, compression=None) as server:
        worker.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        await worker.join()
        yield worker
        await worker.leave()


@pytest.mark.parametrize("code", [1000, 1003, 1008, 1011, 1013, 4321])
async def test_the_workers_close_code_and_reason_reach_the_client(
    gateway: RunningGateway, code: int
):
    async def script(connection: ServerConnection) -> None:
        await connection.send("last words")
        await connection.close(code, "because")

    async with scripted(gateway, script), connect(gateway.ws(PATHS["duplex"])) as client:
        await hear(client)
        assert await client.recv() == "last words"
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert (client.close_code, client.close_reason) == (code, "because")


async def test_the_clients_close_code_reaches_the_worker(gateway):
    closed = asyncio.get_running_loop().create_future()

    async def script(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.set_result((connection.close_code, connection.close_reason))

    async with scripted(gateway, script):
        async with connect(gateway.ws(PATHS["duplex"])) as client:
            await hear(client)
            await client.close(4000, "bye")

        assert await asyncio.wait_for(closed, HANG_S) == (4000, "bye")


@pytest.mark.gateway(limits={"frame_mb": 1, "chat_frame_mb": 4})
async def test_chat_takes_larger_messages_than_live_dialects(gateway, worker):
    content = "x" * 60_000
    request = {"messages": [{"role": "user", "content": content}] * 40}
    async with connect(gateway.ws(PATHS["chat"])) as client:
        await client.send(json.dumps(request))
        messages, code = await end_of(client)

    assert (messages[-1]["type"], code) == ("done", 1000)
    assert worker.heard == [request]


@pytest.mark.gateway(limits={"output_stall_s": 1.0})
async def test_a_client_that_does_not_read_slows_the_worker_and_is_dropped(gateway):
    sent = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        with contextlib.suppress(websockets.ConnectionClosed):
            for _ in range(400):
                await connection.send("x" * 1_000_000)
                sent += 1

    async with scripted(gateway, script):
        client = await connect(gateway.ws(PATHS["duplex"]), max_queue=1)
        await hear(client)
        client.transport.pause_reading()
        with capture_logs() as lines:
            await until(lambda: not gateway.runtime.dispatcher.worker_pool.leases)
        client.transport.abort()

        # Bounded by socket buffers and the gateway's own, not by what the worker has to say.
        assert sent < 100
        page = gateway.runtime.metrics.page().decode()
        assert 'parley_errors_total{code="slow_client"' in page
        assert 'parley_connections_ended_total{reason="slow_reader"} 1.0' in page
        (ended,) = [line for line in lines if line["event"] == "session_ended"]
        assert ended["reason"].endswith("bytes unread")
