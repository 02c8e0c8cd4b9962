"""Settings and certificate are taken over by a server that runs, and nobody is cut off."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.gateways import until
from tests.support.patience import HANG_S
from tests.support.processes import running
from tests.support.programs import python
from tests.support.resumed_talks import ready_session, unit
from tests.support.resuming import ResumingClient
from tests.support.stack import RunningStack, running_stack

from parley.errors import SetupError
from parley.gateway.reload import changed, changes_live, taken_over
from parley.settings import Settings
from parley.settings.tree import leaves

TOKEN = "t" * 32


def with_parts(settings: Settings, **parts: dict[str, Any]) -> Settings:
    changes = {
        name: getattr(settings, name).model_copy(update=values) for name, values in parts.items()
    }
    return settings.model_copy(update=changes)


@pytest.fixture
async def server() -> AsyncIterator[RunningStack]:
    async with running_stack(model="parrot", slots=3, worker={"vad": "energy"}) as stack:
        yield stack


def told(server: RunningStack, read: Callable[[], Settings]) -> None:
    """Let the gateway read what `read` says from now on."""
    server.gateway.reread_by(lambda: server.settings, server.settings, has_own_workers=True)
    server.gateway._reread = read


async def call(server: RunningStack) -> ResumingClient:
    """A duplex session that is ready; `window_s` is what its worker said."""
    return await ready_session(lambda path: server.ws(path, extensions=False))


async def test_what_changes_live_holds_for_newcomers_and_cuts_nobody(
    server: RunningStack,
) -> None:
    new = with_parts(
        server.settings,
        limits={"resume_window_s": 7.0, "sessions_per_client": 2},
        security={"admin_token": TOKEN, "anonymous_per_minute": 0},
        gateway={"port": 1},
    )
    before = await call(server)
    assert before.window_s == 30
    told(server, lambda: new)

    report = server.gateway.reload()
    host = server.workers[0].host
    assert host is not None
    await until(lambda: host.limits.resume_window_s == 7)
    after = await call(server)
    with pytest.raises(Exception, match=r"1008|closed|sessions"):
        await call(server)
    async with server.http() as http:
        asked = await http.get("/api/admin/state")
        shown = await http.get("/api/admin/state", headers={"x-admin-token": TOKEN})

    assert set(report.applied) == {
        *("limits.resume_window_s", "limits.sessions_per_client"),
        *("security.admin_token", "security.anonymous_per_minute"),
    }
    assert report.needs_restart == ["gateway.port"]
    assert report.problem is None
    assert after.window_s == 7
    assert server.runtime.serving.rebuilding.limits.resume_window_s == 7
    assert server.runtime.dispatcher.window_s == 7
    assert [(await unit(each))["type"] for each in (before, after)] == ["result", "result"]
    assert (before.resumes, after.resumes) == (0, 0)
    assert (asked.status_code, shown.status_code) == (401, 200)
    again = server.gateway.reload()
    assert (again.applied, again.needs_restart) == ([], ["gateway.port"])
    for each in (before, after):
        await each.close()


async def test_a_worker_that_joins_later_is_told_too(server: RunningStack) -> None:
    told(server, lambda: with_parts(server.settings, limits={"duplex_session_s": 77.0}))
    server.gateway.reload()
    host = server.workers[0].host
    assert host is not None
    await until(lambda: host.limits.duplex_session_s == 77)
    host.limits = server.settings.limits

    worker = next(iter(server.runtime.dispatcher.worker_pool))
    assert worker.connection is not None
    worker.connection.close(1001, "the line breaks")

    await until(lambda: host.limits.duplex_session_s == 77)


async def test_settings_that_cannot_be_read_change_nothing(server: RunningStack) -> None:
    def read() -> Settings:
        raise SetupError("limits.pause_s is no number.", hint="Write one.")

    told(server, read)
    with capture_logs() as lines:
        report = server.gateway.reload()

    assert report.problem == "limits.pause_s is no number. Write one."
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "settings_reload_failed"
    ]
    assert server.runtime.settings == server.settings


def test_only_limits_and_rules_of_admission_hold_immediately() -> None:
    names = [name for name, _ in leaves()]
    at_once = {name for name in names if changes_live(name)}

    assert {name.partition(".")[0] for name in at_once} == {"limits", "security"}
    assert "security.worker_secret" not in at_once
    assert "limits.decoders" not in at_once
    old = Settings()
    new = with_parts(old, limits={"pause_s": 5.0, "decoders": 0})
    assert changed(old, new) == (["limits.pause_s"], ["limits.decoders"])
    taken = taken_over(old, new, ["limits.pause_s"])
    assert (taken.limits.pause_s, taken.limits.decoders) == (5.0, old.limits.decoders)


async def test_serve_reads_its_file_again(tmp_path: Path) -> None:
    """By SIGHUP, and by `parley reload`: a process reports what an event loop in a test cannot."""
    file = tmp_path / "parley.toml"
    file.write_text("[limits]\nresume_window_s = 20\n")
    flags = ("--http", "--host", "127.0.0.1", "--port", "0", "--model", "parrot")
    with running(tmp_path, "serve", *flags) as process:
        process.line_with("ready after")

        async def window_s() -> float:
            client = await ready_session(lambda path: f"ws{process.url.removeprefix('http')}{path}")
            await client.say({"type": "stop"})
            while client.heard[-1]["type"] != "stopped":
                await client.hear()
            await client.close()
            return client.window_s

        first = await window_s()
        file.write_text("[limits]\nresume_window_s = 21\n")
        os.kill(process.popen.pid, signal.SIGHUP)
        process.line_with("settings_reloaded", HANG_S)
        second = await window_s()
        file.write_text("[limits]\nresume_window_s = 'x'\n")
        words = ("-m", "parley", "reload", "--json", "--url", process.url)
        asked = await asyncio.to_thread(python, *words)
        third = await window_s()

    assert (first, second, third) == (20, 21, 21)
    assert asked.returncode == 1
    found = json.loads(asked.stdout)
    assert found["applied"] == []
    assert "resume_window_s" in found["problem"]
