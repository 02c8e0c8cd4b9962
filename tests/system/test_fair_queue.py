"""Nobody in the queue suffers from another's departure, whenever that happens."""

import asyncio
import json
from collections import Counter

import pytest
from tests.support.gateways import RunningGateway, all_free, running_gateway, until
from tests.support.long import times
from tests.support.patience import HANG_S
from tests.support.stack import running_stack
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import hear
from websockets.asyncio.client import connect

from parley.protocol.control import Heartbeat
from parley.worker.host import Host

MOMENTS = 25
"""Turns of the event loop in which a dialled worker answers, and some more."""


async def _leave_while_dialling(gateway: RunningGateway, number: int, turns: int) -> str:
    """A and B wait behind a third; A gets its slot and breaks off while its worker is dialled; B
    says what it heard last."""
    leaver_id = f"leaves_{number}"

    def is_leased() -> bool:
        leases = gateway.runtime.dispatcher.worker_pool.leases
        return any(lease.session_id == leaver_id for lease in leases)

    async with connect(gateway.ws(f"/ws/half_duplex/first_{number}")) as first:
        while (await hear(first))["type"] != "queue_done":
            pass
        leaver = await connect(gateway.ws(f"/ws/half_duplex/{leaver_id}"))
        assert (await hear(leaver))["type"] == "queued"
        async with connect(gateway.ws(f"/ws/half_duplex/waits_{number}")) as waiter:
            assert (await hear(waiter))["type"] == "queued"
            await first.send('{"type": "stop"}')
            async with asyncio.timeout(HANG_S):
                # Its lease has no event that this side could wait for.
                while not is_leased():  # noqa: ASYNC110
                    await asyncio.sleep(0)
            # Finer than any time: so many turns of the event loop into the dialling.
            for _ in range(turns):
                await asyncio.sleep(0)
            leaver.transport.abort()
            while True:
                message = json.loads(await asyncio.wait_for(waiter.recv(), HANG_S))
                if message["type"] not in ("queued", "queue_update"):
                    break
            await waiter.send('{"type": "stop"}')
            return message.get("code") or message["type"]


async def test_who_waits_is_served_when_the_previous_one_leaves_at_any_moment():
    rounds = times(1, 10) * MOMENTS
    # Hundreds of connections of one address, one after the other.
    async with running_stack(limits={"connections_per_client": 100_000}) as running:
        heard = Counter(
            [
                await _leave_while_dialling(running, number, number % MOMENTS)
                for number in range(rounds)
            ]
        )
        await all_free(running)

    assert heard == {"queue_done": rounds}


async def test_a_slot_that_was_dialled_for_a_leaver_is_nobodys_until_it_is_clean():
    """The worker may have taken the session in the moment in which its client left."""
    dialled = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running_gateway() as gateway:
        worker = StandInWorker(gateway.url, beat_every_s=60)
        worker.url = f"http://127.0.0.1:{port}"
        worker._tasks.append(asyncio.create_task(asyncio.sleep(0)))
        await worker.join()
        (known,) = gateway.runtime.dispatcher.worker_pool
        leaver = await connect(gateway.ws("/ws/half_duplex/leaves"))
        await asyncio.wait_for(dialled.wait(), HANG_S)

        leaver.transport.abort()
        await until(lambda: not known.leases)

        assert known.free_slots == 0
        assert len(known.closing) == 1
        await worker.leave()


async def test_a_refusal_by_the_worker_puts_the_ticket_back_to_the_head(
    monkeypatch: pytest.MonkeyPatch,
):
    """The worker says in one heartbeat that it has room, and then has none."""
    async with running_stack() as running:
        (worker,) = running.workers
        assert worker.host is not None
        slot = await worker.host.engine.take_slot()
        monkeypatch.setattr(Host, "free_slots", property(lambda host: 1))
        (known,) = running.runtime.dispatcher.worker_pool
        running.runtime.dispatcher.worker_pool.heard(known, Heartbeat("idle", 1, 0, 0, 0))
        async with connect(running.ws("/ws/half_duplex/first")) as first:
            assert (await hear(first))["type"] == "queued"
            async with connect(running.ws("/ws/duplex/second")) as second:
                assert (await hear(second))["position"] == 2
                await slot.close()

                while (answer := await hear(first))["type"] == "queue_update":
                    assert answer["position"] == 1

        assert answer["type"] == "queue_done"
        assert known.is_unreachable is False
