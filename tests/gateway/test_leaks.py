"""Hundreds of clients that come and go at any moment leave nothing behind."""

from tests.support.gateways import all_free, until
from tests.support.talking import hear, say
from websockets.asyncio.client import connect

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
