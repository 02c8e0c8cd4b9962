"""A stop or a look at a person's place in the queue needs more than a guess."""

import re
import secrets
from typing import Any

import pytest
from tests.support.gateways import RunningGateway, occupied, running_gateway, turned_away
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear, say
from websockets.asyncio.client import ClientConnection, connect

from parley.clock import ManualClock
from parley.dialects.realtime import RealtimeDialect
from parley.gateway.http.stopping import is_long
from parley.gateway.rates import SELDOM_MOST, SELDOM_S, Seldom
from parley.transport.allowance import CALLERS_KEPT, RateLimit

PROXY = {"trust_proxy": True}
"""So that tests can come from any address."""


def at(address: str) -> dict[str, str]:
    return {"x-forwarded-for": address}


def session(gateway: RunningGateway, path: str, address: str, **headers: str) -> connect:
    return connect(gateway.ws(path), additional_headers={**at(address), **headers})


async def stop(
    gateway: RunningGateway, session_id: str, address: str, *, scope: str = "session", **more: str
) -> tuple[int, dict[str, Any]]:
    async with gateway.http() as http:
        answer = await http.post(
            "/api/half_duplex/stop",
            json={"session_id": session_id, "scope": scope},
            headers={**at(address), **more},
        )
    return answer.status_code, answer.json()


async def is_alive(client: ClientConnection) -> bool:
    await say(client, type="prepare")
    return (await hear(client))["type"] == "prepared"


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=PROXY)
async def test_a_stranger_who_knows_the_id_of_a_short_one_stops_nothing(gateway):
    async with session(gateway, "/ws/half_duplex/hdx_abc123", "192.0.2.1") as client:
        await hear(client)
        stranger = await stop(gateway, "hdx_abc123", "192.0.2.9")
        alive = await is_alive(client)
        owner = await stop(gateway, "hdx_abc123", "192.0.2.1")
        messages, code = await end_of(client)

    assert stranger == (404, stranger[1])
    assert stranger[1]["success"] is False
    assert alive
    assert owner == (200, {"success": True, "message": "The session was stopped."})
    assert (messages[-1]["type"], code) == ("stopped", 1000)


@pytest.mark.gateway(security=PROXY)
@pytest.mark.usefixtures("worker")
async def test_an_id_that_cannot_be_guessed_stops_from_anywhere(gateway):
    session_id = "hdx_0f9d8c7b6a5e4d3c2b1a0f9e8d7c6b5a"
    async with session(gateway, f"/ws/half_duplex/{session_id}", "192.0.2.1") as client:
        await hear(client)
        status, answer = await stop(gateway, session_id, "192.0.2.9")
        _, code = await end_of(client)

    assert (status, answer["success"], code) == (200, True, 1000)


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=PROXY)
async def test_a_waiting_session_is_stopped_by_its_owner_only(gateway):
    async with occupied(gateway), session(gateway, "/ws/half_duplex/waits", "192.0.2.1") as client:
        await hear(client)
        stranger, _ = await stop(gateway, "waits", "192.0.2.9")
        waiting = len(gateway.runtime.dispatcher.queue)
        owner, _ = await stop(gateway, "waits", "192.0.2.1")
        _, code = await end_of(client)

    assert (stranger, waiting, owner, code) == (404, 1, 200, 1000)


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security={**PROXY, "admin_token": "boss"})
async def test_the_audit_log_has_the_sessions_of_others_that_an_admin_ends(gateway):
    admin = {**at("192.0.2.9"), "x-admin-token": "boss"}
    async with gateway.http(headers=admin) as http:
        # In the first round they are the admin's own.
        for address in ("192.0.2.9", "192.0.2.1"):
            async with session(gateway, "/ws/half_duplex/talks", address) as talks:
                await hear(talks)
                async with session(gateway, "/ws/half_duplex/waits", address) as waits:
                    ticket_id = (await hear(waits))["ticket_id"]
                    await http.delete(f"/api/queue/{ticket_id}")
                async with session(gateway, "/ws/half_duplex/waits", address) as waits:
                    await hear(waits)
                    for name in ("waits", "talks"):
                        await stop(gateway, name, "192.0.2.9", **admin)
                await end_of(talks)
        entries = (await http.get("/api/admin/audit")).json()["entries"]

    ended = [f"/api/queue/{ticket_id}", *["/api/half_duplex/stop"] * 2]
    assert [(each["path"], each["status"]) for each in reversed(entries)] == [
        (path, 200) for path in ended
    ]


@pytest.mark.parametrize("dialect", ["duplex", "realtime"])
async def test_sessions_of_other_dialects_are_not_stopped_by_it(
    gateway: RunningGateway, worker: StandInWorker, dialect: str
):
    async with connect(gateway.ws(PATHS[dialect])) as client:
        await hear(client)
        (session_id,) = worker.sessions
        status, _ = await stop(gateway, session_id, "127.0.0.1")
        await say(client, type="session.update" if dialect == "realtime" else "prepare")
        answer = await hear(client)

    assert status == 404
    assert answer["type"] in ("prepared", "session.created")


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security={**PROXY, "admin_token": "boss"})
async def test_a_session_of_a_key_is_stopped_with_that_key_only(gateway):
    keys = [(await gateway.new_key(name))["key"] for name in ("one", "two")]
    name = "hdx_0f9d8c7b6a5e4d3c2b1a0f9e8d7c6b5a"
    async with session(
        gateway, f"/ws/half_duplex/{name}", "192.0.2.1", **{"x-api-key": keys[0]}
    ) as client:
        await hear(client)
        without, _ = await stop(gateway, name, "192.0.2.1")
        others = [
            (await stop(gateway, name, "192.0.2.9", **{"x-api-key": keys[1]}))[0] for _ in range(11)
        ]
        own, _ = await stop(gateway, name, "192.0.2.9", **{"x-api-key": keys[0]})
        await end_of(client)

    assert (without, others, own) == (404, [404] * 10 + [429], 200)


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=PROXY)
async def test_guessing_session_ids_is_soon_over(gateway):
    async with session(gateway, "/ws/half_duplex/hdx_abc", "192.0.2.1") as client:
        await hear(client)
        statuses = [(await stop(gateway, f"hdx_{n}", "192.0.2.1"))[0] for n in range(11)]
        right, answer = await stop(gateway, "hdx_abc", "192.0.2.1")
        elsewhere, _ = await stop(gateway, "hdx_none", "192.0.2.2")
        alive = await is_alive(client)

    assert statuses == [404] * 10 + [429]
    assert (right, answer["code"], elsewhere) == (429, "rate_limited", 404)
    assert alive


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=PROXY)
async def test_strangers_see_how_many_wait_and_no_ticket_ids(gateway):
    async with (
        gateway.http(headers=at("192.0.2.9")) as stranger,
        occupied(gateway),
        session(gateway, "/ws/duplex/omni_1", "192.0.2.9") as client,
    ):
        ticket_id = (await hear(client))["ticket_id"]
        listed = await stranger.get("/api/queue")
        known = await stranger.get(f"/api/queue/{ticket_id}")
        # The same address is not the same person.
        guessed = await stranger.delete(f"/api/queue/q_{secrets.token_hex(16)}")
        still = len(gateway.runtime.dispatcher.queue)
        own = await stranger.delete(f"/api/queue/{ticket_id}")
        _, code = await end_of(client)

    assert listed.json()["queue_length"] == 1
    assert [item["ticket_id"] for item in listed.json()["items"]] == [None]
    assert ticket_id not in listed.text
    assert known.json()["ticket"]["ticket_id"] == ticket_id
    assert (guessed.json(), still) == ({"success": False}, 1)
    assert (own.json(), code) == ({"success": True}, 1000)


async def test_callers_without_a_key_are_limited_per_minute():
    security = {**PROXY, "anonymous_per_minute": 5, "admin_token": "boss"}
    async with running_gateway(security=security) as gateway, gateway.http() as http:
        one = [
            (await http.get("/api/queue", headers=at("192.0.2.1"))).status_code for _ in range(6)
        ]
        path = gateway.ws(PATHS["duplex"])
        call = await turned_away(path, additional_headers=at("192.0.2.1"))
        other = await http.get("/api/queue", headers=at("192.0.2.2"))
        page = await http.get("/health", headers=at("192.0.2.1"))
        boss = await http.get("/api/queue", headers={**at("192.0.2.1"), "x-admin-token": "boss"})

    assert one == [200] * 5 + [429]
    assert call == ("rate_limited", 1008)
    assert [other.status_code, page.status_code, boss.status_code] == [200, 200, 200]


def test_a_rate_refills_evenly_and_by_caller():
    clock = ManualClock()
    limit = RateLimit(60, 60.0, clock.monotonic)

    assert [limit.take("a") for _ in range(61)] == [True] * 60 + [False]
    assert limit.take("b")
    clock.advance(2)
    assert [limit.take("a") for _ in range(3)] == [True, True, False]
    clock.advance(3600)
    assert [limit.take("a") for _ in range(61)] == [True] * 60 + [False]


def test_after_the_wait_that_is_told_there_is_room():
    clock = ManualClock()
    limit = RateLimit(2, 3.0, clock.monotonic)
    while limit.take("a"):
        pass

    assert limit.wait_s("a") == 2
    clock.advance(2)
    assert limit.has_room("a")


def test_what_is_dear_is_made_a_few_times_a_while():
    clock, made = ManualClock(), iter(range(1, 100))
    seldom = Seldom(clock, lambda: next(made))

    assert [seldom.get() for _ in range(SELDOM_MOST + 2)][-3:] == [SELDOM_MOST] * 3
    clock.advance(SELDOM_S)
    assert seldom.get() == SELDOM_MOST + 1


def test_the_number_of_callers_kept_is_bounded():
    limit = RateLimit(1, 60.0, ManualClock().monotonic)

    for number in range(CALLERS_KEPT + 10):
        limit.take(str(number))

    assert len(limit) == CALLERS_KEPT


def test_ids_made_by_the_server_hold_128_bits():
    made = RealtimeDialect.new_session_id(1_714_200_000.0)
    assert re.fullmatch(r"rt_1714200000000_[A-Za-z0-9]{17}", made)
    assert int(made.split("_")[1]) == 1_714_200_000_000
    assert len({RealtimeDialect.new_session_id(1.0) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("session_id", "expected"),
    [
        ("hdx_abc123", False),
        ("hdx_7f3a9c51bd20", False),
        ("hdx_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1", False),
        ("the-conversation-of-alice-and-bob", False),
        ("hdx_0f9d8c7b6a5e4d3c2b1a0f9e8d7c6b5a", True),
        ("9b2c5b0e-3d1f-4c2a-8e77-0c6f5d9b1a23", True),
    ],
)
def test_what_counts_as_too_long_to_guess(session_id: str, expected: bool):
    assert is_long(session_id) is expected
