"""Maintenance tasks that end: seen from `/health`, and started again."""

import asyncio
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from tests.support.gateways import running_gateway, settings, until
from tests.support.recordings import recorded

from parley.gateway import maintenance
from parley.gateway.runtime import GatewayRuntime
from parley.gateway.supervisor import Supervisor
from parley.recording.layout import RecordingFolders


@pytest.mark.parametrize("ends", ["returns", "is cancelled"])
async def test_a_task_that_ends_otherwise_is_a_fault_too(ends: str):
    supervisor = Supervisor()

    async def work() -> None:
        if ends == "is cancelled":
            raise asyncio.CancelledError

    task = asyncio.create_task(supervisor.keep("watch", work))
    await until(lambda: supervisor.failing)

    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_health_is_503_while_a_maintenance_task_is_down_and_ok_when_it_runs_again(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("FIRST_RETRY_S", "SETTLED_S"):
        monkeypatch.setattr(f"parley.gateway.supervisor.{name}", 0.01)
    may_run = asyncio.Event()

    class Faulty(GatewayRuntime):
        def __init__(self, *args, **more) -> None:
            super().__init__(*args, **more)
            run = self.stores.maintenance.run

            async def fails() -> None:
                if not may_run.is_set():
                    raise RuntimeError("broken")
                await run()

            self.stores.maintenance.run = fails  # type: ignore[method-assign]

    with capture_logs() as lines:
        async with running_gateway(make_runtime=Faulty) as gateway, gateway.http() as http:
            await until(lambda: gateway.runtime.supervisor.failing)
            assert gateway.runtime.supervisor.failing == {"maintenance": "RuntimeError: broken"}
            down = await http.get("/health")
            status = (await http.get("/status")).json()
            may_run.set()
            await until(lambda: not gateway.runtime.supervisor.failing)
            up = await http.get("/health")

    assert (down.status_code, down.json()["healthy"]) == (503, False)
    assert down.json()["failing"] == ["maintenance"]
    assert status["gateway_healthy"] is False
    assert (up.status_code, up.json()["status"]) == (200, "ok")
    assert {"event": "maintenance_task_ended", "task": "maintenance"}.items() <= next(
        line for line in lines if line["event"] == "maintenance_task_ended"
    ).items()


def _broken(data_dir: Path, name: str) -> None:
    """A recording whose head lacks fields: an older version, or damaged."""
    folder = data_dir / "sessions" / name
    folder.mkdir(parents=True)
    head = {"kind": "head", "version": 1, "recording_id": name}
    (folder / "journal.jsonl").write_text(json.dumps(head) + "\n")


async def test_one_bad_recording_stops_neither_the_watch_nor_the_others_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(maintenance, "SAVE_EVERY_S", 0.01)
    _broken(tmp_path, "aaa_broken")
    crashed = recorded(tmp_path, "zzz_crashed")
    crashed.recording.unlink()

    async with (
        running_gateway(storage={"data_dir": tmp_path}) as gateway,
        gateway.http() as http,
    ):
        await until(crashed.recording.exists)
        rounds = gateway.runtime.stores.maintenance._rounds
        await until(lambda: gateway.runtime.stores.maintenance._rounds > rounds + 10)
        health = await http.get("/health")
        listed = await http.get("/api/sessions")
        key = await http.post("/api/admin/keys", json={"name": "one"})

    assert health.status_code == 200
    assert "zzz_crashed" in listed.text
    assert key.status_code == 201


async def test_a_bad_recording_is_reported_once(tmp_path: Path):
    _broken(tmp_path, "chat_broken")
    runtime = GatewayRuntime(settings(storage={"data_dir": tmp_path}), reload=Mock())

    with capture_logs() as lines:
        for _ in range(3):
            await runtime.stores.maintenance._recover()

    assert [line["recording_id"] for line in lines] == ["chat_broken"]
    assert [folder.recording_id for folder in RecordingFolders(tmp_path)] == ["chat_broken"]
    runtime.stores.recordings.close()
