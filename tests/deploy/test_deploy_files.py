"""What `deploy/` holds works with this server, as far as the tools of this machine can tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.gateways import end_of, hear, running_gateway, say
from tests.support.stand_in_worker import StandInWorker
from websockets.asyncio.client import connect
from websockets.typing import Origin

from parley.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def settings_named(text: str) -> set[str]:
    return set(re.findall(r"\bPARLEY_[A-Z]+__[A-Z_]+\b", text))


def known_settings() -> set[str]:
    names = set()

    def walk(model: Any, path: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                walk(field.annotation, (*path, name))
            else:
                names.add("PARLEY_" + "__".join((*path, name)).upper())

    walk(Settings, ())
    return names


@pytest.mark.parametrize(
    "path", sorted(p for p in DEPLOY.rglob("*") if p.is_file()), ids=lambda p: p.name
)
def test_every_setting_named_in_a_file_exists(path):
    assert settings_named(path.read_text()) <= known_settings()


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda p: p.name)
def test_every_yaml_file_is_yaml(path):
    assert list(yaml.safe_load_all(path.read_text()))


def test_the_commands_of_units_and_containers_exist():
    compose = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]
    commands = [compose[name]["command"] for name in ("gateway", "worker")]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        line = re.search(r"^ExecStart=\S+/parley (.*)$", unit.read_text(), re.MULTILINE)
        assert line, unit
        commands.append(line[1].split())
    for kind in ("gateway", "worker"):
        document = next(yaml.safe_load_all((DEPLOY / f"kubernetes/{kind}.yaml").read_text()))
        (container,) = document["spec"]["template"]["spec"]["containers"]
        commands.append([part for word in container["args"] for part in word.split("=", 1)])

    for verb, *words in commands:
        help_text = run(sys.executable, "-m", "parley", verb, "--help")
        for word in words:
            if word.startswith("--"):
                assert word in help_text, (verb, word)


def test_kubernetes_files_build():
    documents = list(
        yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes")))
    )

    kinds = {document["kind"] for document in documents}
    assert {"Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= kinds
    assert all(document["metadata"]["namespace"] == "parley" for document in documents)


def test_systemd_accepts_the_units():
    tool("systemd-analyze")
    units = sorted(str(unit) for unit in (DEPLOY / "systemd").glob("*.service"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60
    )

    complaints = [
        line
        for line in done.stderr.splitlines()
        if any(Path(unit).name in line for unit in units) and "is not executable" not in line
    ]
    assert complaints == []


def test_prometheus_accepts_rules_and_configuration():
    promtool = tool("promtool")
    assert "SUCCESS" in run(promtool, "check", "rules", str(DEPLOY / "prometheus/rules.yml"))
    run(promtool, "check", "config", "--syntax-only", str(DEPLOY / "prometheus/prometheus.yml"))


def queries() -> dict[str, str]:
    """Every query of the alerts and of the dashboard, by where it stands."""
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
    found = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    dashboard = json.loads((DEPLOY / "grafana/dashboards/parley.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


async def test_every_query_asks_for_metrics_and_labels_that_a_running_server_has():
    async with running_gateway() as gateway, StandInWorker(gateway.url):
        async with connect(gateway.ws("/ws/duplex/omni_1")) as socket:
            await hear(socket)
            await say(socket, type="stop")
            await end_of(socket)
        async with gateway.http() as http:
            text = (await http.get("/metrics")).text
    samples: dict[str, set[str]] = {"up": {"job"}}
    for family in text_string_to_metric_families(text):
        names = {sample.name for sample in family.samples} or {family.name}
        if family.type == "histogram":
            names = {family.name + end for end in ("_bucket", "_sum", "_count")}
        if family.type == "counter":
            names |= {family.name + "_total"}
        for name in names:
            samples.setdefault(name, set()).update(
                label for sample in family.samples for label in sample.labels
            )

    wrong = {}
    for where, query in queries().items():
        for name, labels in re.findall(r"\b(up|parley_[a-z_]+)\b(?:\{([^}]*)\})?", query):
            asked = set(re.findall(r"(\w+)\s*=", labels))
            has_series = bool(samples.get(name))
            if name not in samples or (has_series and not asked <= samples[name] | {"job"}):
                wrong[where] = query
    assert wrong == {}


@contextlib.asynccontextmanager
async def nginx(
    tmp_path: Path, backend_port: int, port: int, *, file: str = "nginx.conf", signer_port: int = 0
):
    """A printed nginx file on loopback, without TLS."""
    text = (DEPLOY / "proxy" / file).read_text()
    text = text.replace("127.0.0.1:4180", f"127.0.0.1:{signer_port}")
    text = text.replace("127.0.0.1:8006", f"127.0.0.1:{backend_port}")
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    text = re.sub(r"^ *ssl_certificate.*$", "", text, flags=re.MULTILINE)
    (tmp_path / "parley.conf").write_text(text)
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;"
        f"events {{}} http {{ access_log off; {temporary} include {tmp_path}/parley.conf; }}"
    )
    process = await asyncio.create_subprocess_exec(
        tool("nginx"), "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)
    )
    try:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                assert process.returncode is None, (tmp_path / "error.log").read_text()
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_a_call_and_a_page_through_the_printed_nginx_file(tmp_path, unused_tcp_port_factory):
    port = unused_tcp_port_factory()
    security = {
        "trust_proxy": True,
        "allowed_hosts": ["voice.example"],
        "admin_token": "t" * 32,
    }
    host = {"Host": "voice.example"}
    async with (
        running_gateway(security=security) as gateway,
        StandInWorker(gateway.url),
        nginx(tmp_path, gateway.gateway.port, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=host) as http,
    ):
        page = await http.get("/")
        health = await http.get("/health")
        async with connect(
            f"ws://voice.example:{port}/ws/duplex/omni_1",
            host="127.0.0.1",
            port=port,
            origin=Origin(f"http://voice.example:{port}"),
        ) as socket:
            heard = [await hear(socket)]
            await say(socket, type="prepare")
            heard.append(await hear(socket))
            await say(socket, type="stop")
            last, code = await end_of(socket)

    assert (page.status_code, health.json()["status"]) == (200, "ok")
    assert [message["type"] for message in (*heard, *last)] == ["queue_done", "prepared", "stopped"]
    assert code == 1000


async def sign_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers as oauth2-proxy does: 202 and who it is by a cookie, else 401."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if "cookie: session=" in head:
        name = head.partition("cookie: session=")[2].split()[0]
        said = (
            f"X-Auth-Request-Email: {name}@example.com\r\nX-Auth-Request-Groups: staff,{name}s\r\n"
        )
        answer = f"HTTP/1.1 202 Accepted\r\n{said}"
    else:
        answer = "HTTP/1.1 401 Unauthorized\r\n"
    writer.write(f"{answer}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    writer.close()


async def test_people_whom_nginx_has_signed_in_talk_and_administer_as_themselves(
    tmp_path, unused_tcp_port_factory
):
    port = unused_tcp_port_factory()
    signer = await asyncio.start_server(sign_in, "127.0.0.1", 0)
    signer_port = signer.sockets[0].getsockname()[1]
    name = f"voice.example:{port}"
    forged = {"X-Auth-Request-Email": "admin@example.com", "X-Auth-Request-Groups": "admins"}
    async with (
        signer,
        running_gateway(
            security={
                "trust_proxy": True,
                "needs_key": True,
                "allowed_hosts": ["voice.example"],
                "admin_token": "t" * 32,
            },
            forward_auth={
                "user_header": "X-Auth-Request-Email",
                "groups_header": "X-Auth-Request-Groups",
                "admin_groups": ["admins"],
            },
        ) as gateway,
        StandInWorker(gateway.url),
        nginx(
            tmp_path,
            gateway.gateway.port,
            port,
            file="nginx-oidc.conf",
            signer_port=signer_port,
        ),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Host": name}) as http,
    ):
        stranger = await http.get("/api/usage", headers=forged)
        statuses = {
            who: (await http.get("/api/admin/keys", headers={"Cookie": f"session={who}", **forged}))
            for who in ("anna", "admin")
        }
        foreign = await http.get(
            "/api/admin/keys",
            headers={"Cookie": "session=admin", "Origin": "https://evil.example"},
        )
        async with connect(
            f"ws://{name}/ws/duplex/omni_1",
            host="127.0.0.1",
            port=port,
            origin=Origin(f"http://{name}"),
            additional_headers={"Cookie": "session=anna"},
        ) as socket:
            assert (await hear(socket))["type"] == "queue_done"
            await say(socket, type="prepare")
            assert (await hear(socket))["type"] == "prepared"
            await say(socket, type="stop")
            await end_of(socket)
        own = await http.get("/api/usage", headers={"Cookie": "session=anna"})

    assert (stranger.status_code, stranger.headers["location"].partition("?")[0]) == (
        302,
        f"http://{name}/oauth2/start",
    )
    assert {who: answer.status_code for who, answer in statuses.items()} == {
        "anna": 401,
        "admin": 200,
    }
    assert foreign.status_code == 401
    (row,) = own.json()["usage"]
    assert (row["key_id"], row["name"], row["sessions"]) == (
        "u_anna@example.com",
        "anna@example.com",
        1,
    )
