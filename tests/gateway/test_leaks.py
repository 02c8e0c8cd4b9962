"""Hundreds of clients that come and go at any moment leave nothing behind."""

import asyncio
import contextlib
import gc
import json
import os
import random
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import HELLO, RunningGateway, all_free, running_gateway, until
from tests.support.stand_in_worker import StandInWorker
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

ROUTES = (
    "/ws/chat",
    "/ws/half_duplex/h{}",
    "/ws/duplex/omni_{}",
    "/ws/duplex/adx_{}",
    "/v1/realtime?mode=audio",
    "/v1/realtime",
)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def words(dice: random.Random) -> str | bytes:
    """Something a client might say: sensible, early, wrong or garbage."""
    choices: list[str | bytes] = [
        json.dumps(HELLO),
        '{"type":"prepare"}',
        '{"type":"session.update","session":{"instructions":"x"}}',
        '{"type":"input_audio_buffer.append","audio":""}',
        '{"type":"audio_chunk","audio_base64":"AAAA"}',
        '{"type":"stop"}',
        '{"type":"session.close"}',
        '{"type":"nonsense"}',
        '{"type":7}',
        "[]",
        "not json",
        b"\x00\x01",
        "x" * 100_000,
    ]
    return dice.choice(choices)


async def one_life(gateway: RunningGateway, index: int, dice: random.Random) -> None:
    if dice.random() < 0.1:
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with (
                asyncio.timeout(dice.random() * 0.1),
                httpx.AsyncClient(base_url=gateway.url) as http,
            ):
                await http.post("/api/chat", json=HELLO)
        return
    path = dice.choice(ROUTES).format(index)
    with contextlib.suppress(ConnectionClosed, TimeoutError, InvalidHandshake, OSError):
        is_patient = dice.random() < 0.5
        async with asyncio.timeout(3.0 if is_patient else dice.random() * 0.5):
            client = await connect(gateway.ws(path), close_timeout=0.5)
            try:
                if is_patient and "chat" not in path:
                    while "queue_done" not in str(await client.recv()):
                        pass
                elif is_patient:
                    await client.send(json.dumps(HELLO))
                for _ in range(dice.randrange(5)):
                    if dice.random() < 0.6:
                        await client.send(words(dice))
                    else:
                        await client.recv()
            finally:
                match dice.randrange(3):
                    case 0:
                        client.transport.abort()
                    case 1:
                        await client.close()
                    case 2:
                        client.transport.close()


async def workers_come_and_go(gateway: RunningGateway, dice: random.Random) -> None:
    for index in range(1000):
        async with StandInWorker(gateway.url, name=f"passing-{index}") as worker:
            await asyncio.sleep(dice.random() * 0.2)
            if dice.random() < 0.5:
                worker.kill()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files in /proc")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_no_lease_ticket_task_or_file_is_left(seed: int):
    dice = random.Random(seed)
    lives = 50 if seed == 1 else 1000
    async with (
        running_gateway(
            limits={"sessions_per_client": 500}, queue={"max_size": 25, "update_every_s": 0.05}
        ) as gateway,
        StandInWorker(gateway.url, slots=3) as worker,
    ):
        async with connect(gateway.ws("/ws/duplex/warm")) as warm:
            await warm.recv()
        await all_free(gateway)
        files_before, tasks_before = open_files(), len(asyncio.all_tasks())
        passing = asyncio.create_task(workers_come_and_go(gateway, dice))

        pending: set[asyncio.Task[None]] = set()
        for index in range(lives):
            pending.add(asyncio.create_task(one_life(gateway, index, random.Random(index))))
            if len(pending) >= 12:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(pending)
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
        house = gateway.house
        talked = len(worker.ended)
        await until(lambda: not house.reception.live)
        await all_free(gateway)
        await until(lambda: worker._busy == 0)

        assert talked > lives / 20  # else the test looked at the queue only
        assert house.door.sessions_by_address == {}
        assert house.budget.used_bytes == 0
        await until(lambda: len(house.pulse) == 1)  # the worker's control socket
        gc.collect()
        await until(lambda: open_files() <= files_before + 2)
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before + 2)
        async with connect(gateway.ws("/ws/duplex/after")) as after:
            assert json.loads(await after.recv()) == {"type": "queue_done"}
