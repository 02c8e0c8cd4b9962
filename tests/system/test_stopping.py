"""Stopping an answer through the whole server: it is quiet before the model has let go.

The model is kept from answering until the test lets it: an end that waited for it would never come.
The 300 ms of service.md 4.3 are a matter for measuring; here nothing is timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.faults import Gated
from tests.support.patience import HANG_S
from tests.support.stack import RunningStack
from tests.support.talking import ask_aloud, begin_half_duplex, hear, hear_until, say
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.engine.work import Stage


@contextlib.asynccontextmanager
async def in_mid_answer(server: RunningStack, model: Gated) -> AsyncIterator[ClientConnection]:
    """A client whose question is being answered, by a model that does not get a word out."""
    async with connect(server.ws("/ws/half_duplex/hdx_1")) as client:
        await begin_half_duplex(client)
        model.shut(Stage.DECODE)
        await ask_aloud(client)
        await model.arrived()
        yield client


async def end_of(socket: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        await hear(socket)
    return socket.close_code


async def test_stop_in_the_middle_of_a_turn_does_not_wait_for_the_model(
    server: RunningStack, model: Gated
) -> None:
    async with in_mid_answer(server, model) as client:
        await say(client, type="stop")
        _, turn = await hear_until(client, "turn_done")
        stopped = await hear(client)

        assert turn["interrupted"] is True
        assert stopped == {"type": "stopped", "session_id": "hdx_1"}

        # The slot is nobody's until the model has let go.
        async with connect(server.ws("/ws/half_duplex/hdx_2")) as after:
            assert (await hear(after))["type"] == "queued"
            model.open()
            await begin_half_duplex(after)
        assert await end_of(client) == 1000


async def test_an_external_stop_of_a_turn_keeps_the_session(
    server: RunningStack, model: Gated
) -> None:
    async with (
        in_mid_answer(server, model) as client,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
    ):
        order = {"session_id": "hdx_1", "scope": "turn"}
        answer = await http.post("/api/half_duplex/stop", json=order)
        _, turn = await hear_until(client, "turn_done")
        model.open()
        await ask_aloud(client)
        _, second = await hear_until(client, "turn_done")

    assert answer.json()["success"] is True
    assert (turn["turn_index"], turn["interrupted"]) == (0, True)
    assert (second["turn_index"], second["interrupted"]) == (1, False)
    assert second["text"]


async def test_an_external_stop_of_a_session_ends_it_and_is_not_found_again(
    server: RunningStack, model: Gated
) -> None:
    async with (
        in_mid_answer(server, model) as client,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as http,
    ):
        answer = await http.post("/api/half_duplex/stop", json={"session_id": "hdx_1"})
        _, turn = await hear_until(client, "turn_done")
        stopped = await hear(client)
        model.open()
        code = await end_of(client)
        again = await http.post("/api/half_duplex/stop", json={"session_id": "hdx_1"})

    assert answer.json()["success"] is True
    assert turn["interrupted"] is True
    assert stopped["type"] == "stopped"
    assert code == 1000
    assert (again.status_code, again.json()["success"]) == (404, False)
