"""Hundreds of clients that come and go at any moment leave nothing behind."""

import asyncio
import gc
import itertools
import json
import os
import random

import pytest
from tests.support.gateways import RunningGateway, all_free, hear, running_gateway, say, until
from tests.support.long import times
from tests.support.random_sessions import one_life, open_files
from tests.support.stand_in_worker import StandInWorker
from websockets.asyncio.client import connect

from parley.protocol.control import ResumeState, SessionPhase
from parley.protocol.kinds import Phase

LIVES_AT_MOST = 20
"""Times the lives that are asked for."""


async def workers_come_and_go(
    gateway: RunningGateway, dice: random.Random, enough: asyncio.Event
) -> None:
    for index in itertools.count():
        if enough.is_set():
            return
        async with StandInWorker(gateway.url, name=f"passing-{index}") as worker:
            await asyncio.sleep(dice.random() * 0.2)
            if dice.random() < 0.5:
                worker.kill()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files in /proc")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_no_lease_ticket_task_or_file_is_left(seed: int):
    dice = random.Random(seed)
    lives = 50 if seed == 1 else times(300, 1000)
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
        passing = asyncio.create_task(workers_come_and_go(gateway, dice, enough := asyncio.Event()))

        # On a busy machine most clients give up while they wait: more come until enough talked.
        pending: set[asyncio.Task[None]] = set()
        for index in range(LIVES_AT_MOST * lives):
            if index >= lives and len(worker.ended) > lives / 20:
                break
            pending.add(asyncio.create_task(one_life(gateway, index, random.Random(index))))
            if len(pending) >= 12:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if pending:
            await asyncio.wait(pending)
        # Asked, not cancelled: half a worker would be left, which is no fault of the gateway.
        enough.set()
        await passing
        runtime = gateway.runtime
        await until(lambda: not runtime.serving.connection_handler.live)
        await all_free(gateway)
        await until(lambda: worker._busy == 0)

        assert len(worker.ended) > lives / 20  # else the test looked at the queue only
        await until(lambda: runtime.access.admission.sessions_by_address == {})
        assert runtime.links.budget.peak_bytes > 0  # otherwise no client sent anything that counts
        await until(
            lambda: runtime.links.budget.used_bytes == 0 and runtime.links.budget.owners == 0
        )
        await until(lambda: len(runtime.access.open_connections.by_address) <= 1)
        await until(lambda: len(runtime.links.keepalive) == 1)  # the worker's control socket
        gc.collect()
        await until(lambda: open_files() <= files_before + 2)
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before + 2)
        async with connect(gateway.ws("/ws/duplex/after")) as after:
            assert json.loads(await after.recv()) == {"type": "queue_done"}


async def test_a_client_that_is_cut_off_after_its_session_has_ended_leaves_no_slot_taken():
    async with running_gateway() as gateway, StandInWorker(gateway.url) as worker:
        async with connect(gateway.ws("/ws/duplex/omni_1")) as client:
            await hear(client)
            await say(client, type="prepare")
            await hear(client)
            (lease,) = gateway.runtime.scheduling.worker_pool.leases
            resume = ResumeState("duplex", left_s=None, note="")
            # Its worker tells the gateway before it closes the session's connection.
            await worker._say(
                SessionPhase(lease.lease_id, "omni_1", lease.kind, Phase.ENDED, resume=resume)
            )
            await until(lambda: lease.phase is Phase.ENDED)
            client.transport.abort()

        await all_free(gateway)
        async with connect(gateway.ws("/ws/duplex/omni_2")) as after:
            assert await hear(after) == {"type": "queue_done"}
