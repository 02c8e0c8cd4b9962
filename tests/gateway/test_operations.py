"""What an operator sees and does: the log, the disk, a worker that is emptied and started again."""

import io
import json
import logging

import httpx
import pytest
import structlog
from tests.gateway.test_dispatcher import GatewayParts, held
from tests.support.gateways import RunningGateway, running_gateway, until
from tests.support.recordings import recorded
from tests.support.stand_in_worker import StandInWorker

from parley import __version__, logs
from parley.installation import build_id


@pytest.fixture
def _logging():
    """Logging as the server sets it up, and back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure(style="json", stream=io.StringIO())
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_draining_worker_keeps_its_session_and_gets_no_other():
    runtime = GatewayParts()
    worker = runtime.worker(slots=2)
    running = runtime.ask()

    runtime.worker_pool.drain(worker, True)
    waiting = runtime.ask()

    assert held(running).is_held
    assert waiting.state == "waiting"
    assert worker.free_slots == 0
    runtime.worker_pool.drain(worker, False)
    assert held(waiting).is_held


def test_draining_outlasts_a_lost_line_but_not_a_new_process():
    runtime = GatewayParts()
    runtime.worker_pool.drain(runtime.worker(pid=1), True)

    same, fresh = runtime.worker(pid=1).is_draining, runtime.worker(pid=2).is_draining

    assert (same, fresh) == (True, False)


@pytest.mark.usefixtures("worker")
@pytest.mark.worker(name="w0")
async def test_an_admin_drains_and_restarts_a_worker(gateway, http):
    path = "/api/admin/workers/w0"
    drained = await http.put(path, json={"draining": True})
    listed = (await http.get("/workers")).json()["workers"][0]
    back = await http.put(path, json={"draining": False})
    restarted = await http.post(f"{path}/restart", json={"grace_s": 0})
    await until(lambda: gateway.runtime.dispatcher.worker_pool.find("w0") is None)
    unknown = await http.put("/api/admin/workers/nobody", json={"draining": True})
    audit = (await http.get("/api/admin/audit")).json()["entries"]

    assert (drained.status_code, drained.json()["free_slots"]) == (200, 0)
    assert listed["draining"] is True
    assert back.json()["draining"] is False
    assert restarted.json() == {"success": True}
    assert unknown.status_code == 404
    assert {entry["path"] for entry in audit} >= {path, f"{path}/restart"}


async def test_a_worker_of_another_build_is_seen(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    with structlog.testing.capture_logs() as lines:
        same, old = (StandInWorker(gateway.url, name=name) for name in ("w0", "w1"))
        same.version = old.version = __version__
        same.build, old.build = build_id(), "0123456789ab"
        async with same, old:
            told = (await http.get("/status")).json()
    metrics = (await http.get("/metrics")).text

    assert (told["version"], told["build"]) == (__version__, build_id())
    assert [one["build"] for one in told["workers"]] == [build_id(), "0123456789ab"]
    warned = [line for line in lines if line["event"] == "worker_build_differs"]
    assert [(line["worker"], line["build"]) for line in warned] == [("w1", "0123456789ab")]
    assert f'build="{build_id()}"' in metrics


async def test_the_disk_report_counts_recordings(gateway, http):
    recorded(gateway.runtime.settings.storage.data_dir, "rt_1-a", units=2)
    report = (await http.get("/api/admin/disk")).json()

    assert report["recordings"] == 1
    assert report["total_gb"] > report["free_gb"] > 0
    assert report["max_gb"] == -1


async def test_the_last_hour_is_kept_once_a_minute_and_for_operators_only():
    security = {"admin_token": "a-token-for-tests"}
    async with running_gateway(security=security) as gateway, gateway.http() as http:
        for _ in range(70):
            gateway.runtime.metrics.look()
        refused = await http.get("/api/admin/history")
        answer = await http.get(
            "/api/admin/history", headers={"x-admin-token": "a-token-for-tests"}
        )

    looks = answer.json()["looks"]
    assert refused.status_code == 401
    assert len(looks) == 60
    assert looks[0]["at"] <= looks[-1]["at"]
    assert "parley_queue_length 0.0" in looks[-1]["metrics"].splitlines()
    assert all(line.startswith("parley_") for line in looks[-1]["metrics"].splitlines())


@pytest.mark.gateway(security={"admin_token": "a-token-for-tests"})
@pytest.mark.usefixtures("_logging")
async def test_the_log_shows_warnings_newest_first_and_is_for_admins_only(http):
    log = logs.get("parley.test")
    log.info("not shown")
    log.warning("first", worker=3)
    log.error("second")
    refused = await http.get("/api/admin/log")
    answer = await http.get("/api/admin/log", headers={"x-admin-token": "a-token-for-tests"})

    lines = [line for line in answer.json()["lines"] if line["source"] == "parley.test"]
    assert refused.status_code == 401
    assert [(line["event"], line["level"]) for line in lines] == [
        ("second", "error"),
        ("first", "warning"),
    ]
    assert lines[1]["more"] == {"worker": "3"}
    assert "not shown" not in json.dumps(answer.json())


@pytest.mark.usefixtures("_logging")
def test_the_log_in_memory_is_bounded():
    with logs.keeping_recent(2) as recent:
        for number in range(5):
            logs.get("parley.test").warning("line", number=number)

        assert [line.more["number"] for line in recent.lines] == ["4", "3"]
