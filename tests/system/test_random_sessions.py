"""Clients that do anything, of a model that sometimes fails, against the whole server: nothing of
them stays."""

import asyncio
import gc
import os
import random
import threading

import pytest
from tests.support.faults import Faulty
from tests.support.gateways import all_free, until
from tests.support.long import times
from tests.support.random_sessions import one_life, open_files
from tests.support.stack import running_stack
from tests.support.talking import begin_duplex
from websockets.asyncio.client import connect

from parley.engine.work import Stage
from parley.models.parrot import Parrot

AT_ONCE = 8
FAILS = 0.1
"""Share of clients in whose time a step of the model fails."""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files in /proc")
@pytest.mark.parametrize("lives", [40, pytest.param(times(120, 300), marks=pytest.mark.slow)])
async def test_no_lease_seat_task_thread_or_file_is_left(lives: int) -> None:
    limits = {"sessions_per_client": 100}
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
        for index in range(lives):
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

        assert host.meter.total_requests > lives / 20  # else only the queue was looked at
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
