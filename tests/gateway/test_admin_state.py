"""What outlasts a restart, who may do what, and the audit of admins."""

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from tests.support.gateways import (
    RunningGateway,
    refusal_of,
    running_gateway,
    turned_away,
    until,
)
from tests.support.patience import HANG_S
from tests.support.recordings import Running, recorded
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS
from websockets.asyncio.client import connect

from parley.errors import SetupError, SetupPostponed
from parley.gateway import maintenance
from parley.gateway import state as state_module
from parley.gateway.http.auth import OPEN_PATHS
from parley.gateway.http.routing import Route
from parley.gateway.main import Gateway
from parley.gateway.state import MIGRATIONS, Key, State
from parley.recording.layout import RecordingFolders
from parley.settings import GatewaySettings, Settings

ADMIN = {"authorization": "Bearer the-admin"}
CAPABILITIES = "/v1/realtime/capabilities"


def gateway(tmp_path: Path, **security: Any):
    return running_gateway(
        storage={"data_dir": tmp_path, "min_free_gb": 0},
        security={"admin_token": "the-admin", **security},
    )


# ---- restarts ------------------------------------------------------------------------------


async def test_switches_estimates_and_keys_outlast_a_restart(tmp_path):
    tmp_path /= "d\udce4ta"  # its name is in Latin-1
    async with gateway(tmp_path) as running, running.http(headers=ADMIN) as http:
        await http.put("/api/admin/apps/omni", json={"enabled": False})
        await http.put("/api/config/eta", json={"eta_chat_s": 7.5})
        await http.put("/api/config/eta", json={"ema_alpha": 0.5})
        for _ in range(3):
            running.runtime.dispatcher.eta.record("chat", 4.0)
        key = (await running.new_key())["key"]
        token = (await http.post("/api/token", headers={"x-api-key": key})).json()["token"]
        link = running.runtime.access.authenticator.share_token("x", None)

    async with gateway(tmp_path) as running, running.http(headers=ADMIN) as http:
        apps = (await http.get("/api/apps")).json()["apps"]
        eta = (await http.get("/api/config/eta")).json()
        keys = (await http.get("/api/admin/keys")).json()["keys"]
        with_key = await http.get("/status", headers={"authorization": f"Bearer {key}"})
        used = (await http.get("/api/admin/keys")).json()["keys"]
        with_token = await http.get("/status", headers={"authorization": f"Bearer {token}"})

        assert running.runtime.access.authenticator.shared(link) == "x"
    assert "omni" not in {app["app_id"] for app in apps}
    assert (eta["eta_chat_s"], eta["ema_alpha"], eta["eta_omni_duplex_s"]) == (7.5, 0.5, 90.0)
    assert (eta["ema_chat_s"], eta["ema_chat_samples"]) == (4.0, 3)
    assert [one["name"] for one in keys] == ["kiosk"]
    assert (keys[0]["last_used_at"], used[0]["last_used_at"] is None) == (None, False)
    assert with_key.status_code == with_token.status_code == 200


async def test_a_broken_database_is_kept_aside_and_reported(tmp_path):
    (tmp_path / "state.db").write_bytes(b"this is no database" * 1000)

    async with gateway(tmp_path) as running, running.http(headers=ADMIN) as http:
        report = (await http.get("/api/admin/state")).json()

    (aside,) = tmp_path.glob("state.db.corrupt-*")
    assert aside.read_bytes().startswith(b"this is no database")
    assert aside.name in report["problems"][0]


async def test_a_database_of_a_newer_version_is_not_touched(tmp_path):
    database = sqlite3.connect(tmp_path / "state.db")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    before = (tmp_path / "state.db").read_bytes()

    with pytest.raises(SetupError, match="newer version"):
        async with State(tmp_path / "state.db"):
            pass

    assert (tmp_path / "state.db").read_bytes() == before


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
async def test_a_database_of_any_older_version_is_migrated_with_its_rows(tmp_path, version: int):
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = """
            INSERT INTO keys VALUES ('k_1', 'a', 'h', 1, 2, NULL, 8, 120);
            INSERT INTO facts VALUES ('recordings.erased', '{"k_2": 7.5}');
        """
        database.executescript("".join((MIGRATIONS[0], rows, *MIGRATIONS[1:version])))
        database.execute(f"PRAGMA user_version = {version}")
        async with State(path) as state:
            keys = await state.keys()
            erased_s = [await state.erased_s(owner) for owner in ("k_1", "k_2")]
        ((now,),) = database.execute("PRAGMA user_version")

    assert erased_s == [None, 7.5]
    assert keys == [Key("k_1", "a", "h", 1.0, 2.0, None, 8, 120)]
    assert (now, path.stat().st_mode & 0o077) == (len(MIGRATIONS), 0)


@pytest.mark.parametrize(
    "why", ["unable to open", "its disk is full", "state.db belongs to ano", "state.db is locked"]
)
async def test_a_database_that_cannot_be_opened_is_a_set_up_error(tmp_path, monkeypatch, why):
    monkeypatch.setattr(state_module, "free_bytes", lambda _: 0 if "full" in why else 2 << 20)
    user = os.geteuid() + ("belongs" in why)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(state_module, "BUSY_S", 0.0)
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        if "locked" not in why:
            path.unlink()
            path.mkdir()
        with pytest.raises(SetupError, match=f"cannot be used to keep state: {why}") as caught:
            async with State(path):
                pass

    assert "storage.data_dir" in caught.value.hint
    assert isinstance(caught.value, SetupPostponed) is (why.endswith(("full", "locked")))


async def test_a_gateway_waits_while_another_process_has_the_database_for_itself(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as frozen:
        frozen.execute("BEGIN EXCLUSIVE")
        made = GatewaySettings(host="127.0.0.1", port=0, http=True)
        waiting = [Gateway(Settings(gateway=made, storage={"data_dir": tmp_path})) for _ in "ab"]
        with capture_logs() as logged:
            serving = [asyncio.create_task(each.serve()) for each in waiting]
            async with httpx.AsyncClient() as http:
                answers = [await http.get(f"{each.url}/ready") for each in waiting]
            waiting[0].stop()
            await serving[0]
            frozen.execute("COMMIT")
            await until(lambda: waiting[1].app.runtime is not None)
            waiting[1].stop()
            await serving[1]

    assert [answer.json()["ready"] for answer in answers] == [False, False]
    assert waiting[0].app.runtime is None
    assert [line["event"] for line in logged].count("state_locked") == 2


async def test_a_server_starts_and_answers_while_another_process_writes(tmp_path, monkeypatch):
    async with gateway(tmp_path):
        pass

    monkeypatch.setattr(state_module, "BUSY_S", 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with gateway(tmp_path) as running, running.http(headers=ADMIN) as http:
            refused = await http.post("/api/admin/keys", json={"name": "a"})

    assert (refused.status_code, refused.json()["code"]) == (503, "storage_unavailable")


async def test_what_is_deleted_outside_is_forgotten_with_its_responses(tmp_path):
    folders = RecordingFolders(tmp_path)
    for name in ("stays", "goes"):
        recorded(tmp_path, name)
    async with State(tmp_path / "state.db") as state:
        await maintenance.refresh(state, folders)
        for number, name in enumerate(("stays", "goes")):
            await state.keep_response(f"resp_{name}", "owner", float(number), name, b"{}")
        shutil.rmtree(folders.folder("goes").path)

        await maintenance.refresh(state, folders)

        known, _ = await state.unsettled()
        kept = [await state.response(f"resp_{name}", "owner") for name in ("stays", "goes")]
        others = await state.response("resp_stays", "another")
    assert known == {"stays"}
    assert (kept, others) == ([b"{}", None], None)


async def test_of_stored_responses_the_oldest_of_an_owner_and_of_the_one_with_most_go(tmp_path):
    async with State(tmp_path / "state.db") as state:
        for age, owner in enumerate("aaabb"):
            await state.keep_response(f"r{age}", owner, -float(age), None, b"12345")

        async def left() -> str:
            return "".join([
                str(age)
                for age, owner in enumerate("aaabb")
                if await state.response(f"r{age}", owner) is not None
            ])  # fmt: skip

        await state.trim_responses("b", each_bytes=5, each=5, all_bytes=25)
        by_size = await left()
        await state.trim_responses("a", each_bytes=100, each=2, all_bytes=25)
        by_number = await left()
        await state.trim_responses("b", each_bytes=100, each=5, all_bytes=15)
        assert (by_size, by_number, await left()) == ("0123", "013", "013")

        await state.keep_response("r9", "c", -9.0, None, b"12345")
        await state.trim_responses("c", each_bytes=100, each=5, all_bytes=17)
        assert await left() == "03"
        assert await state.response("r9", "c") == b"12345", "its owner has less than the other"
        assert await state.forget_responses_by("a") == 1
        assert await left() == "3"


async def test_transactions_of_several_callers_take_turns(tmp_path):
    async with State(tmp_path / "state.db") as state:
        await state.add_key(Key("k_1", "a", "h", 1.0, None, None, 1, 1))

        await asyncio.gather(*[state.touch_keys({"k_1": float(n)}) for n in range(20)])

        (found,) = await state.keys()
        assert found.last_used_s == 19.0


async def test_nothing_is_written_to_a_database_that_was_removed(tmp_path):
    async with gateway(tmp_path) as running, running.http() as http:
        (tmp_path / "state.db").unlink()
        refused = await http.post("/api/admin/keys", json={"name": "new"}, headers=ADMIN)
        shown = await http.get("/api/admin/keys", headers=ADMIN)

    assert (refused.status_code, shown.status_code) == (503, 200)


# ---- tokens --------------------------------------------------------------------------------


def routes(running: RunningGateway) -> list[tuple[str, str]]:
    """Every route that the application describes, and some of the others."""
    described = [
        route
        for route in running.gateway.app.routes
        if isinstance(route, Route) and route.include_in_schema
    ]
    found = {(route.method, route.path_format) for route in described}
    found |= {("GET", path) for path in ("/", "/admin", "/omni", "/turnbased", "/s/x", "/docs")}
    found |= {("GET", path) for path in ("/mobile/", "/mobile-omni/")}
    found |= {("GET", "/openapi.json"), ("GET", "/static/index.html"), ("GET", "/cache")}
    return sorted(found)


async def test_every_route_refuses_a_bad_token(tmp_path):
    async with gateway(tmp_path) as running, running.http() as http:
        walked = routes(running)
        for method, path in walked:
            concrete = path.replace("{", "").replace("}", "")
            for headers, params in (
                ({"authorization": "Bearer pk_wrong"}, {}),
                ({"api-key": "pk_wrong"}, {}),
                ({"x-api-key": "pk_wrong"}, {}),
                ({"x-admin-token": "wrong"}, {}),
                ({}, {"token": "st_wrong"}),
                ({}, {"token": "the-admin"}),
            ):
                answer = await http.request(method, concrete, headers=headers, params=params)
                assert answer.status_code == 401, (method, path, headers, params)
                told = answer.json()
                assert told.get("error", told)["code"] in ("unauthorized", "invalid_api_key")

    assert len(walked) > 40


async def test_every_admin_route_refuses_strangers_and_keys(tmp_path):
    async with gateway(tmp_path) as running:
        key = (await running.new_key())["key"]
        async with running.http() as http:
            admin_only = [
                (method, path)
                for method, path in routes(running)
                if path.startswith("/api/admin/")
                or (method, path)
                in {
                    ("GET", "/api/sessions"),
                    ("PUT", "/api/config/eta"),
                    ("PUT", "/api/sessions/{session_id}/pin"),
                    ("PUT", "/api/assets/ref_audio/{voice_id}/published"),
                }
            ]
            for method, path in admin_only:
                for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 403)):
                    answer = await http.request(method, path, headers=headers, json={})
                    assert answer.status_code == status, (method, path)

    assert len(admin_only) >= 12


async def test_a_server_that_needs_keys_lets_nobody_in_without(tmp_path):
    async with gateway(tmp_path, needs_key=True) as running, StandInWorker(running.url):
        key = (await running.new_key())["key"]
        recorded(tmp_path, "one")
        link = running.runtime.access.authenticator.share_token("one", 60)
        async with running.http() as http:
            for method, path in routes(running):
                concrete = path.replace("{", "").replace("}", "")
                answer = await http.request(method, concrete)
                is_page = path in OPEN_PATHS or path.startswith(("/static", "/s/"))
                is_page = is_page or path in ("/admin", "/docs", "/omni", "/turnbased")
                is_page = is_page or path.startswith("/mobile")
                if not is_page or path == "/api/token":
                    assert answer.status_code == 401, (method, path)
                    assert "A key is required." in answer.text, (method, path)
                else:
                    assert answer.status_code in (200, 404), (method, path)
            shared = await http.get(f"/api/sessions/{link}")
            allowed = await http.get("/status", headers={"x-api-key": key})
            slashed = await http.get("/admin/")
            program = await http.get("/nonsense")
            person = await http.get("/nonsense", headers={"accept": "text/html"})
        refused = await refusal_of(running.ws(PATHS["duplex"]))
        async with connect(running.ws(PATHS["duplex"] + f"?token={key}")) as somebody:
            async with asyncio.timeout(HANG_S):
                told = json.loads(await somebody.recv())

    assert shared.status_code == allowed.status_code == 200
    assert slashed.headers["location"].endswith("/admin")
    assert (program.status_code, person.status_code) == (401, 404)
    assert "There is no such page." in person.text
    assert refused == (401, "unauthorized")
    assert told["type"] == "queue_done"


@pytest.mark.parametrize("as_admin", [False, True])
async def test_a_client_secret_opens_sessions_and_nothing_else(tmp_path, as_admin: bool):
    async with gateway(tmp_path, needs_key=True) as running, running.http() as http:
        shown = ADMIN if as_admin else {"x-api-key": (await running.new_key())["key"]}
        made = await http.post("/v1/realtime/client_secrets", headers=shown, json={})
        secret = {"authorization": f"Bearer {made.json()['value']}"}
        opened = [await http.get(path, headers=secret) for path in ("/", CAPABILITIES)]
        refused = [
            await http.request(method, path, headers=secret)
            for method, path in (
                ("GET", "/api/usage"),
                ("GET", "/api/assets/ref_audio"),
                ("GET", "/v1/responses/resp_1"),
                ("POST", "/v1/responses"),
                ("POST", "/api/chat"),
                ("DELETE", "/api/sessions/rt_1"),
            )
        ]
        ended = await http.post("/api/sessions/rt_1/end", headers=secret)
        url = running.ws(PATHS["duplex"] + f"?token={made.json()['value']}")
        async with connect(url) as socket, asyncio.timeout(HANG_S):
            told = json.loads(await socket.recv())

    ends_in_s = made.json()["session"]["expires_at"] - running.runtime.clock.time()
    limit_s = running.runtime.settings.limits.half_duplex_session_s
    assert ends_in_s == pytest.approx(limit_s, abs=HANG_S)
    assert [each.status_code for each in opened] == [200, 200]
    assert [each.status_code for each in refused] == [403] * 6
    assert "realtime sessions only" in refused[0].json()["detail"]
    assert ended.status_code == 404, "a page that is closed may end its session"
    assert told["type"] == "queued"


async def test_browsers_get_a_short_lived_token_and_a_cookie(tmp_path):
    async with gateway(tmp_path, needs_key=True) as running, running.http() as http:
        key = (await running.new_key())["key"]
        answer = await http.post("/api/token", headers={"x-api-key": key})
        by_cookie = await http.get("/status")
        renewed = await http.post("/api/token")
        renewed_key = await http.post("/v1/realtime/client_secrets", json={})
        cookie = answer.headers["set-cookie"]
        now = running.runtime.clock.time()
        running.runtime.access.authenticator._clock = type(
            "Later", (), {"time": lambda self: now + 901, "monotonic": lambda self: now}
        )()
        stale = await http.get("/status")
        expired = await http.get(
            "/health", headers={"authorization": f"Bearer {answer.json()['token']}"}
        )
        page = await http.get("/")

    assert answer.json()["expires_in_s"] == 900
    assert cookie.endswith("; HttpOnly; Max-Age=900; Path=/; SameSite=strict")
    assert by_cookie.status_code == 200
    assert renewed.status_code == renewed_key.status_code == 403, "it would never end"
    assert stale.status_code == expired.status_code == 401
    assert page.status_code == 200


@pytest.mark.parametrize("by_another_server", [False, True])
async def test_a_revoked_key_opens_nothing_and_neither_do_its_tokens(tmp_path, by_another_server):
    async with (
        gateway(tmp_path) as running,
        running.http() as http,
        State(tmp_path / "state.db") as other,
    ):
        made = await running.new_key()
        bearer = {"authorization": f"Bearer {made['key']}"}
        token = (await http.post("/api/token", headers=bearer)).json()["token"]
        http.cookies.clear()
        if by_another_server:
            await other.revoke_key(made["id"], 1.0)
            await running.runtime.stores.maintenance.round()
        else:
            revoked = await http.delete(f"/api/admin/keys/{made['id']}", headers=ADMIN)
            assert revoked.json() == {"success": True}

        again = await http.get("/health", headers=bearer)
        with_token = await http.get("/health", params={"token": token})
        twice = await http.delete(f"/api/admin/keys/{made['id']}", headers=ADMIN)
        listed = (await http.get("/api/admin/keys", headers=ADMIN)).json()["keys"]

    assert again.status_code == with_token.status_code == 401
    assert twice.status_code == 404
    assert listed == []


async def test_a_key_has_its_own_limits_and_is_kept_as_a_hash_only(tmp_path):
    async with gateway(tmp_path) as running, StandInWorker(running.url), running.http() as http:
        key = (await running.new_key(max_sessions=1, per_minute=5))["key"]
        path = running.ws(f"/ws/duplex/a?token={key}")
        async with connect(path) as first:
            await first.recv()
            second = await turned_away(running.ws(f"/ws/duplex/b?token={key}"))
        answers = [await http.get("/health", headers={"x-api-key": key}) for _ in range(4)]
        below_v1 = await http.get("/v1/models", headers={"x-api-key": key})

    assert second == ("too_many_sessions", 1008)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    for refused in (answers[-1], below_v1):
        assert 30 < int(refused.headers["retry-after"]) <= 60
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("state.db*"))
    assert key.encode() not in stored
    assert len(key) >= 40


# ---- audit and cleaning up -----------------------------------------------------------------


async def test_admin_actions_are_written_down_with_what_came_of_them(tmp_path):
    recorded(tmp_path, "one")
    async with gateway(tmp_path) as running, running.http(headers=ADMIN) as http:
        await http.put("/api/admin/apps/omni", json={"enabled": False})
        await http.put("/api/admin/apps/nothing", json={"enabled": False})
        await http.get("/api/admin/apps")
        await http.delete("/api/sessions/one")
        entries = (await http.get("/api/admin/audit")).json()["entries"]

    assert [(e["method"], e["path"], e["status"]) for e in entries] == [
        ("DELETE", "/api/sessions/one", 200),
        ("PUT", "/api/admin/apps/nothing", 404),
        ("PUT", "/api/admin/apps/omni", 200),
    ]
    assert entries[0]["address"] == "127.0.0.1"
    assert {entry["who"] for entry in entries} == {"admin"}


async def test_the_audit_log_names_the_key_the_user_or_this_machine(tmp_path):
    order = {"enabled": True}
    async with (
        running_gateway(
            storage={"data_dir": tmp_path},
            forward_auth={"user_header": "Remote-User", "groups_header": "Remote-Groups"}
            | {"admin_groups": ["boss"]},
        ) as running,
        running.http() as http,
    ):
        made = (await http.post("/api/admin/keys", json={"name": "x", "role": "admin"})).json()
        bearer = {"authorization": f"Bearer {made['key']}"}
        await http.put("/api/admin/apps/omni", json=order, headers=bearer)
        user = {"remote-user": "anna", "remote-groups": "boss"}
        await http.put("/api/admin/apps/omni", json=order, headers=user)
        entries = (await http.get("/api/admin/audit")).json()["entries"]

    assert [entry["who"] for entry in entries] == ["u_anna", made["id"], "local"]


async def test_cleaning_up_says_what_would_go_and_then_does_it(tmp_path):
    old = recorded(tmp_path, "old")
    recorded(tmp_path, "new", created_s=4e9)
    pinned = recorded(tmp_path, "pinned")
    pinned.pin.touch()
    async with gateway(tmp_path) as running, running.http(headers=ADMIN) as http:
        with Running(tmp_path, "live"):
            order = {"retention_days": 30}
            dry = (await http.post("/api/admin/clean", json=order)).json()
            assert old.path.exists()
            done = (await http.post("/api/admin/clean", json={**order, "dry_run": False})).json()
            state = (await http.get("/api/admin/state")).json()

    assert (dry["status"], dry["deleted"], dry["remaining"]) == ("dry_run", 1, 3)
    assert dry["victims"] == done["victims"] == [{"session_id": "old", "reason": "expired"}]
    assert (done["status"], done["scanned"], done["deleted_expired"]) == ("ok", 4, 1)
    assert not old.path.exists()
    assert state["last_clean"]["deleted"] == 1


async def test_a_database_that_fails_stops_no_conversation(tmp_path, monkeypatch):
    async def full(self: State, name: str, value: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def touched(self: State, used_s: Any) -> None:
        rounds.append(1)

    rounds: list[int] = []
    monkeypatch.setattr(maintenance, "SAVE_EVERY_S", 0.01)
    async with gateway(tmp_path) as running, running.http() as http:
        with monkeypatch.context() as broken:
            broken.setattr(State, "set_fact", full)
            running.runtime.dispatcher.eta.record("chat", 4.0)
            await until(lambda: bool(running.runtime.stores.maintenance.failures))
            answer = await http.get("/health")
        monkeypatch.setattr(State, "touch_keys", touched)
        await until(lambda: bool(rounds))
        history = await running.runtime.stores.state.fact("eta.history")

    assert answer.status_code == 200
    assert history == {"chat": [4.0, 1]}
