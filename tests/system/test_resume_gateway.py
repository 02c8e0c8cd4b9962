"""Sessions outlive the gateway: killed or replaced, the next one finds them at the workers."""

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest
from tests.support.apart import Apart
from tests.support.patience import HANG_S
from tests.support.ports import free_port
from tests.support.processes import serving
from tests.support.resumed_talks import ready_session, unit
from tests.support.resuming import ResumingClient

from parley.session.resumable import UNUSED_WINDOW_S


async def started(port: int) -> ResumingClient:
    return await ready_session(lambda path: f"ws://127.0.0.1:{port}{path}")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_sessions_continue_at_the_next_gateway(apart: Apart, how: signal.Signals) -> None:
    apart.start_worker(0, "--slots", "2")
    clients = client, fresh = [await started(apart.port) for _ in range(2)]
    await unit(client)
    apart.gateway.send(signal.SIGHUP)
    before = await unit(client)
    assert client.resumes == 0, "reading the certificate anew cuts nobody"

    apart.gateway.send(how)
    apart.gateway.popen.wait(HANG_S)
    await asyncio.sleep(UNUSED_WINDOW_S + 0.5)
    apart.gateway = apart.start_gateway()
    for one in clients:
        one.cut()
        await one.resume()
    after = await unit(client)
    assert (await unit(fresh))["type"] == "result", "it had just started"
    busy = apart.status()
    for one in clients:
        await one.say({"type": "stop"})
        while one.heard[-1]["type"] != "stopped":
            await one.hear()

    assert after["kv_cache_length"] > before["kv_cache_length"]
    assert busy["idle_workers"] == 0
    for one in clients:
        assert (one.doubles, one.holes) == (0, 0)
        await one.close()
    apart.until(HANG_S, idle_workers=1)


@pytest.mark.starts_python
async def test_a_session_continues_after_serve_was_killed_with_its_worker(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, "--port", str(port)) as killed:
        client = await started(port)
        before = await unit(client)

        killed.send(signal.SIGKILL)
        killed.popen.wait(HANG_S)
        with serving(tmp_path, "--port", str(port)):
            client.cut()
            await client.resume()
            after = await unit(client)

    assert (before["type"], after["type"]) == ("result", "result")
    assert after["kv_cache_length"] > before["kv_cache_length"]


async def test_a_gateway_waits_for_sessions_that_cannot_be_resumed_only(apart: Apart) -> None:
    apart.start_worker(0, "--slots", "2")
    apart.restart_gateway("--drain-timeout", str(HANG_S))
    apart.until(HANG_S, total_workers=1)
    client = await started(apart.port)
    with apart.session("hdx_other") as other:
        other.send(json.dumps({"type": "prepare"}))
        while json.loads(other.recv())["type"] != "prepared":
            pass
        apart.gateway.send(signal.SIGTERM)
        assert (await unit(client))["type"] == "result"
        assert apart.gateway.popen.poll() is None
        other.send(json.dumps({"type": "stop"}))
        began_s = time.monotonic()
        apart.gateway.popen.wait(HANG_S)

    assert time.monotonic() - began_s < HANG_S / 2
    apart.gateway = apart.start_gateway()
    client.cut()
    await client.resume()
    assert (await unit(client))["type"] == "result"
    await client.say({"type": "stop"})
    await client.close()
