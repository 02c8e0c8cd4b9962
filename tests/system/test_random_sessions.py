"""Clients that do anything, of a model that sometimes fails, against the whole server: nothing of
them stays."""

import asyncio
import contextlib
import gc
import json
import os
import random
import threading
from typing import Final

import httpx
import pytest
from tests.support.faults import Faulty
from tests.support.gateways import HELLO, RunningGateway, all_free, until
from tests.support.long import times
from tests.support.mutations import TALKS, mutated
from tests.support.stack import running_stack
from tests.support.talking import begin_duplex
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from parley.engine.work import Stage
from parley.models.parrot import Parrot

LIVES: Final = times(120, 300)
AT_ONCE = 8
FAILS = 0.1
"""Share of clients in whose time a step of the model fails."""
LARGE: Final = '{"type":"client_diagnostic","x":"' + "x" * (2 << 20) + '"}'
"""Enough to count against the memory for large messages."""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def large_message(client: ClientConnection, dice: random.Random) -> None:
    """One that is large: whole, or broken off after its first megabyte and a half."""
    if dice.random() < 0.5:
        await client.send(LARGE)
        return
    key, length = b"\0\0\0\0", len(LARGE)
    client.transport.write(
        b"\x81\xff" + length.to_bytes(8, "big") + key + LARGE[: 3 << 19].encode()
    )


async def one_life(gateway: RunningGateway, index: int, dice: random.Random) -> None:
    """A client that comes, says what is nearly right and vanishes at any moment."""
    if dice.random() < 0.1:
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(dice.random() * 0.1), gateway.http() as http:
                await http.post("/api/chat", json=HELLO)
        return
    talk = dice.choice(TALKS)
    frames = mutated(talk, dice)
    with contextlib.suppress(ConnectionClosed, TimeoutError, InvalidHandshake, OSError):
        is_patient = dice.random() < 0.5
        async with asyncio.timeout(3.0 if is_patient else dice.random() * 0.5):
            client = await connect(gateway.ws(talk.connect.format(index)), close_timeout=0.5)
            try:
                if is_patient:
                    if not talk.waits_for:
                        await client.send(json.dumps(talk.says[0]))
                    while (talk.waits_for or talk.ready) not in str(await client.recv()):
                        pass
                if dice.random() < 0.2:
                    await large_message(client, dice)
                for _ in range(dice.randrange(5)):
                    if dice.random() < 0.6:
                        await client.send(dice.choice(frames))
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


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files in /proc")
async def test_no_lease_seat_task_thread_or_file_is_left() -> None:
    limits = {"sessions_per_client": 100, "resume_window_s": 1}
    model, dice = Faulty(Parrot(3)), random.Random(0)
    stack = running_stack(
        slots=3, load_model=lambda: model, worker={"vad": "energy"}, limits=limits
    )
    async with stack as server:
        (worker,) = server.workers
        host = worker.host
        assert host is not None
        async with connect(server.ws("/ws/duplex/warm")) as warm:
            await begin_duplex(warm)
        await all_free(server)
        gc.collect()
        files, tasks = open_files(), len(asyncio.all_tasks())

        pending: set[asyncio.Task[None]] = set()
        for index in range(LIVES):
            if dice.random() < FAILS:
                model.fail_at(dice.choice(list(Stage)))
            pending.add(asyncio.create_task(one_life(server, index, random.Random(index))))
            if len(pending) >= AT_ONCE:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(pending)
        model.heal()
        await until(lambda: not server.runtime.serving.connection_handler.live)
        await all_free(server)
        await until(lambda: host.state == "idle" and host.engine.free_slots == 3)
        gc.collect()

        assert host.meter.total_requests > LIVES / 20  # else only the queue was looked at
        assert not host.broken.is_set()
        budget = server.runtime.links.budget
        assert budget.peak_bytes > 0  # else nobody sent anything that counts
        await until(lambda: budget.used_bytes == 0 and budget.owners == 0)
        await until(lambda: open_files() <= files + 2)
        await until(lambda: len(asyncio.all_tasks()) <= tasks + 2)
        # asyncio's pool for decoding grows to its limit and stays; nothing else may.
        pool = min(32, (os.cpu_count() or 1) + 4)
        assert threading.active_count() <= pool + 8
        async with connect(server.ws("/ws/duplex/after")) as after:
            await begin_duplex(after)
