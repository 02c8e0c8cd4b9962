"""What Prometheus and Grafana are given, asked of a running server: by a real Prometheus where one
is installed (Debian: prometheus)."""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.gateways import running_gateway
from tests.support.patience import HANG_S
from tests.support.programs import run, tool
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import end_of, hear, say
from websockets.asyncio.client import connect

from parley.protocol.control import STAGE_BUCKETS_MS, DeviceMemory, Durations, Heartbeat
from parley.protocol.kinds import Kind

DEPLOY = Path(__file__).parents[2] / "deploy"
ONE_OF_EACH = Durations([1] * (len(STAGE_BUCKETS_MS) + 1), 11_938.0)


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


async def page() -> str:
    """The metrics of a gateway that has served a call."""
    async with running_gateway() as gateway, BusyWorker(gateway.url), gateway.http() as http:
        async with connect(gateway.ws("/ws/duplex/omni_1")) as socket:
            await hear(socket)
            await say(socket, type="stop")
            await end_of(socket)
        return (await http.get("/metrics")).text


async def samples() -> list[tuple[str, dict[str, str], float]]:
    """What a Prometheus stores of it: names, labels and values."""
    target = {"job": "parley", "instance": "gateway:8006"}
    return [("up", target, 1.0)] + [
        (sample.name, {**target, **sample.labels}, sample.value)
        for family in text_string_to_metric_families(await page())
        for sample in family.samples
    ]


def evaluated(folder: Path, cases: list[tuple[dict[str, str], list[str]]]) -> None:
    """Have promtool check that expressions have the value 1 after 90 minutes, with the rules and
    their series (first value and increase per scrape)."""
    tests = [
        {
            "interval": "15s",
            "input_series": [
                {"series": name, "values": f"{values}x400"} for name, values in series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": expression,
                    "eval_time": "90m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
                for expression in expressions
            ],
        }
        for series, expressions in cases
    ]
    file = folder / "tests.yml"
    rule_file = str(DEPLOY / "prometheus/rules.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rule_file], "tests": tests}))
    run(tool("promtool"), "test", "rules", str(file))


def test_promtool_accepts_the_configuration():
    file = str(DEPLOY / "prometheus/prometheus.yml")
    run(tool("promtool"), "check", "config", "--syntax-only", file)


FAULTS = {
    "ParleyDown": {"up": "0+0"},
    "ParleyNoUsableWorker": {'parley_slots{state="all"}': "0+0"},
    "ParleyWorkerOffline": {'parley_workers{state="offline"}': "1+0"},
    "ParleyQueueGrows": {
        'parley_slots{state="free"}': "0+0",
        "parley_queue_length": "0+1",
        "parley_queue_limit": "999+0",
    },
    "ParleyAnswersLate": {
        'parley_answer_seconds_bucket{mode="omni_duplex",le="1"}': "0+1",
        'parley_answer_seconds_bucket{mode="omni_duplex",le="2"}': "0+9",
        'parley_answer_seconds_bucket{mode="omni_duplex",le="+Inf"}': "0+9",
    },
    "ParleyErrors": {'parley_errors_total{source="worker",code="inference_error"}': "0+9"},
    "ParleyRecordingsLost": {"parley_recording_lost_entries_total": "0+1"},
    "ParleySessionsWithoutLog": {"parley_sessions_without_log": "1+0"},
    "ParleyLoopLag": {"parley_loop_lag_seconds": "0.06+0"},
    "ParleyDiskFull": {"parley_disk_free_bytes": "4e9+0"},
    "ParleyRecordingsStay": {'parley_recordings_waiting{worker="w0"}': "1+0"},
    "ParleyNoActiveGateway": {"parley_gateway_active": "0+0"},
    "ParleyLeadershipInDoubt": {"parley_leadership_in_doubt": "1+0"},
    "ParleyGpuMemoryFull": {
        'parley_worker_device_memory_bytes{worker="w0",state="used"}': "79+0",
        'parley_worker_device_memory_bytes{worker="w0",state="free"}': "1+0",
    },
    "ParleyWorkersWithoutDevice": {"parley_workers_without_device": "1+0"},
    "ParleyResumptionsFail": {
        'parley_resumptions_total{result="resumed"}': "0+9",
        'parley_resumptions_total{result="unknown"}': "0+9",
    },
}
"""Series that make an alert fire."""


def test_every_alert_fires_at_its_fault(tmp_path: Path) -> None:
    full = {"parley_queue_length": "9+0", "parley_queue_limit": "9+0"}
    faults = [
        *FAULTS.items(),
        # Prometheus scrapes no pod without a node.
        ("ParleyDown", {}),
        ("ParleyQueueGrows", FAULTS["ParleyQueueGrows"] | full),
    ]

    def of_target(series: str) -> str:
        name, _, labels = series.partition("{")
        return f'{name}{{job="parley",instance="gateway:8006",{labels or "}"}'

    firing = 'count(ALERTS{alertstate="firing",alertname="%s"})'
    # A client that sends nonsense, and clients that ask again after a failover.
    no_fault = {
        'up{job="parley"}': "1+0",
        'parley_errors_total{source="worker",code="too_large"}': "0+9",
        'parley_resumptions_total{result="resumed"}': "0+9",
        'parley_resumptions_total{result="not_yet_known"}': "0+9",
    }
    evaluated(
        tmp_path,
        [
            (no_fault, ["(count(ALERTS) or vector(0)) + 1"]),
            *(
                ({of_target(series): values for series, values in fault.items()}, [firing % alert])
                for alert, fault in faults
            ),
        ],
    )
    assert FAULTS.keys() == rules().keys()


async def test_every_panel_finds_data_and_every_alert_its_metrics(tmp_path: Path) -> None:
    known = await samples()
    series = {
        f"{name}{{{','.join(f'{label}={json.dumps(text)}' for label, text in labels.items())}}}": (
            f"{value}+0"
        )
        for name, labels, value in known
    }
    for alert, fault in FAULTS.items():
        for name, _, labels in (one.partition("{") for one in fault):
            asked = set(re.findall(r"(\w+)=", labels))
            assert any(name == one and asked <= has.keys() for one, has, _ in known), (alert, name)
    found = [f"clamp_max(count({query}), 1)" for query in panels().values()]

    await asyncio.to_thread(evaluated, tmp_path, [(series, found)])


async def test_promtool_has_nothing_to_say_about_the_metrics():
    done = await asyncio.to_thread(
        subprocess.run,
        [tool("promtool"), "check", "metrics"],
        input=(await page()).encode(),
        capture_output=True,
        timeout=HANG_S,
    )

    assert (done.returncode, done.stderr.decode()) == (0, "")
