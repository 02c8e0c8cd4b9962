"""What an operator relies on: readiness, draining, a certificate renewed under running calls, lines
that can be parsed, who was there."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.support.gateways import occupied, running_gateway, until
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear, say
from websockets.asyncio.client import connect

from parley.certificates import fingerprint, make_pair, shown_certificate
from parley.gateway import main
from parley.gateway.main import Gateway
from parley.gateway.reload import Reloaded
from parley.gateway.tls import local_names
from parley.settings import load


async def ready(gateway):
    async with gateway.http() as http:
        answer = await http.get("/ready")
    return answer.status_code, answer.json()["why"]


async def test_ready_reports_whether_a_session_would_be_served(gateway):
    assert await ready(gateway) == (503, "No worker can take a session.")
    async with StandInWorker(gateway.url) as worker:
        assert await ready(gateway) == (200, "")
        async with occupied(gateway):
            assert await ready(gateway) == (200, ""), "a busy worker serves who waits"
        (known,) = gateway.runtime.dispatcher.worker_pool
        gateway.runtime.dispatcher.worker_pool.drain(known, True)
        assert (await ready(gateway))[0] == 503
        gateway.runtime.dispatcher.worker_pool.drain(known, False)
        worker.kill()
        await until(lambda: not known.is_connected)
        assert (await ready(gateway))[0] == 503


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(queue={"max_size": 1})
async def test_a_full_queue_is_not_ready(gateway):
    async with occupied(gateway), connect(gateway.ws(PATHS["duplex"])) as waiting:
        await hear(waiting)

        assert await ready(gateway) == (503, "The queue is full.")


@pytest.mark.usefixtures("worker")
@pytest.mark.worker(slots=2)
async def test_a_drain_lets_calls_end_by_themselves_and_lets_nobody_in(gateway):
    async with connect(gateway.ws(PATHS["duplex"])) as running:
        assert (await hear(running))["type"] == "queue_done"
        gateway.gateway.stop(drain_s=600)
        await until(lambda: gateway.runtime.closing.done())
        assert await ready(gateway) == (503, "The server is shutting down.")
        async with connect(gateway.ws(PATHS["half_duplex"])) as newcomer:
            _, code = await end_of(newcomer)
        await say(running, type="prepare")
        prepared = await hear(running)
        await say(running, type="stop")
        messages, last_code = await end_of(running)

    assert code == 1013
    assert prepared["type"] == "prepared"
    assert (messages[-1]["type"], last_code) == ("stopped", 1000)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("drain_s", "is_hurried"), [(0.2, False), (600, True)])
async def test_a_long_drain_ends_calls_in_their_words_and_a_second_signal_immediately(
    gateway, drain_s: float, is_hurried: bool
):
    async with connect(gateway.ws(PATHS["realtime"])) as running:
        await hear(running)
        gateway.gateway.stop(drain_s=drain_s)
        if is_hurried:
            await until(lambda: gateway.runtime.closing.done())
            gateway.gateway.stop_now()
        messages, code = await end_of(running)

    last_words = {"type": "session.closed", "reason": "server_shutdown"}
    assert (messages, code) == ([] if is_hurried else [last_words], 1001)


async def test_a_renewed_certificate_is_shown_to_new_connections_and_a_bad_one_is_not(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tls = {"http": False, "ssl_certfile": cert, "ssl_keyfile": key}
    async with running_gateway(gateway=tls) as gateway:
        running: Gateway = gateway.gateway

        async def shown() -> str:
            pem = await asyncio.to_thread(shown_certificate, "127.0.0.1", running.port, limit_s=20)
            return fingerprint(pem)

        context = ssl.create_default_context(cafile=str(cert))
        before = await shown()
        url = f"wss://127.0.0.1:{running.port}/ws/duplex/omni_1?extensions=true"
        async with connect(url, ssl=context) as open_call:
            assert (await hear(open_call))["type"] == "queued"
            cert.write_text("half a certif")
            assert not running.reload_certificate()
            assert await shown() == before
            renewed, private = make_pair(local_names(), 100)
            cert.write_bytes(renewed)
            key.write_bytes(private)

            assert running.reload_certificate()

            assert await shown() == fingerprint(renewed.decode()) == running.fingerprint
            await say(open_call, type="stop")
            assert (await end_of(open_call))[1] == 1000


async def test_a_certificate_that_expires_while_serving_is_replaced(tmp_path, monkeypatch):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tls = {"http": False, "ssl_certfile": cert, "ssl_keyfile": key}
    monkeypatch.setattr(main, "CERTIFICATE_EVERY_S", 0.05)
    async with running_gateway(gateway=tls) as gateway:
        expiring, private = make_pair(local_names(), 1)
        key.write_bytes(private)
        cert.write_bytes(expiring)
        await until(lambda: cert.read_bytes() != expiring)
        port = gateway.gateway.port
        shown = await asyncio.to_thread(shown_certificate, "127.0.0.1", port, limit_s=20)

        assert fingerprint(shown) == fingerprint(cert.read_text())


async def test_a_standby_takes_a_renewed_certificate(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    settings = load(
        flags={"gateway.port": 0, "gateway.ssl_certfile": cert, "gateway.ssl_keyfile": key}
    )
    standby = Gateway(settings)
    certificate, private = make_pair(local_names(), 100)
    cert.write_bytes(certificate)
    key.write_bytes(private)

    assert standby.reload() == Reloaded(applied=[], needs_restart=[], certificate=True)
    standby._listener.close()


async def test_the_log_says_who_had_a_session_and_who_asked():
    security = {"admin_token": "t" * 32}
    with capture_logs() as lines:
        made = await _a_call_with_a_key(security, lines)

    for event in ("session_began", "session_ended"):
        (line,) = [one for one in lines if one["event"] == event]
        assert (line["client"], line["key"]) == ("127.0.0.1", made["id"])
    requests = {one["path"]: one for one in lines if one["event"] == "request"}
    assert requests["/s/sh_…"]["key"] == made["id"]
    assert requests["/s/sh_…"]["client"] == "127.0.0.1"
    assert "/health" not in requests
    assert made["key"] not in json.dumps([str(one) for one in lines])


async def _a_call_with_a_key(security, lines):
    async with (
        running_gateway(security=security, log={"access": True}) as gateway,
        StandInWorker(gateway.url),
    ):
        made = await gateway.new_key()
        headers = {"x-api-key": made["key"]}
        async with connect(gateway.ws(PATHS["duplex"]), additional_headers=headers) as socket:
            await hear(socket)
            await say(socket, type="stop")
            await end_of(socket)
        async with gateway.http(headers=headers) as holder:
            await holder.get("/s/sh_c2VjcmV0")
            await holder.get("/health")
        await until(lambda: any(one["event"] == "session_ended" for one in lines))
    return made


async def test_metrics_tell_that_another_gateway_may_be_active(gateway, http):
    before = (await http.get("/metrics")).text
    gateway.runtime.dispatcher.pause(True)
    doubted = (await http.get("/metrics")).text

    assert "parley_leadership_in_doubt 0.0" in before
    assert "parley_leadership_in_doubt 1.0" in doubted
    assert "parley_gateway_active 1.0" in doubted


@pytest.mark.worker(name="w7", slots=3)
async def test_metrics_report_the_process_the_build_and_each_worker(gateway, worker, http):
    async with connect(gateway.ws(PATHS["duplex"])) as socket:
        await hear(socket)
        await say(socket, type="stop")
        await end_of(socket)
    text = (await http.get("/metrics")).text
    worker.kill()
    await until(lambda: not next(iter(gateway.runtime.dispatcher.worker_pool)).is_connected)
    after = (await http.get("/metrics")).text

    for name in (
        "process_resident_memory_bytes",
        "python_info",
        "parley_build_info{",
        'parley_queue_wait_seconds_count{mode="omni_duplex"} 1.0',
        "parley_disk_free_bytes",
        "parley_keys 0.0",
        'parley_worker_slots{device="none",worker="w7"} 3.0',
        'parley_worker_up{device="none",worker="w7"} 1.0',
    ):
        assert name in text, name
    assert 'parley_worker_up{device="none",worker="w7"} 0.0' in after
