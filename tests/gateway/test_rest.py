"""REST: status, queue, estimates, chat over HTTP, stop."""

import asyncio
import base64
import json
import re
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from tests.support.gateways import HELLO, RunningGateway, all_free, occupied, running_gateway, until
from tests.support.recordings import recorded
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, hear
from tools.pages import make
from websockets.asyncio.client import connect

from parley.gateway.http.chat import ChatResponse, TokenStats, written
from parley.gateway.http.status import worker_info
from parley.gateway.parts import connections_of_one
from parley.gateway.reload import taken_over
from parley.media import wav
from parley.media.pcm import Pcm
from parley.protocol.control import Durations, Heartbeat
from parley.protocol.kinds import Kind
from parley.session_log.redis_logs import RedisSessionLogs


@pytest.mark.usefixtures("worker")
@pytest.mark.worker(name="a")
async def test_status_counts_workers_and_what_runs(gateway, http):
    async with StandInWorker(gateway.url, name="b"), connect(gateway.ws(PATHS["duplex"])) as client:
        await hear(client)
        gateway.runtime.dispatcher.worker_pool.process_begins(2)
        status = (await http.get("/status")).json()
        workers = (await http.get("/workers")).json()

    assert {k: v for k, v in status.items() if k.endswith("_workers")} == {
        "total_workers": 3,
        "idle_workers": 1,
        "busy_workers": 1,
        "duplex_workers": 1,
        "loading_workers": 1,
        "error_workers": 0,
        "offline_workers": 0,
        "waiting_workers": {},
    }
    assert status["free_slots"] == sum(worker["free_slots"] for worker in workers["workers"]) > 0
    assert status["running_tasks"][0]["request_type"] == "omni_duplex"
    assert {worker["status"] for worker in workers["workers"]} == {"idle", "duplex_active"}


async def test_status_and_health_show_that_a_server_behind_a_model_is_away(gateway, http, worker):
    (joined,) = gateway.runtime.dispatcher.worker_pool
    before = [(await http.get(path)).json()["problem"] for path in ("/status", "/health")]
    worker.problem = "It is away."
    await until(lambda: joined.heartbeat and joined.heartbeat.problem)
    after = [(await http.get(path)).json()["problem"] for path in ("/status", "/health")]
    listed = worker_info(joined, is_admin=False)

    assert (before, after) == (["", ""], ["It is away."] * 2)
    assert listed.problem == "It is away."


@pytest.mark.usefixtures("worker")
async def test_the_queue_lists_who_waits_under_both_names(gateway, http):
    async with occupied(gateway), connect(gateway.ws(PATHS["realtime"])) as client:
        told = await hear(client)
        queue = (await http.get("/api/queue")).json()
        missing = (await http.get("/api/queue/q_000000000000")).json()

    (item,) = queue["items"]
    assert queue["entries"] == queue["items"]
    assert queue["running"] == queue["running_tasks"]
    assert item["ticket_id"] == told["ticket_id"]
    assert item["eta_seconds"] == item["estimated_wait_s"] > 0
    assert missing["found"] is False


async def test_estimates_can_be_changed_one_by_one(http):
    before = (await http.get("/api/config/eta")).json()
    after = (await http.put("/api/config/eta", json={"eta_chat_s": 7})).json()
    bad = [
        await http.put("/api/config/eta", json=body)
        for body in ({"eta_chat_s": 0}, {"ema_alpha": 2}, {"eta_ema_min_samples": 0})
    ]

    assert after == before | {"eta_chat_s": 7, "config": before["config"] | {"eta_chat_s": 7}}
    assert before["ema_chat_s"] is None
    assert [response.status_code for response in bad] == [422, 422, 422]


async def test_chat_over_http_answers_whole(gateway, worker, http):
    response = await http.post("/api/chat", json={**HELLO, "streaming": True})

    body = response.json()
    assert response.status_code == 200
    assert (body["text"], body["success"], body["tokens_generated"]) == ("hello", True, 2)
    assert body["token_stats"]["total_tokens"] == 5
    assert worker.heard[0]["streaming"] is False
    await all_free(gateway)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"{", "invalid_json"), (b"[]", "invalid_request"), (b'{"messages": []}', "invalid_request")],
)
async def test_a_bad_chat_body_gets_400(http: httpx.AsyncClient, content: bytes, code: str):
    response = await http.post("/api/chat", content=content)
    foreign = await http.post("/api/chat", headers={"origin": "https://elsewhere.example"})

    assert (response.status_code, response.json()["code"]) == (400, code)
    assert foreign.status_code == 403


@pytest.mark.usefixtures("worker")
async def test_an_error_of_the_worker_is_not_hidden_behind_200(http):
    request = {"messages": [{"role": "user", "content": "fail"}]}
    response = await http.post("/api/chat", json=request)

    assert (response.status_code, response.json()["code"]) == (400, "context_full")


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(queue={"request_timeout_s": 0.2})
async def test_chat_over_http_gives_up_in_time_and_gives_its_place_back(gateway, http):
    async with occupied(gateway):
        response = await http.post("/api/chat", json=HELLO)

        assert (response.status_code, response.json()["code"]) == (504, "timeout")
        assert len(gateway.runtime.dispatcher.queue) == 0


@pytest.mark.parametrize("moment", ["waiting", "answering"])
async def test_hanging_up_on_chat_over_http_cancels(
    gateway: RunningGateway, worker: StandInWorker, moment: str
):
    async with gateway.http() as http:
        if moment == "waiting":
            async with occupied(gateway):
                asking = asyncio.create_task(http.post("/api/chat", json=HELLO))
                await until(lambda: len(gateway.runtime.dispatcher.queue) == 1)
                asking.cancel()
                await until(lambda: len(gateway.runtime.dispatcher.queue) == 0)
        else:
            worker.may_answer.clear()
            asking = asyncio.create_task(http.post("/api/chat", json=HELLO))
            await until(lambda: worker.heard)
            asking.cancel()
            await until(lambda: not gateway.runtime.dispatcher.worker_pool.leases)
            worker.may_answer.set()
    await all_free(gateway)


async def test_metrics_tell_queue_leases_traffic_errors_and_stages(gateway, worker, http):
    async with occupied(gateway) as client:
        await client.send('{"type": "prepare"}')
        await hear(client)
        times = Durations([0, 0, 3], 9.0)
        await worker._say(
            Heartbeat(
                "idle",
                0,
                0,
                0,
                0,
                {"decode": times},
                {Kind.OMNI_DUPLEX: times},
                {"oops": 2},
                silences={"unit_late": 3},
            )
        )
        await until(lambda: "oops" in gateway.runtime.metrics.page().decode())
        page = (await http.get("/metrics")).text

    for line in (
        "parley_queue_length 0.0",
        "parley_leases 1.0",
        'parley_sessions{mode="half_duplex_audio"} 1.0',
        'parley_relay_messages_total{direction="up"} 1.0',
        'parley_relay_bytes_total{direction="up"} 19.0',
        'parley_errors_total{code="oops",source="worker"} 2.0',
        'parley_silences_total{reason="unit_late"} 3.0',
        'parley_unit_stage_seconds_bucket{le="0.002",stage="decode"} 0.0',
        'parley_unit_stage_seconds_bucket{le="0.005",stage="decode"} 3.0',
        'parley_unit_stage_seconds_count{stage="decode"} 3.0',
        'parley_unit_stage_seconds_sum{stage="decode"} 0.009',
        'parley_answer_seconds_bucket{le="0.005",mode="omni_duplex"} 3.0',
        'parley_answer_seconds_sum{mode="omni_duplex"} 0.009',
    ):
        assert line in page


async def test_the_page_of_this_interface_needs_no_other_site(http):
    docs = await http.get("/docs")

    assert docs.status_code == 200
    # No other site learns who reads it.
    files = re.findall(r'(?:src|href)="([^"]+)"', docs.text)
    assert files
    assert all(file.startswith("static/") for file in files)
    assert "unsafe-inline" not in docs.headers["content-security-policy"]


async def test_a_default_voice_comes_with_the_server_unless_another_is_set(tmp_path: Path):
    own = tmp_path / "mine.wav"
    wav.save(own, Pcm(np.full(16_000, 0.1, np.float32), 16_000))
    answers = []
    for model in ({}, {"default_voice": own}, {"default_voice": tmp_path / "absent.wav"}):
        async with (
            running_gateway(model=model) as gateway,
            gateway.http() as http,
        ):
            answers.append(await http.get("/api/default_ref_audio"))

    shipped, configured, absent = answers
    assert shipped.json()["name"] == "default_voice"
    assert 3 < shipped.json()["duration"] < 20
    samples = np.frombuffer(base64.b64decode(shipped.json()["base64"]), np.float32)
    assert len(samples) == shipped.json()["samples"]
    assert 0.02 < float(np.sqrt(np.mean(samples**2))) < 0.5
    assert configured.json()["name"] == "mine"
    assert configured.json()["samples"] == 16_000
    assert absent.status_code == 404


async def test_pages_learn_what_answers_for_how_long_what_is_kept_and_whom_they_may_call():
    limits = {"realtime_audio_s": 90.0, "realtime_video_s": 60.0}
    kept = {"recording": True, "retention_days": 30}
    async with (
        running_gateway(
            gateway={"api_hosts": ("talk.example.org:8006",)},
            limits=limits,
            storage=kept,
            model={"name": "/models/MiniCPM-o-4_5"},
        ) as gateway,
        gateway.http() as http,
    ):
        unknown = (await http.get("/api/frontend_defaults")).json()["model"]
        gateway.runtime.dispatcher.worker_pool.process_begins(0)
        told = (await http.get("/api/frontend_defaults")).json()
        async with StandInWorker(gateway.url):
            answering = (await http.get("/api/frontend_defaults")).json()["model"]

    assert unknown == "", "its workers may be those of another machine"
    assert told["model"] == "MiniCPM-o-4_5", "not where it lies on the disk"
    assert answering == "stand-in", "a gateway may have other settings than its workers"
    assert told["session_limits_s"] == {"audio": 90.0, "video": 60.0}
    assert (told["recording"], told["retention_days"]) == (True, 30)
    assert told["api_hosts"] == ["talk.example.org:8006"]


async def test_limits_are_shown_and_hold_as_they_are_after_a_reload():
    async with running_gateway() as gateway, gateway.http() as http:
        settings = gateway.runtime.settings
        redis = RedisSessionLogs("redis://localhost:1", window_s=30.0)
        gateway.runtime.stores.session_logs = redis
        shown = {"realtime_audio_s": 50.0, "sessions_per_client": 3}
        others = {"session_logs_mb": 2.5, "connections_per_client": 7}
        limits = {**shown, **others, "resume_window_s": 300.0}
        changed = taken_over(
            settings,
            settings.model_copy(update={"limits": settings.limits.model_copy(update=limits)}),
            [f"limits.{name}" for name in limits],
        )
        gateway.runtime.apply(changed, workers_too=False)
        defaults = (await http.get("/api/frontend_defaults")).json()
        capabilities = (await http.get("/v1/realtime/capabilities")).json()

    assert defaults["session_limits_s"]["audio"] == 50.0
    assert {name: capabilities["limits"][name] for name in shown} == shown
    assert redis.ttl_ms == 1_200_000
    security = settings.security.model_copy(update={"trust_proxy": True})
    assert connections_of_one(changed) == 7
    assert connections_of_one(changed.model_copy(update={"security": security})) is None
    assert gateway.runtime.stores.log_sweep.total_bytes == 2.5 * (1 << 20)


async def test_pages_are_served_with_their_files_and_follow_the_switches(tmp_path: Path):
    for name, text in {"index.html": "home", "duplex.html": "call", "replay.html": "again"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "home.js").write_text("export {};")
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("secret")
    made = tmp_path.parent / "made"
    make(tmp_path, made)
    (made / "static" / "link.txt").symlink_to(outside)
    async with (
        running_gateway(web=made) as gateway,
        gateway.http() as http,
    ):
        recorded(gateway.runtime.settings.storage.data_dir, "rt_1-a", units=0)
        texts = [(await http.get(path)).text for path in ("/", "/omni", "/s/rt_1-a")]
        refused = [
            (await http.get(path)).status_code
            for path in ("/static/link.txt", "/s/..%2fx", "/turnbased", "/static/")
        ]
        await http.put("/api/admin/apps/omni", json={"enabled": False})
        switched_off = await http.get("/omni")

    assert texts == ["home", "call", "again"]
    assert refused == [404, 404, 404, 404]
    assert (switched_off.status_code, switched_off.headers["location"]) == (302, "./")


@pytest.mark.parametrize("sound", [None, "", "QUJD" * 1000])
def test_an_answer_with_sound_is_the_json_of_its_model(sound: str | None):
    answer = ChatResponse(
        text='It said "audio_data":null, \\ é',
        audio_data=sound,
        tokens_generated=1,
        duration_ms=1.5,
        token_stats=TokenStats(input_tokens=1, generated_tokens=1, total_tokens=2),
        queue_wait_ms=0.5,
        estimated_queue_wait_s=None,
    )

    assert json.loads(bytes(written(answer).body)) == msgspec.to_builtins(answer)


@pytest.mark.parametrize("path", ["/ws/chat", "/ws/duplex/omni_1", "/v1/live/sessions"])
async def test_a_socket_that_a_proxy_made_a_plain_request_is_told_so(
    http: httpx.AsyncClient, path: str
) -> None:
    answer = await http.get(path)

    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert "does not pass on the headers Upgrade and Connection" in answer.text
    assert "upgrade_required" in answer.text
