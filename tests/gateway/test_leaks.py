"""Hundreds of clients that come and go at any moment leave nothing behind."""

import asyncio
import gc
import weakref

import pytest
from tests.support.gateways import all_free, until
from tests.support.talking import hear, say
from websockets.asyncio.client import connect

from parley.errors import WorkerLost
from parley.gateway.acquisition import ClientWatch, Departed
from parley.gateway.waits import unless
from parley.protocol.control import ResumeState, SessionPhase
from parley.protocol.kinds import Phase


async def test_a_client_that_is_cut_off_after_its_session_has_ended_leaves_no_slot_taken(
    gateway, worker
):
    async with connect(gateway.ws("/ws/duplex/omni_1")) as client:
        await hear(client)
        await say(client, type="prepare")
        await hear(client)
        (lease,) = gateway.runtime.dispatcher.worker_pool.leases
        resume = ResumeState("duplex", left_s=None, note="")
        # Its worker reports the gateway before it closes the session's connection.
        await worker._say(
            SessionPhase(lease.lease_id, "omni_1", lease.kind, Phase.ENDED, resume=resume)
        )
        await until(lambda: lease.phase is Phase.ENDED)
        client.transport.abort()

    await all_free(gateway)
    async with connect(gateway.ws("/ws/duplex/omni_2")) as after:
        assert await hear(after) == {"type": "queue_done"}


class Client(ClientWatch[None]):
    has_left = False

    async def next(self) -> None:
        if not self.has_left:
            await asyncio.Event().wait()
        raise Departed("hung up")


async def refuse() -> None:
    raise WorkerLost


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_request_that_failed_is_freed_without_the_garbage_collector(leaves: bool) -> None:
    never = asyncio.get_running_loop().create_future()

    async def serve() -> weakref.ref[set[str]]:
        request = {"a picture of 20 MB"}
        try:
            async with Client(never) as client:
                client.has_left = leaves
                work = asyncio.Event().wait() if leaves else refuse()
                await client.attend(unless(never, work, WorkerLost))
        except (Departed, WorkerLost):
            return weakref.ref(request)
        raise AssertionError

    gc.disable()
    try:
        kept = await serve()
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()
