"""One worker and several people: strict order, places told, estimates that fall and learn."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import httpx
from tests.support.gateways import all_free
from tests.support.patience import HANG_S
from tests.support.stack import running_stack
from tests.support.talking import (
    ASK,
    LOUD,
    Message,
    begin_duplex,
    begin_half_duplex,
    hear,
    hear_until,
    say,
)
from websockets.asyncio.client import ClientConnection, connect

ENERGY = {"vad": "energy"}
EVERY_S = 0.2


async def updates(client: ClientConnection, count: int) -> list[Message]:
    return [await hear(client) for _ in range(count)]


async def test_three_clients_of_different_kinds_are_served_in_the_order_they_came() -> None:
    served: list[str] = []
    async with (
        running_stack(worker=ENERGY, queue={"update_every_s": EVERY_S}) as server,
        connect(server.ws("/ws/duplex/first")) as first,
        connect(server.ws("/v1/realtime?mode=audio")) as second,
        connect(server.ws("/ws/chat")) as third,
    ):
        await begin_duplex(first)
        (queued,) = await updates(second, 1)
        await say(third, **ASK)
        (behind,) = await updates(third, 1)
        told = {"second": await updates(second, 6), "third": await updates(third, 6)}

        async def follow(name: str, client: ClientConnection, kind: str) -> list[Message]:
            before, _ = await hear_until(client, kind)
            served.append(name)
            return before

        to_second = asyncio.create_task(follow("second", second, "session.queue_done"))
        to_third = asyncio.create_task(follow("third", third, "queue_done"))
        await say(first, type="stop")
        await to_second
        await say(second, type="session.close")
        moved = await to_third
        await hear_until(third, "done")

    assert (queued["type"], queued["position"]) == ("session.queued", 1)
    assert (behind["type"], behind["position"]) == ("queued", 2)
    assert served == ["second", "third"]
    # Nobody has to wait for the next update to learn of a step forward.
    assert [m["position"] for m in moved][-1] == 1
    for messages in told.values():
        waits_s = [message["estimated_wait_s"] for message in messages]
        assert all(later < earlier for earlier, later in pairwise(waits_s)), waits_s
        assert [m["eta_seconds"] for m in messages] == waits_s
    assert told["third"][0]["estimated_wait_s"] > told["second"][0]["estimated_wait_s"]


async def test_estimates_learn_from_sessions_that_took_place() -> None:
    async with (
        running_stack(worker=ENERGY) as server,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
    ):
        before = (await http.get("/api/config/eta")).json()
        for _ in range(2):
            async with connect(server.ws("/ws/chat")) as client:
                await say(client, **ASK)
                await hear_until(client, "done")
            await all_free(server)
        await http.post("/api/chat", json=ASK)
        async with connect(server.ws("/ws/half_duplex/leaves")) as client:
            await hear_until(client, "queue_done")  # and leaves: that is no session
        await all_free(server)
        async with connect(server.ws("/ws/half_duplex/talks")) as client:
            await begin_half_duplex(client)
            await say(client, type="stop")
        await all_free(server)
        async with connect(server.ws("/ws/duplex/adx_1")) as client:
            await begin_duplex(client)
            await say(client, type="audio_chunk", audio=LOUD)
            await hear_until(client, "result")
        await all_free(server)
        eta = (await http.get("/api/config/eta")).json()

    assert before["ema_chat_s"] is None
    assert eta["ema_chat_samples"] == 3
    assert 0 < eta["ema_chat_s"] < 5
    assert eta["ema_half_duplex_samples"] == 1
    assert eta["ema_audio_duplex_samples"] == 1
    assert eta["ema_omni_duplex_samples"] == 0
