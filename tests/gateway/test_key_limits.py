"""Keys of an organisation: expiry, roles, minutes and tokens a day, and what was used."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from tests.support.gateways import all_free, authenticator, turned_away, until
from tests.support.patience import HANG_S
from tests.support.present import present
from tests.support.talking import PATHS, end_of, hear, say
from websockets.asyncio.client import connect

from parley.clock import ManualClock
from parley.errors import QuotaExceeded, Unauthorized
from parley.gateway.authenticator import hash_key
from parley.gateway.eta import EtaTracker
from parley.gateway.state import Key, State, UsageRow
from parley.gateway.usage import KeyUsage
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.protocol.control import Heartbeat, Hello, SessionPhase
from parley.protocol.kinds import Kind, Phase
from parley.settings import EtaSettings

ADMIN = {"x-admin-token": "t" * 32}
SECURITY = {"admin_token": "t" * 32, "needs_key": True}


def a_key(**more: Any) -> Key:
    return Key("k_1", "kiosk", "hash", 0.0, None, None, 8, 120, **more)


class Counted:
    """A pool with one worker and one key."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.pool = WorkerPool(self.clock, EtaTracker(EtaSettings()))
        self.key = a_key(**limits)
        self.usage = KeyUsage(self.pool, self.clock, {"k_1": self.key}.get)
        self.worker = self.pool.welcome(Hello("w", "http://h:1", 4, "m", "cpu", "0", 1), object())
        self.pool.heard(self.worker, Heartbeat("idle", 4, 0, 0.0, 0))

    def lease(self) -> Lease:
        return present(self.pool.lease(Kind.CHAT, "s", key_id="k_1"))

    def session(self, seconds: float, tokens: int = 0) -> None:
        lease = self.lease()
        self.clock.advance(seconds)
        ended = SessionPhase(lease.lease_id, "s", Kind.CHAT, Phase.ENDED, tokens=tokens)
        self.pool.phase(self.worker, ended)
        lease.release()


def test_minutes_and_tokens_are_counted_by_utc_day_and_written_once():
    counted = Counted()
    counted.session(90, tokens=40)
    # It could not be written.
    counted.usage.put_back(counted.usage.take_unsaved())
    counted.session(30, tokens=2)

    rows = counted.usage.take_unsaved()

    assert rows == [UsageRow("k_1", counted.usage.day(), 2, 120.0, 42)]
    assert counted.usage.take_unsaved() == []


def test_a_session_counts_once_and_each_minute_for_its_day():
    counted = Counted()
    first = counted.lease()
    counted.clock.advance(60)
    # Another worker continues it.
    second = counted.lease()
    second.granted_at, second.counted_s = first.granted_at, 60.0
    first.release()
    counted.clock.advance(60)
    assert counted.usage.today("k_1") == UsageRow("k_1", counted.usage.day(), 1, 120.0)
    yesterday = counted.usage.day()

    counted.clock.advance(86_400)
    assert counted.usage.today("k_1") == UsageRow("k_1", counted.usage.day())
    counted.clock.advance(30)
    saved = counted.usage.take_unsaved()
    counted.clock.advance(10)
    second.release()
    saved += counted.usage.take_unsaved()

    days = [(row.day, row.sessions, row.seconds) for row in saved]
    today = counted.usage.day()
    assert days == [(yesterday, 1, 86_520.0), (today, 0, 30.0), (today, 0, 10.0)]
    assert counted.usage.today("k_1").seconds == 40.0


def test_a_key_that_used_its_minutes_begins_no_session_and_ends_those_that_run():
    counted = Counted(minutes_per_day=2)
    counted.session(60)
    counted.usage.check("k_1")
    running = counted.lease()
    counted.clock.advance(59)
    assert counted.usage.over() == []

    counted.clock.advance(1)

    assert counted.usage.over() == [running]
    with pytest.raises(QuotaExceeded, match="2 minutes a day"):
        counted.usage.check("k_1")


def test_tokens_of_the_day_survive_a_restart():
    counted = Counted(tokens_per_day=100)
    for day in ("2000-01-01", counted.usage.day()):
        counted.usage.fill([UsageRow("k_1", day, 1, 5.0, 99)])
    counted.usage.check("k_1")

    counted.session(1, tokens=1)

    with pytest.raises(QuotaExceeded, match="100 tokens"):
        counted.usage.check("k_1")


def test_tokens_are_counted_while_a_session_runs_and_once():
    counted = Counted(tokens_per_day=100)
    running = counted.lease()
    for told in (60, 60, 99):
        heartbeat = Heartbeat("idle", 3, 0, 0.0, 0, tokens={running.lease_id: told, "unknown": 5})
        counted.pool.heard(counted.worker, heartbeat)
    assert counted.usage.over() == []

    heartbeat = Heartbeat("idle", 3, 0, 0.0, 0, tokens={running.lease_id: 120})
    counted.pool.heard(counted.worker, heartbeat)
    over = counted.usage.over()
    ended = SessionPhase(running.lease_id, "s", Kind.CHAT, Phase.ENDED, tokens=130)
    counted.pool.phase(counted.worker, ended)

    assert over == [running]
    assert counted.usage.today("k_1").tokens == 130


def test_tokens_of_a_worker_that_died_are_counted():
    counted = Counted()
    running = counted.lease()
    running.was_opened = True
    running.release()
    heartbeat = Heartbeat("idle", 3, 0, 0.0, 0, tokens={running.lease_id: 70})
    counted.pool.heard(counted.worker, heartbeat)

    counted.pool.left(counted.worker)

    assert counted.usage.today("k_1").tokens == 70


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=SECURITY)
async def test_a_day_that_is_used_up_is_told_in_the_dialect_and_over_rest(gateway):
    key = await gateway.new_key(minutes_per_day=1)
    headers = {"x-api-key": key["key"]}
    used = gateway.runtime.access.usage
    used.fill([UsageRow(key["id"], used.day(), 1, 59.9, 7)])
    async with connect(gateway.ws(PATHS["duplex"]), additional_headers=headers) as running:
        assert (await hear(running))["type"] == "queue_done"
        messages, code = await end_of(running)
    refused = await turned_away(gateway.ws(PATHS["duplex"]), additional_headers=headers)
    async with gateway.http(headers=headers) as http:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        answer = await http.post("/api/chat", json=body)

    assert code == 1000
    assert messages[-1]["type"] == "stopped"
    assert refused == ("quota_exceeded", 1008)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    # At midnight (UTC), when the next day begins.
    assert 0 < int(answer.headers["retry-after"]) <= 86_400


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=SECURITY, limits={"sessions_per_client": 1})
async def test_a_busy_keys_waiting_requests_do_not_block_another_key_of_the_address(
    gateway, monkeypatch
):
    monkeypatch.setattr("parley.gateway.admission.TURN_S", 10 * HANG_S)
    admission = gateway.runtime.access.admission
    busy, other = await gateway.new_key(max_sessions=1), await gateway.new_key()

    async def ask(key: dict[str, Any]) -> int:
        async with gateway.http(headers={"x-api-key": key["key"]}) as http:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            return (await http.post("/api/chat", json=body)).status_code

    whose = f"key {busy['id']}"
    with admission.visit(whose, limit=1):
        waiting = asyncio.create_task(ask(busy))
        await until(lambda: whose in admission._turns)
        assert await ask(other) == 200
    assert await waiting == 200


def _shown(key: dict[str, Any]) -> dict[str, str]:
    return {"x-api-key": key["key"]}


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=SECURITY)
async def test_a_key_that_is_revoked_while_it_waits_gets_no_session(gateway):
    first, second = await gateway.new_key(), await gateway.new_key()
    async with (
        connect(gateway.ws(PATHS["half_duplex"]), additional_headers=_shown(first)) as running,
        gateway.http(headers=ADMIN) as http,
    ):
        assert (await hear(running))["type"] == "queue_done"
        async with connect(
            gateway.ws(PATHS["duplex"]), additional_headers=_shown(second)
        ) as waiting:
            assert (await hear(waiting))["type"] == "queued"
            for key in (first, second):
                await http.delete(f"/api/admin/keys/{key['id']}")
            await say(running, type="stop")
            messages, code = await end_of(waiting)

    assert (messages[-1]["code"], code) == ("unauthorized", 1008)
    await all_free(gateway)


@pytest.mark.gateway(security=SECURITY)
async def test_roles_open_what_they_are_for_and_no_more(gateway, worker):
    status: dict[str, list[int]] = {}
    for role in ("talk", "operate", "admin"):
        key = await gateway.new_key(role=role)
        async with gateway.http(headers={"authorization": f"Bearer {key['key']}"}) as http:
            token = (await http.post("/api/token")).json()["token"]
            asked = [
                await http.get("/status"),
                await http.get("/api/admin/log"),
                await http.put(f"/api/admin/workers/{worker.name}", json={"draining": False}),
                await http.get("/api/admin/keys"),
                await http.get("/api/sessions"),
            ]
        status[role] = [answer.status_code for answer in asked]
        shows_addresses = bool(asked[0].json()["workers"])
        assert shows_addresses == (role != "talk")
        async with gateway.http(headers={"authorization": f"Bearer {token}"}) as browser:
            assert (await browser.get("/api/admin/keys")).status_code == 403, role
        async with gateway.http() as link:
            by_query = await link.get("/api/admin/keys", params={"token": key["key"]})
            assert by_query.status_code == 403, role

    assert status == {
        "talk": [200, 403, 403, 403, 403],
        "operate": [200, 200, 200, 403, 403],
        "admin": [200, 200, 200, 200, 200],
    }


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security=SECURITY)
async def test_usage_is_told_to_admins_as_a_table_and_to_a_holder_its_own(gateway):
    key, other = await gateway.new_key(name="=1+1"), await gateway.new_key(name="other")
    for one in (key, other):
        headers = {"x-api-key": one["key"]}
        async with connect(gateway.ws(PATHS["duplex"]), additional_headers=headers) as call:
            await hear(call)
            await say(call, type="stop")
            await end_of(call)
    await until(lambda: not gateway.runtime.dispatcher.worker_pool.leases)
    async with gateway.http(headers=ADMIN) as http:
        report = (await http.get("/api/admin/keys/usage")).json()["usage"]
        table = await http.get("/api/admin/keys/usage", params={"format": "csv"})
    async with gateway.http(headers={"x-api-key": key["key"]}) as http:
        own = (await http.get("/api/usage")).json()["usage"]

    assert {row["key_id"]: row["sessions"] for row in report} == {key["id"]: 1, other["id"]: 1}
    assert table.headers["content-type"].startswith("text/csv")
    header, *rows = table.text.splitlines()
    assert header == "key_id,name,day,sessions,minutes,tokens"
    assert any(f"{key['id']},'=1+1," in row for row in rows), "no formula"
    assert [row["key_id"] for row in own] == [key["id"]]


async def test_a_rotated_key_keeps_its_id_and_the_old_one_works_until_the_overlap_is_over(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    keys, seal = authenticator(clock, needs_key=True), Fernet.generate_key()
    shown: dict[str, str] = {}

    def works(key: str) -> bool:
        try:
            caller = keys.identify({"x-api-key": key})
        except Unauthorized:
            return False
        # What was made with it may have leaked as well.
        token = shown.setdefault(key, keys.session_token(caller, 7200, settings="{}"))
        return present(keys.identify({}, token).key).id == present(caller.key).id == "k_1"

    async with State(tmp_path / "state.db") as state:
        await state.add_key(replace(a_key(), hash=hash_key("pk_one")))
        keys.fill(await state.keys(), seal)
        assert works("pk_one")
        await state.rotate_key("k_1", hash_key("pk_two"), clock.time() + 60)
        keys.fill(await state.keys(), seal)

    assert (works("pk_one"), works("pk_two"), keys.keys) == (True, True, 1)
    clock.advance(60)
    assert (works("pk_one"), works("pk_two"), keys.keys) == (False, True, 1)
    with pytest.raises(Unauthorized):
        keys.identify({}, shown["pk_one"])
