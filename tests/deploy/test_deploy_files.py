"""What `deploy/` holds works with this server, as far as the tools of this machine can tell."""

import asyncio
import contextlib
import json
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import yaml
from cryptography import x509
from tests.support.gateways import running_gateway, until
from tests.support.patience import HANG_S
from tests.support.programs import python, run, tool
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import end_of, hear, say
from websockets.asyncio.client import connect
from websockets.typing import Origin

from parley.certificates import make_pair
from parley.settings import Settings
from parley.settings.reader import variable
from parley.settings.tree import leaves

pytestmark = pytest.mark.starts_python

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def settings_named(text: str) -> set[str]:
    return set(re.findall(r"\bPARLEY_[A-Z]+__[A-Z_]+\b", text))


@pytest.mark.parametrize(
    "path", sorted(p for p in DEPLOY.rglob("*") if p.is_file()), ids=lambda p: p.name
)
def test_every_setting_named_in_a_file_exists(path):
    assert settings_named(path.read_text()) <= {variable(name) for name, _ in leaves()}


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
    cluster = next(yaml.safe_load_all((DEPLOY / "kubernetes/ray/raycluster.yaml").read_text()))
    (command,) = pods(cluster)[0]["spec"]["containers"][0]["args"]
    commands.append(command.split("exec parley ")[1].split())
    for kind in ("gateway", "worker"):
        document = next(yaml.safe_load_all((DEPLOY / f"kubernetes/{kind}.yaml").read_text()))
        (container,) = document["spec"]["template"]["spec"]["containers"]
        commands.append([part for word in container["args"] for part in word.split("=", 1)])

    helps = {
        verb: run(sys.executable, "-m", "parley", verb, "--help")
        for verb in {verb for verb, *_ in commands}
    }
    for verb, *words in commands:
        for word in words:
            if word.startswith("--"):
                assert word in helps[verb], (verb, word)


def test_kubernetes_files_build():
    documents = list(
        yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes")))
    )

    kinds = {document["kind"] for document in documents}
    assert {"Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= kinds
    assert all(document["metadata"]["namespace"] == "parley" for document in documents)


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods that a RayCluster makes, as such: their kind is known, the cluster's is an
    extension's."""
    groups = [document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"]]
    return [
        {"apiVersion": "v1", "kind": "Pod", **group["template"], "metadata": {"name": "pod"}}
        for group in groups
    ]


def test_kubernetes_knows_every_field(tmp_path):
    validate = tool("kubernetes-validate")
    built = list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes"))))
    cluster, service = yaml.safe_load_all((DEPLOY / "kubernetes/ray/raycluster.yaml").read_text())
    documents = [*built, service, *pods(cluster)]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents))

    said = run(validate, "--strict", str(tmp_path / "all.yaml"))

    assert said.count(" passed ") == len(documents)


async def test_what_operators_are_given_names_what_the_other_files_define():
    (scaling,) = yaml.safe_load_all((DEPLOY / "kubernetes/operators/scaling.yaml").read_text())
    (monitor,) = yaml.safe_load_all((DEPLOY / "kubernetes/operators/monitoring.yaml").read_text())
    worker = next(yaml.safe_load_all((DEPLOY / "kubernetes/worker.yaml").read_text()))
    gateway = next(yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text()))
    async with running_gateway() as running, running.http() as http:
        metrics = (await http.get("/metrics")).text

    target = scaling["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (worker["kind"], worker["metadata"]["name"])
    (trigger,) = scaling["spec"]["triggers"]
    asked = set(re.findall(r"parley_\w+", trigger["metadata"]["query"]))
    assert asked == {"parley_leases", "parley_queue_length"}
    assert all(f"\n{name} " in metrics for name in asked)
    pod = gateway["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "parley"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = pod["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}


def test_the_ray_cluster_scales_between_what_the_server_and_ray_are_told():
    cluster, service = yaml.safe_load_all((DEPLOY / "kubernetes/ray/raycluster.yaml").read_text())
    head, worker = pods(cluster)
    (group,) = cluster["spec"]["workerGroupSpecs"]
    (container,) = head["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    (command,) = container["args"]

    assert re.findall(r"--workers (\d+)", command) == [str(group["minReplicas"])]
    assert int(environment["PARLEY_RAY__WORKERS_MAX"]) == group["maxReplicas"]
    assert cluster["spec"]["enableInTreeAutoscaling"]
    assert environment["PARLEY_RAY__GATEWAY_URL"] == f"wss://{service['metadata']['name']}:8006"
    assert worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_hadolint_has_nothing_to_say_about_the_dockerfile():
    run(tool("hadolint"), str(DEPLOY / "docker/Dockerfile"))


def test_the_compose_files_are_what_compose_reads():
    files = [str(path) for path in (DEPLOY / "docker").glob("*.yaml")]
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *files)


@pytest.mark.parametrize("is_http", [True, False])
async def test_the_containers_health_is_the_servers_with_and_without_tls(
    tmp_path: Path, is_http: bool
):
    text = (DEPLOY / "docker/Dockerfile").read_text()
    (found,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", text, re.MULTILINE)
    gateway = {
        "http": is_http,
        "ssl_certfile": tmp_path / "cert.pem",
        "ssl_keyfile": tmp_path / "key.pem",
    }
    async with running_gateway(gateway=gateway) as running:
        _, *words = json.loads(found.replace(":8006", f":{running.gateway.port}"))
        healthy = await asyncio.to_thread(python, *words)
    ended = await asyncio.to_thread(python, *words)

    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert ended.returncode == 1


@pytest.mark.parametrize("name", ["nginx.conf", "nginx-oidc.conf"])
def test_nginx_waits_for_an_answer_as_long_as_the_server_does(name):
    (seconds,) = re.findall(r"proxy_read_timeout +(\d+)s", (DEPLOY / "proxy" / name).read_text())

    assert int(seconds) > Settings().queue.request_timeout_s


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


async def until_open(port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(HANG_S):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            assert process.returncode is None, await asyncio.to_thread(log.read_text)
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def nginx(
    tmp_path: Path,
    backend_port: int,
    port: int,
    file: str = "nginx.conf",
    *,
    signer_port: int = 0,
    below: str = "/",
    tls: bool = False,
    other_port: int | None = None,
):
    """A printed nginx file on loopback, without TLS or with a certificate made for the test;
    changed as it describes if there is another gateway."""
    text = (DEPLOY / "proxy" / file).read_text()
    if other_port is not None:
        gateways = (f"server 127.0.0.1:{one} max_fails=0;" for one in (other_port, 8006))
        text = text.replace("server 127.0.0.1:8006;", " ".join(gateways))
        added = re.findall(r"^#  +(proxy_.*;)$", text, re.MULTILINE)
        text = text.replace("proxy_request_buffering off;", " ".join(added))
    if below != "/":
        text = text.replace("location / {", f"location {below} {{")
        text = text.replace("proxy_pass http://parley;", "proxy_pass http://parley/;")
    if tls:
        pair = make_pair([x509.DNSName("voice.example")], 2)
        for name, pem in zip(("pem", "key"), pair, strict=True):
            (tmp_path / name).write_bytes(pem)
            text = text.replace(f"/etc/ssl/voice.example.{name};", f"{tmp_path}/{name};")
        text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
    text = text.replace("/var/log/nginx", str(tmp_path))
    text = text.replace("127.0.0.1:4180", f"127.0.0.1:{signer_port}")
    text = text.replace("127.0.0.1:8006", f"127.0.0.1:{backend_port}")
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    if not tls:
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
        await until_open(port, process, tmp_path / "error.log")
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


BEHIND = {"trust_proxy": True, "allowed_hosts": ["voice.example"], "admin_token": "t" * 32}


def call(port: int, path: str = "/ws/duplex/omni_1", *, tls: str = "", **more: Any) -> connect:
    """A call from a page of `voice.example`; `tls` is "s" with it."""
    name = f"voice.example:{port}"
    page = Origin(f"http{tls}://{name}")
    return connect(f"ws{tls}://{name}{path}", host="127.0.0.1", port=port, origin=page, **more)


async def stand_by(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 502 Standby\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_a_call_and_requests_through_the_printed_nginx_file_and_two_gateways(
    tmp_path, unused_tcp_port_factory
):
    port = unused_tcp_port_factory()
    headers = {"Host": "voice.example", "X-Admin-Token": "t" * 32}
    async with (
        await asyncio.start_server(stand_by, "127.0.0.1", 0) as standby,
        running_gateway(security=BEHIND) as gateway,
        nginx(tmp_path, gateway.gateway.port, port, other_port=standby.sockets[0].getsockname()[1]),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as http,
    ):
        # Without a worker it is not ready; that must not take it out of service.
        asked = [await http.get(path) for path in ("/", "/health", *(4 * ["/ready"]))]
        asked += [await http.post("/api/admin/keys", json={"name": "kiosk"}) for _ in range(4)]
        async with StandInWorker(gateway.url), call(port) as socket:
            heard = [await hear(socket)]
            await say(socket, type="prepare")
            heard.append(await hear(socket))
            await say(socket, type="stop")
            last, code = await end_of(socket)

    assert [one.status_code for one in asked] == [200, 200, *(4 * [503]), *(4 * [201])]
    assert {one.json()["why"] for one in asked[2:6]} == {"No worker can take a session."}
    assert [message["type"] for message in (*heard, *last)] == ["queue_done", "prepared", "stopped"]
    assert code == 1000


async def test_pages_sockets_and_cookies_below_a_path_that_nginx_takes_away(
    tmp_path, unused_tcp_port_factory
):
    port = unused_tcp_port_factory()
    trusted = ssl.create_default_context()
    async with (
        running_gateway(security=BEHIND | {"needs_key": True}) as gateway,
        StandInWorker(gateway.url),
        nginx(tmp_path, gateway.gateway.port, port, below="/voice/", tls=True),
    ):
        trusted.load_verify_locations(tmp_path / "pem")
        async with httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}/voice/",
            headers={"Host": f"voice.example:{port}", "X-Admin-Token": "t" * 32},
            verify=False,
        ) as http:
            page = await http.get("")
            linked = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
            files = {link: (await http.get(link)).status_code for link in linked}
            outside = (await http.get(f"https://127.0.0.1:{port}/health")).status_code
            made = await gateway.new_key()
            exchanged = await http.post("api/token", headers={"X-Api-Key": made["key"]})
        cookie = exchanged.headers["set-cookie"]
        shown = {"Cookie": cookie.partition(";")[0]}
        path = f"/voice/ws/duplex/omni_1?token={made['key']}"
        async with call(port, path, tls="s", ssl=trusted, additional_headers=shown) as socket:
            heard = await hear(socket)
        # Who comes without TLS gets a cookie that works there.
        async with gateway.http(headers={"X-Api-Key": made["key"]}) as http:
            plain = (await http.post("/api/token")).headers["set-cookie"]
        gateway.gateway.stop_now()
        async with httpx.AsyncClient(verify=False) as http:
            url = f"https://127.0.0.1:{port}/voice/"
            for secret in ("s/sh_c2VjcmV0", f"?token={made['key']}"):
                while (await http.get(url + secret)).status_code != 502:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    assert (page.status_code, outside) == (200, 404)
    assert files
    assert set(files.values()) == {200}, files
    assert {"Secure", "HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in plain
    assert heard["type"] == "queue_done"
    logged = (tmp_path / "access.log").read_text()
    assert '"GET /voice/ws/duplex/omni_1" 101' in logged
    assert '"GET /voice/s/sh_..." 502' in logged
    logged += (tmp_path / "error.log").read_text()
    assert made["key"] not in logged
    assert "c2VjcmV0" not in logged


APACHE = """ServerRoot {folder}
PidFile pid
Mutex file:{folder}
ErrorLog log
User www-data
Group www-data
Listen 127.0.0.1:{port}
"""
MODULES = ("mpm_event", "authz_core", "proxy", "proxy_http", "headers", "setenvif")
FORGED = {"X-Forwarded-For": "6.6.6.6"}
COMMANDS = {
    "apache.conf": ("apache2", "-DFOREGROUND", "-f"),
    "haproxy.cfg": ("haproxy", "-f"),
    "Caddyfile": ("caddy", "run", "--adapter", "caddyfile", "--config"),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_call_and_a_failure_through_the_other_printed_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port_factory: Any
):
    monkeypatch.setenv("HOME", str(tmp_path))
    port, program = unused_tcp_port_factory(), tool(COMMANDS[name][0])
    text = (DEPLOY / "proxy" / name).read_text()
    if name == "Caddyfile":
        text = text.replace("{", "{\n admin off", 1)
        text = text.replace("voice.example {", f"http://voice.example:{port} {{\n bind 127.0.0.1")
    if name == "apache.conf":
        modules = [
            f"LoadModule {one}_module /usr/lib/apache2/modules/mod_{one}.so" for one in MODULES
        ]
        text = "\n".join([APACHE.format(folder=tmp_path, port=port), *modules, text])
    text = re.sub(r"^ *SSL.*$", "", text.replace("*:443", f"127.0.0.1:{port}"), flags=re.MULTILINE)
    text = re.sub(":443 ssl .*", f"127.0.0.1:{port}", text).replace("/dev/log", "stdout format raw")
    text = text.replace("/var/log/apache2/parley.log", str(tmp_path / "log"))
    secret = f"http://127.0.0.1:{port}/s/sh_hidden"
    async with running_gateway(security=BEHIND) as gateway, StandInWorker(gateway.url):
        text = text.replace("127.0.0.1:8006", f"127.0.0.1:{gateway.gateway.port}")
        (tmp_path / name).write_text(text)
        with (tmp_path / "log").open("a") as log:
            process = await asyncio.create_subprocess_exec(
                program, *COMMANDS[name][1:], str(tmp_path / name), stdout=log, stderr=log
            )
        try:
            await until_open(port, process, tmp_path / "log")
            with structlog.testing.capture_logs() as lines:
                path = "/ws/duplex/omni_1?x=hidden"
                async with call(port, path, additional_headers=FORGED) as socket:
                    assert (await hear(socket))["type"] == "queue_done"
                await until(lambda: any("client" in line for line in lines))
            gateway.gateway.stop_now()
            headers = {"Host": "voice.example", "x-api-key": "hidden", "Referer": secret}
            async with httpx.AsyncClient(headers=headers) as http:
                while (await http.get(f"{secret}?token=hidden")).status_code < 502:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            process.terminate()
            await process.wait()

    assert {line["client"] for line in lines if "client" in line} == {"127.0.0.1"}
    logged = (tmp_path / "log").read_text()
    assert re.search("/ws/duplex/omni_1|connection refused", logged)
    assert "hidden" not in logged


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
            security=BEHIND | {"needs_key": True},
            forward_auth={
                "user_header": "X-Auth-Request-Email",
                "groups_header": "X-Auth-Request-Groups",
                "admin_groups": ["admins"],
            },
        ) as gateway,
        StandInWorker(gateway.url),
        nginx(tmp_path, gateway.gateway.port, port, "nginx-oidc.conf", signer_port=signer_port),
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
        async with call(port, additional_headers={"Cookie": "session=anna"}) as socket:
            assert (await hear(socket))["type"] == "queue_done"
            await say(socket, type="prepare")
            assert (await hear(socket))["type"] == "prepared"
            await say(socket, type="stop")
            await end_of(socket)
        own = await http.get("/api/usage", headers={"Cookie": "session=anna"})
        made = await gateway.new_key()
        program = {"Authorization": f"Bearer {made['key']}", **forged}
        of_program = [
            await http.get(path, headers=program) for path in ("/api/usage", "/api/admin/keys")
        ]
        program["Authorization"] += "x"
        of_program.append(await http.get("/api/usage", headers=program))

    assert (stranger.status_code, stranger.headers["location"].partition("?")[0]) == (
        302,
        f"http://{name}/oauth2/start",
    )
    assert {who: answer.status_code for who, answer in statuses.items()} == {
        "anna": 403,
        "admin": 200,
    }
    assert foreign.status_code == 401
    assert [answer.status_code for answer in of_program] == [200, 403, 401]
    (row,) = own.json()["usage"]
    assert (row["key_id"], row["name"], row["sessions"]) == (
        "u_anna@example.com",
        "anna@example.com",
        1,
    )
