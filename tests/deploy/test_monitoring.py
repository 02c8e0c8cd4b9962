"""What Prometheus and Grafana are given, asked of a running server: by a real Prometheus where one
is installed (Debian: prometheus)."""

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.gateways import RunningGateway, running_gateway
from tests.support.patience import HANG_S
from tests.support.programs import run, tool
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import end_of, hear, say
from websockets.asyncio.client import connect

from parley.protocol.control import STAGE_BUCKETS_MS, DeviceMemory, Durations, Heartbeat
from parley.protocol.kinds import Kind

DEPLOY = Path(__file__).parents[2] / "deploy"
ONE_OF_EACH = Durations((1,) * (len(STAGE_BUCKETS_MS) + 1), 11_938.0)


class BusyWorker(StandInWorker):
    """Reports in every heartbeat all that a worker can tell."""

    async def _say(self, message: Any) -> None:
        if isinstance(message, Heartbeat):
            message = msgspec.structs.replace(
                message,
                kv_cache_length=120,
                stages={"unit": ONE_OF_EACH},
                answers=dict.fromkeys(Kind, ONE_OF_EACH),
                errors={"inference_failed": 1},
                interruptions={"stopped": 1},
                device_memory=DeviceMemory(60 << 30, 80 << 30),
                recordings_waiting=0,
            )
        await super()._say(message)


def rules() -> dict[str, str]:
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> dict[str, str]:
    """Every query of the dashboard, by where it stands."""
    dashboard = json.loads((DEPLOY / "grafana/dashboards/parley.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


def test_panels_have_a_place_of_their_own_and_ask_the_source_that_is_provisioned():
    found = json.loads((DEPLOY / "grafana/dashboards/parley.json").read_text())["panels"]
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )["datasources"][0]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in found)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    asked = {target["datasource"]["uid"] for panel in found for target in panel["targets"]}

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in found}) == len(found)
    assert asked == {source["uid"]}


async def one_call(gateway: RunningGateway) -> None:
    async with connect(gateway.ws("/ws/duplex/omni_1")) as socket:
        await hear(socket)
        await say(socket, type="stop")
        await end_of(socket)


def test_promtool_accepts_the_configuration():
    file = str(DEPLOY / "prometheus/prometheus.yml")
    run(tool("promtool"), "check", "config", "--syntax-only", file)


FAULTS = {
    "ParleyDown": {("up", ""): "0+0"},
    "ParleyNoUsableWorker": {("parley_slots", 'state="all"'): "0+0"},
    "ParleyWorkerOffline": {("parley_workers", 'state="offline"'): "1+0"},
    "ParleyQueueGrows": {
        ("parley_slots", 'state="free"'): "0+0",
        ("parley_queue_length", ""): "0+1",
    },
    "ParleyAnswersLate": {
        ("parley_answer_seconds_bucket", 'mode="omni_duplex",le="1"'): "0+1",
        ("parley_answer_seconds_bucket", 'mode="omni_duplex",le="2"'): "0+9",
        ("parley_answer_seconds_bucket", 'mode="omni_duplex",le="+Inf"'): "0+9",
    },
    "ParleyErrors": {("parley_errors_total", 'source="worker"'): "0+9"},
    "ParleyRecordingsLost": {("parley_recording_lost_entries_total", ""): "0+1"},
    "ParleyLoopLag": {("parley_loop_lag_seconds", ""): "0.06+0"},
    "ParleyDiskFull": {("parley_disk_free_bytes", ""): "4e9+0"},
    "ParleyRecordingsStay": {("parley_recordings_waiting", 'worker="w0"'): "1+0"},
    "ParleyNoActiveGateway": {("parley_gateway_active", ""): "0+0"},
    "ParleyLeadershipInDoubt": {("parley_leadership_in_doubt", ""): "1+0"},
    "ParleyGpuMemoryFull": {
        ("parley_worker_device_memory_bytes", 'worker="w0",state="used"'): "79+0",
        ("parley_worker_device_memory_bytes", 'worker="w0",state="free"'): "1+0",
    },
    "ParleyWorkersWithoutDevice": {("parley_workers_without_device", ""): "1+0"},
    "ParleyResumptionsFail": {
        ("parley_resumptions_total", 'result="resumed"'): "0+9",
        ("parley_resumptions_total", 'result="unknown"'): "0+9",
    },
}
"""Series that make an alert fire: the first value and the increase per scrape."""


def test_every_alert_fires_at_its_fault(tmp_path: Path) -> None:
    full = {("parley_queue_length", ""): "9+0", ("parley_queue_limit", ""): "9+0"}
    faults = [
        *FAULTS.items(),
        # Prometheus scrapes no pod without a node.
        ("ParleyDown", {}),
        ("ParleyQueueGrows", FAULTS["ParleyQueueGrows"] | full),
    ]
    tests = [
        {
            "interval": "15s",
            "input_series": [
                {
                    "series": f'{name}{{job="parley",instance="gateway:8006",{labels}}}',
                    "values": f"{values}x400",
                }
                for (name, labels), values in fault.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertstate="firing",alertname="{alert}"}})',
                    "eval_time": "90m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for alert, fault in faults
    ]
    file = tmp_path / "tests.yml"
    rule_file = str(DEPLOY / "prometheus/rules.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rule_file], "tests": tests}))

    run(tool("promtool"), "test", "rules", str(file))
    assert FAULTS.keys() == rules().keys()


async def test_promtool_has_nothing_to_say_about_the_metrics():
    promtool = tool("promtool")
    async with running_gateway() as gateway, BusyWorker(gateway.url), gateway.http() as http:
        await one_call(gateway)
        page = (await http.get("/metrics")).content

    done = await asyncio.to_thread(
        subprocess.run,
        [promtool, "check", "metrics"],
        input=page,
        capture_output=True,
        timeout=HANG_S,
    )

    assert (done.returncode, done.stderr.decode()) == (0, "")


async def test_every_query_asks_for_metrics_and_labels_that_a_running_server_has():
    async with running_gateway() as gateway, BusyWorker(gateway.url), gateway.http() as http:
        await one_call(gateway)
        text = (await http.get("/metrics")).text
    samples: dict[str, set[str]] = {"up": {"job"}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update((*sample.labels, "job", "instance"))

    wrong = {}
    for where, query in {**rules(), **panels()}.items():
        for name, labels in re.findall(
            r"\b(up|parley_[a-z_]+|process_[a-z_]+)\b(?:\{([^}]*)\})?", query
        ):
            asked = set(re.findall(r"(\w+)\s*!?[=~]", labels))
            if not asked <= samples.get(name, set()) or name not in samples:
                wrong[where] = query
    assert wrong == {}


@contextlib.asynccontextmanager
async def prometheus(folder: Path, port: int, target: str) -> AsyncIterator[httpx.AsyncClient]:
    """The printed configuration, scraping every second instead of four times a minute."""
    program = tool("prometheus")
    settings = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = settings["scrape_configs"]
    job["scheme"] = "http"
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    (folder / "rules.yml").write_text((DEPLOY / "prometheus/rules.yml").read_text())
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            yield http
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def asked(http: httpx.AsyncClient, query: str) -> list[Any]:
    with contextlib.suppress(httpx.TransportError):
        answer = await http.get("/api/v1/query", params={"query": query})
        if answer.status_code != 503:
            assert answer.status_code == 200, (query, answer.text)
            result: list[Any] = answer.json()["data"]["result"]
            return result
    return []


async def test_a_real_prometheus_finds_data_for_every_panel_and_no_fault_in_a_rule(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """Some seconds: rates need several scrapes."""
    async with (
        running_gateway() as gateway,
        BusyWorker(gateway.url),
        prometheus(tmp_path, unused_tcp_port, f"127.0.0.1:{gateway.gateway.port}") as http,
    ):
        await one_call(gateway)
        empty = panels()
        for _ in range(int(2 * HANG_S)):
            empty = {where: query for where, query in empty.items() if not await asked(http, query)}
            if not empty:
                break
            await asyncio.sleep(0.5)
        groups = (await http.get("/api/v1/rules")).json()["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        firing = {rule["name"] for rule in found if rule["state"] != "inactive"}

    assert empty == {}
    assert {rule["name"] for rule in found} == set(rules())
    assert {rule["name"]: rule["lastError"] for rule in found if rule["health"] != "ok"} == {}
    # The worker reports an error with each heartbeat, and answers of up to five seconds.
    assert firing <= {"ParleyErrors", "ParleyAnswersLate", "ParleyDiskFull"}
