import asyncio
from dataclasses import replace
from typing import cast

import httpx
import msgspec
import pytest

from parley.protocol.control import LeaseNote
from parley.protocol.kinds import Kind
from parley.protocol.networks import network_of
from parley.transport import Connection, Message
from parley.worker import app
from parley.worker.lease import LeasedSlot
from parley.worker.socket import TURN_MESSAGES, GatewaySocket


class Ready:
    """A connection on which everything is there already."""

    async def receive(self) -> Message:
        return Message.client_text(bytearray(b"{}"))


async def test_a_crowd_of_messages_leaves_other_sessions_their_turns():
    socket = GatewaySocket(cast(Connection, Ready()), limit_bytes=100)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    for _ in range(100 * TURN_MESSAGES):
        await socket.receive()
    other.cancel()

    assert turns >= 99


def test_a_lease_knows_whose_it_is_from_the_gateways_note():
    lease = LeasedSlot("l1", "s1", "chat", Kind.CHAT)
    note = msgspec.json.encode(LeaseNote("2001:db8::7", "k1", 1.0)).decode()

    assert replace(lease, note=note).facts == LeaseNote("2001:db8::7", "k1", 1.0)
    assert lease.facts == replace(lease, note="{").facts == LeaseNote()
    assert replace(lease, note=note).owner == "k1"
    note = msgspec.json.encode(LeaseNote("2001:db8::7")).decode()
    assert replace(lease, note=note).owner == network_of("2001:db8::7")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 503),
        ({"host": "localhost:9"}, 503),
        ({"host": "[::1]:9"}, 503),
        ({"host": "gpu7.example.com:9"}, 503),
        ({"host": "worker-0.parley.svc.cluster.local"}, 503),
        ({"host": "rebound.example.org"}, 421),
        ({"host": "gpu7.example.com.evil.org"}, 421),
        ({"host": ""}, 421),
        ({"origin": "https://rebound.example.org"}, 403),
        ({"origin": "http://127.0.0.1:9"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_a_worker_answers_no_page_and_to_no_other_name(headers, status):
    guarded = app.make_app(lambda: None, name="gpu7.example.com")
    transport = httpx.ASGITransport(guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9") as http:
        assert (await http.get("/health", headers=headers)).status_code == status
