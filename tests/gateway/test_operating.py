"""What an operator relies on: readiness, draining, a certificate renewed under running calls, lines
that can be parsed, who was there, the disk, a worker that is emptied and started again."""

import asyncio
import io
import json
import logging
import re
import socket
import ssl
from pathlib import Path
from unittest.mock import AsyncMock

import httpx
import msgspec
import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.gateway.test_dispatcher import GatewayParts, held
from tests.gateway.test_session_registry import hello
from tests.support.certificates import pair
from tests.support.gateways import (
    RunningGateway,
    occupied,
    refusal_of,
    running_gateway,
    settings,
    until,
)
from tests.support.patience import HANG_S
from tests.support.recordings import recorded
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, end_of, hear, say
from websockets.asyncio.client import connect

from parley import __version__, logs
from parley.certificates import fingerprint, make_pair, shown_certificate
from parley.errors import SetupError
from parley.executor.local import local_environments
from parley.gateway import main
from parley.gateway.main import Gateway
from parley.gateway.metrics import DRAWN
from parley.gateway.reload import Reloaded
from parley.gateway.tls import local_names
from parley.installation import build_id
from parley.protocol.control import CONTROL_PATH, Durations, Heartbeat
from parley.protocol.kinds import Kind
from parley.settings import LimitSettings, Settings, WorkerSettings, load
from parley.transport import listening


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
@pytest.mark.parametrize("is_succeeded", [False, True])
async def test_a_drain_lets_calls_end_by_themselves_and_lets_nobody_in(gateway, is_succeeded: bool):
    if is_succeeded:
        gateway.gateway._leadership = AsyncMock()
    newcomer = gateway.ws(PATHS["half_duplex"])
    async with connect(gateway.ws(PATHS["duplex"])) as running, gateway.http() as http:
        assert (await hear(running))["type"] == "queue_done"
        gateway.gateway.stop(drain_s=600)
        await until(lambda: gateway.runtime.closing.done())
        if is_succeeded:
            # As a standby does; a session that a client returns to may still be here.
            assert await refusal_of(newcomer) == (502, "service_unavailable")
            assert (await http.post("/api/admin/keys", json={"name": "kiosk"})).status_code == 502
            assert "parley_gateway_active 0.0" in (await http.get("/metrics")).text
            await (await connect(gateway.ws(f"{PATHS['duplex']}?resume=true"))).close()
        else:
            assert await ready(gateway) == (503, "The server is shutting down.")
            async with connect(newcomer) as client:
                assert (await end_of(client))[1] == 1013
        await say(running, type="prepare")
        prepared = await hear(running)
        await say(running, type="stop")
        messages, last_code = await end_of(running)

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
    (tmp_path / "theirs").mkdir()
    theirs, its_key = pair(tmp_path / "theirs", name="example.org", days=-1, ca=False)
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
            for bad, why in (
                ((b"half a certif", key.read_bytes()), "a file is not complete"),
                ((theirs.read_bytes(), key.read_bytes()), "the key belongs to another certificate"),
                ((theirs.read_bytes(), its_key.read_bytes()), "it expired on 20"),
            ):
                for file, content in zip((cert, key), bad, strict=True):
                    file.write_bytes(content)
                report = running.reload()
                problem = report.certificate_problem
                assert problem is not None
                assert f"The certificate {cert} with the key {key}" in problem
                assert why in problem
                assert not report.certificate
                assert await shown() == before
            renewed, private = make_pair(local_names(), 100)
            cert.write_bytes(renewed)
            key.write_bytes(private)

            assert running.reload().certificate

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


async def test_a_standby_takes_a_renewed_certificate_and_makes_none_in_its_place(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    settings = load(
        flags={"gateway.port": 0, "gateway.ssl_certfile": cert, "gateway.ssl_keyfile": key}
    )
    standby = Gateway(settings)
    certificate, private = make_pair(local_names(), 100)
    cert.write_bytes(certificate)
    key.write_bytes(private)

    assert standby.reload() == Reloaded(applied=[], needs_restart=[], certificate=True)
    for file in (cert, key):
        file.unlink()
    assert standby.reload().certificate is False
    assert not cert.exists(), "it replaced an operator's by one of its own"
    standby._listener.close()


async def test_settings_that_change_while_a_gateway_is_no_more_than_a_standby_hold_when_it_serves():
    old = settings()
    new = old.model_copy(update={"limits": LimitSettings(pause_s=7.0)})
    standby, started = Gateway(old), asyncio.Event()
    standby.reread_by(lambda: new, old)
    standby.reload()

    serving = asyncio.create_task(standby.serve(started.set))
    await started.wait()
    pause_s = standby.runtime.settings.limits.pause_s
    standby.stop_now()
    await serving

    assert pause_s == 7.0


async def test_workers_of_this_machine_reach_a_gateway_that_listens_at_another_address():
    async with running_gateway(gateway={"host": "::1", "port": 0, "http": True}) as running:
        url = await running.gateway.open_internal()
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{url}/health")

    assert (answer.status_code, running.gateway.url[:13]) == (200, "http://[::1]:")


async def test_one_listen_address_accepts_ipv6_and_ipv4():
    async with running_gateway(gateway={"host": "::"}) as running, httpx.AsyncClient() as http:
        port = running.gateway.port
        answers = [
            await http.get(f"http://{host}:{port}/health") for host in ("127.0.0.1", "[::1]")
        ]

    assert [answer.status_code for answer in answers] == [200, 200]


async def test_on_a_machine_without_ipv4_gateway_and_workers_meet_on_the_other_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
):
    def listen(host: str, port: int) -> socket.socket:
        if host == "127.0.0.1":
            raise SetupError("Cannot listen on 127.0.0.1:0: Cannot assign requested address.")
        return real(host, port)

    real = listening.listen
    monkeypatch.setattr(listening, "listen", listen)
    async with running_gateway(gateway={"host": "::1", "port": 0, "http": True}) as running:
        url = await running.gateway.open_internal()
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{url}/health")
    settings = Settings(worker=WorkerSettings(gateway_url=url))
    (environment,) = local_environments(settings, [])

    assert answer.status_code == 200
    assert environment["PARLEY_WORKER__HOST"] == "::1"


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


@pytest.mark.worker(name="w7", slots=3)
async def test_metrics_report_the_process_the_build_and_each_worker(gateway, worker, http):
    async with connect(gateway.ws(PATHS["duplex"])) as socket:
        await hear(socket)
        await say(socket, type="stop")
        await end_of(socket)
    text = (await http.get("/metrics")).text
    worker.kill()
    await until(lambda: not next(iter(gateway.runtime.dispatcher.worker_pool)).is_connected)
    gateway.runtime.dispatcher.pause(True)
    after = (await http.get("/metrics")).text

    for name in (
        "process_resident_memory_bytes",
        "python_info",
        "parley_build_info{",
        'parley_queue_wait_seconds_count{mode="omni_duplex"} 1.0',
        "parley_disk_free_bytes",
        "parley_keys 0.0",
        "parley_leadership_in_doubt 0.0",
        "parley_gateway_active 1.0",
        'parley_worker_slots{device="none",worker="w7"} 3.0',
        'parley_worker_up{device="none",worker="w7"} 1.0',
    ):
        assert name in text, name
    assert 'parley_worker_up{device="none",worker="w7"} 0.0' in after
    assert "parley_leadership_in_doubt 1.0" in after


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
    metrics = (await http.get("/metrics")).text
    back = await http.put(path, json={"draining": False})
    restarted = await http.post(f"{path}/restart", json={"grace_s": 0})
    await until(lambda: gateway.runtime.dispatcher.worker_pool.find("w0") is None)
    unknown = await http.put("/api/admin/workers/nobody", json={"draining": True})
    audit = (await http.get("/api/admin/audit")).json()["entries"]

    assert (drained.status_code, drained.json()["free_slots"]) == (200, 0)
    assert listed["draining"] is True
    assert 'parley_workers{state="draining"} 1.0' in metrics
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
        metrics = gateway.runtime.metrics
        metrics.error("timeout")
        answers = {Kind.CHAT: Durations([1], 5.0)}
        metrics.heartbeat(Heartbeat("idle", 1, 1, 5.0, 0, answers=answers))
        for _ in range(70):
            metrics.look()
        refused = await http.get("/api/admin/history")
        answer = await http.get(
            "/api/admin/history", headers={"x-admin-token": "a-token-for-tests"}
        )

    looks = answer.json()["looks"]
    assert refused.status_code == 401
    assert len(looks) == 60
    assert looks[0]["at"] <= looks[-1]["at"]
    lines = looks[-1]["metrics"].splitlines()
    assert "parley_queue_length 0.0" in lines
    assert {re.split("[{ ]", line)[0] for line in lines} == set(DRAWN.values())


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


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (Heartbeat("idle", 1, 0, 0.0, 0), "The first message must be hello."),
        (replace(hello(), slots=0), "slots must be at least 1"),
        (replace(hello(), worker_id=""), "worker_id must not be empty"),
        (replace(hello(), url="ftp://127.0.0.1"), "url must be http(s)://host:port."),
        (replace(hello(), url="http://10.0.0.5:1"), "Workers on other hosts need a shared secret."),
        (replace(hello(), url="https://127.0.0.1:1", certificate="x"), "must be in PEM format"),
        ({"type": "joke"}, "not a control message"),
    ],
)
async def test_a_worker_that_introduces_itself_wrongly_is_refused(
    gateway: RunningGateway, first: object, why: str
) -> None:
    async with connect(gateway.ws(CONTROL_PATH, extensions=False)) as worker:
        await worker.send(msgspec.json.encode(first).decode())
        await asyncio.wait_for(worker.wait_closed(), HANG_S)

    assert why in (worker.close_reason or "")
    assert not list(gateway.runtime.dispatcher.worker_pool)


async def test_new_limits_reach_workers_that_are_there_and_those_that_join(
    gateway: RunningGateway,
) -> None:
    control = gateway.runtime.serving.worker_control
    async with (
        connect(gateway.ws(CONTROL_PATH, extensions=False)) as first,
        connect(gateway.ws(CONTROL_PATH, extensions=False)) as second,
    ):
        await first.send(msgspec.json.encode(hello(worker_id="first")).decode())
        await first.recv()
        control.change_limits({"setup_s": 7.0})
        await second.send(msgspec.json.encode(hello(worker_id="second")).decode())
        await second.recv()
        told = [json.loads(await each.recv()) for each in (first, second)]

        await first.send(msgspec.json.encode(hello(worker_id="first")).decode())
        await asyncio.wait_for(first.wait_closed(), HANG_S)

    assert [each["limits"] for each in told] == [{"setup_s": 7.0}] * 2
    assert first.close_reason == "hello was sent twice."
