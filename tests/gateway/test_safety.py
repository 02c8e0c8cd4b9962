"""Who is let in, and what is refused at admission."""

import asyncio
import contextlib
from typing import Any

import httpx
import pytest
import structlog
from starlette.datastructures import Headers
from tests.support.gateways import (
    HELLO,
    RunningGateway,
    authenticator,
    refusal_of,
    running_gateway,
    turned_away,
    until,
)
from tests.support.patience import HANG_S
from tests.support.raw_sockets import raw_client
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import PATHS, hear
from websockets.asyncio.client import connect

from parley.errors import OriginForbidden, SetupError, TooManySessions, Unauthorized
from parley.gateway.admission import Admission
from parley.gateway.standby import refuse
from parley.gateway.worker_control import MESSAGE_LIMIT_BYTES
from parley.protocol.control import CALLER_HEADER, CONTROL_PATH, SECRET_HEADER
from parley.protocol.networks import network_of
from parley.settings import SecuritySettings
from parley.transport import UvicornServer
from parley.transport.clients import OpenConnections
from parley.transport.http import BoundedHttp
from parley.transport.peer import Peer


def admission(*, sessions: int = 2, **security) -> Admission:
    return Admission(SecuritySettings(**security), sessions_per_client=sessions)


def headers(**values: str) -> Headers:
    return Headers({name.replace("_", "-"): value for name, value in values.items()})


def peer_at(address: str | None, **values: str) -> Peer:
    scope = {"client": address and (address, 5000), "server": ("127.0.0.1", 8006)}
    return Peer.of(scope, headers(**values))


# Sockets


@pytest.mark.parametrize("path", ["/ws/nothing", "/ws/", "/v2/realtime", "/"])
async def test_a_websocket_at_a_path_that_does_not_exist_is_answered_with_404(
    gateway: RunningGateway, path: str
):
    status, _ = await refusal_of(gateway.ws(path))

    assert status == 404


@pytest.mark.parametrize("route", ["/ws/half_duplex/", "/ws/duplex/"])
async def test_strange_session_ids_are_accepted_then_refused_with_1008(gateway, worker, route):
    for session_id in ("a.b", "x" * 65, "..%2f..%2fetc", "a%20b", "ü", "a%00b"):
        told = await turned_away(gateway.ws(route + session_id))

        assert told == ("invalid_session_id", 1008), session_id
    assert worker.headers == []


@pytest.mark.usefixtures("worker")
@pytest.mark.worker(slots=2)
async def test_a_session_id_in_use_is_refused_and_free_again_afterwards(gateway):
    async with connect(gateway.ws(PATHS["duplex"])) as first:
        await hear(first)
        second = await turned_away(gateway.ws(PATHS["duplex"]))
    async with connect(gateway.ws(PATHS["duplex"])) as again:
        after = await hear(again)

    assert second == ("session_id_in_use", 1008)
    assert after["type"] in ("queue_done", "queued")


@pytest.mark.usefixtures("worker")
async def test_pages_of_other_sites_are_refused_before_the_upgrade(gateway):
    other_port = f"http://127.0.0.1:{gateway.gateway.port + 1}"
    with structlog.testing.capture_logs() as lines:
        refused = [
            await refusal_of(gateway.ws(PATHS["realtime"]), origin=origin)
            for origin in ("https://evil.example", other_port, "null")
        ]
    own: Any = f"http://127.0.0.1:{gateway.gateway.port}"
    async with connect(gateway.ws(PATHS["realtime"]), origin=own) as client:
        welcome = await hear(client)

    assert refused == [(403, "origin_forbidden")] * 3
    assert [line["event"] for line in lines if "why" in line] == ["origin_forbidden"]
    assert welcome["type"] == "session.queue_done"


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security={"allowed_hosts": ("talk.example.org", "*.Example.net.")})
async def test_a_public_name_that_is_not_ours_is_refused_everywhere(gateway, http):
    evil = f"evil.example:{gateway.gateway.port}"
    page = {"Host": evil, "Origin": f"http://{evil}"}
    answers = {
        await refusal_of(f"ws://{evil}/ws/chat", host="127.0.0.1", port=gateway.gateway.port),
    }
    for method, path in (("GET", "/"), ("GET", "/api/queue"), ("POST", "/api/chat")):
        answer = await http.request(method, path, headers=page)
        answers.add((answer.status_code, answer.json()["code"]))
    ours = [
        (await http.get("/api/queue", headers={"Host": name})).status_code
        for name in ("talk.example.org.", "a.example.net:1", "gateway", "box.local", "[::1]:80")
    ]

    assert answers == {(421, "host_forbidden")}
    assert ours == [200] * 5


@pytest.mark.gateway(security={"needs_key": True})
async def test_a_program_without_a_key_is_refused_before_the_upgrade_and_a_page_is_told_why(
    gateway, worker
):
    own: Any = f"http://127.0.0.1:{gateway.gateway.port}"
    bad = f"{gateway.ws('/ws/chat')}?token=pk_nobody"
    programs = [await refusal_of(gateway.ws("/ws/chat")), await refusal_of(bad)]
    page = await turned_away(gateway.ws("/ws/chat"), origin=own)
    node = await turned_away(
        gateway.ws("/ws/chat"), additional_headers={"sec-fetch-mode": "websocket"}
    )

    assert programs == [(401, "unauthorized")] * 2
    assert page == node == ("unauthorized", 1008)
    assert worker.headers == []


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(limits={"sessions_per_client": 2})
@pytest.mark.worker(slots=4)
async def test_one_address_may_hold_only_so_many_sessions(gateway, http, monkeypatch):
    monkeypatch.setattr("parley.gateway.admission.TURN_S", 0.0)
    async with (
        connect(gateway.ws("/ws/duplex/a")) as first,
        connect(gateway.ws("/ws/duplex/b")) as second,
    ):
        await hear(first)
        await hear(second)
        third = await turned_away(gateway.ws("/ws/duplex/c"))
        rest = await http.post("/api/chat", json=HELLO)

    assert third == ("too_many_sessions", 1008)
    assert rest.status_code == 429


@pytest.mark.usefixtures("worker")
@pytest.mark.worker(slots=4)
async def test_an_app_switched_off_refuses_newcomers_and_leaves_running_sessions(gateway, http):
    async with connect(gateway.ws(PATHS["duplex"])) as running:
        await hear(running)
        for app in ("omni", "realtime", "turnbased"):
            switched = await http.put(f"/api/admin/apps/{app}", json={"enabled": False})
            assert switched.json()["app"]["enabled"] is False
        paths = ("/ws/duplex/omni_2", PATHS["realtime"], PATHS["chat"])
        told = {await turned_away(gateway.ws(path)) for path in paths}
        rest = await http.post("/api/chat", json=HELLO)
        listed = (await http.get("/api/apps")).json()["apps"]
        await running.send('{"type": "prepare"}')
        still = await hear(running)

    assert told == {("app_disabled", 1008)}
    assert rest.status_code == 403
    assert [app["app_id"] for app in listed] == ["half_duplex_audio", "audio_duplex"]
    assert still["type"] == "prepared"


@pytest.mark.gateway(security={"worker_secret": "right"})
@pytest.mark.parametrize("secret", [None, "wrong"])
async def test_a_worker_without_the_secret_is_refused_before_the_upgrade(
    gateway: RunningGateway, secret: str | None
):
    extra = {SECRET_HEADER: secret} if secret else {}

    refused = await refusal_of(gateway.ws(CONTROL_PATH), additional_headers=extra)

    assert refused == (401, "unauthorized")
    assert len(gateway.runtime.dispatcher.worker_pool) == 0


@pytest.mark.usefixtures("worker")
@pytest.mark.gateway(security={"worker_secret": "right"})
@pytest.mark.worker(secret="right")
async def test_the_secret_is_shown_to_the_worker_too(gateway):
    async with connect(gateway.ws(PATHS["realtime"])) as client:
        assert (await hear(client))["type"] == "session.queue_done"


@pytest.mark.parametrize(("security", "word"), [({}, "admin"), ({"admin_token": "t0ken"}, "")])
async def test_the_worker_learns_who_owns_what_its_client_makes(security, word: str):
    async with (
        running_gateway(security=security) as gateway,
        StandInWorker(gateway.url) as worker,
        connect(gateway.ws(PATHS["duplex"])) as client,
    ):
        await hear(client)
        await until(lambda: worker.headers)

    assert worker.headers[0].get(CALLER_HEADER, "") == word


async def test_a_page_cannot_pose_as_a_worker(gateway):
    refused = await refusal_of(gateway.ws(CONTROL_PATH), origin="http://127.0.0.1")

    assert refused == (401, "unauthorized")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("not json", 1008),
        ('{"type": "heartbeat"}', 1008),
        ('{"type": "hello", "worker_id": ""}', 1008),
        ("{}", 1008),
        (" " * (MESSAGE_LIMIT_BYTES + 1), 1009),
    ],
    ids=["not json", "no hello", "no name", "nothing", "too large"],
)
async def test_nonsense_on_the_control_socket_ends_it(
    gateway: RunningGateway, words: str, code: int
):
    async with connect(gateway.ws(CONTROL_PATH)) as socket:
        await socket.send(words)
        await socket.wait_closed()

    assert socket.close_code == code
    assert len(gateway.runtime.dispatcher.worker_pool) == 0


# REST


async def test_paths_cannot_escape(http):
    paths = (
        "/static/../settings/tree.py",
        "/static/%2e%2e/settings/tree.py",
        "/static/..%2fsettings%2ftree.py",
        "/static/%2e%2e%2f%2e%2e%2fpyproject.toml",
        "//etc/passwd",
    )
    for path in paths:
        request = http.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())
        response = await http.send(request)

        assert response.status_code == 404, path
        assert "class Settings" not in response.text, path


@pytest.mark.gateway(limits={"chat_frame_mb": 2})
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_over_the_limit_gets_413(http: httpx.AsyncClient, is_chunked: bool):
    async def pieces():
        for _ in range(30):
            yield b"x" * 100_000

    content = pieces() if is_chunked else b"x" * 3_000_000
    response = None
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        response = await http.post("/api/chat", content=content)

    if response is not None:
        assert response.status_code == 413
        assert response.json()["code"] == "too_large"
    assert response is not None or is_chunked


async def test_pages_carry_a_content_policy_and_everything_nosniff(http):
    page, data = await http.get("/"), await http.get("/health")

    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert data.headers["x-content-type-options"] == "nosniff"
    assert "server" not in page.headers


@pytest.mark.parametrize("path", ["/api/queue", "/v1/models", "/api/sessions/unknown"])
async def test_no_cache_keeps_what_may_be_one_clients(http: httpx.AsyncClient, path: str):
    answer = await http.get(path)

    assert answer.headers["cache-control"] == "no-store"


async def test_errors_of_ours_reveal_nothing(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
):

    def broken() -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(gateway.runtime.dispatcher, "refresh", broken)
    with structlog.testing.capture_logs() as lines:
        async with gateway.http() as http:
            response = await http.get("/api/queue")

    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["code"] == "internal_error"
    (line,) = [line for line in lines if line["event"] == "request_failed"]
    assert line["request_id"] in response.json()["detail"]


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n"])
async def test_a_connection_that_never_asks_is_closed(words, monkeypatch):
    monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.1)
    async with running_gateway() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.gateway.port)
        writer.write(words)

        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()


@pytest.mark.parametrize(("length", "rest"), [(b"0", b"G"), (b"8", b"01234567")])
async def test_a_connection_that_asks_no_more_is_closed(gateway, monkeypatch, length, rest):
    async with raw_client(gateway.gateway.port) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.until(b'"healthy":true')
        monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.1)
        await client.send(
            b"GET /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n" % length
        )
        await client.until(b"Not Found")
        await client.send(rest)

        assert (await client.rest()).endswith(b"}")


async def test_an_idle_connection_waits_longer_than_its_clients_for_the_next_request(monkeypatch):
    monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.05)
    async with running_gateway() as running, raw_client(running.gateway.port) as client:
        for _ in range(2):
            await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.until(b'"healthy":true')
            with pytest.raises(TimeoutError):
                await client.rest(limit_s=0.2)
        await client.send(b"\r\n")

        assert (await client.rest()).count(b"HTTP/1.1 200") == 2
    # nginx keeps a connection to a server for 60 s, aiohttp for 15 s.
    server = UvicornServer(refuse, tls=None, clients=OpenConnections())
    assert server.config.timeout_keep_alive > 60


# The admission by itself


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "passes"),
    [
        (None, "a:8006", (), True),
        ("https://a:8006", "a:8006", (), True),
        ("https://A:8006", "a:8006", (), True),
        ("https://a", "a:443", (), True),
        ("https://a", "a", (), True),
        ("http://a:80", "a", (), True),
        ("https://a", "a:8006", (), False),
        ("http://a:3000", "a:8006", (), False),
        ("http://a:3000", "a:8006", ("http://a:3000",), True),
        ("https://a:99999", "a", (), False),
        ("https://b", "a:8006", (), False),
        ("https://b", "a:8006", ("https://b/",), True),
        ("https://c", "a:8006", ("*",), True),
        ("null", "a:8006", (), False),
        ("https://a.evil", "a", (), False),
        ("https://[::1]:2", "[::1]:2", (), True),
        ("https://[::1]:1", "[::1]:2", (), False),
        ("https://[", "a", (), False),
    ],
)
def test_origins(origin, host, allowed, passes):
    values = {"host": host} | ({"origin": origin} if origin else {})
    expectation = contextlib.nullcontext() if passes else pytest.raises(OriginForbidden)

    with expectation:
        admission(allowed_origins=allowed).check_origin(Headers(values))


@pytest.mark.parametrize(
    ("peer", "values", "is_admin"),
    [
        ("127.0.0.1", {"host": "localhost:8006"}, True),
        ("::1", {"host": "[::1]:8006"}, True),
        ("::ffff:127.0.0.1", {"host": "127.0.0.1"}, True),
        ("10.0.0.5", {"host": "localhost"}, False),
        ("10.0.0.5", {"host": "localhost", "x_forwarded_for": "127.0.0.1"}, False),
        ("127.0.0.1", {"host": "localhost", "x_forwarded_for": "10.0.0.5"}, False),
        ("127.0.0.1", {"host": "localhost", "via": "1.1 proxy"}, False),
        ("127.0.0.1", {"host": "localhost", "x_forwarded_proto": "https"}, False),
        ("127.0.0.1", {"host": "rebound.example"}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "https://evil.example"}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "https://listed.example"}, False),
        ("127.0.0.1", {"host": "localhost:1", "origin": "http://localhost:1"}, True),
        ("127.0.0.1", {"host": "localhost:1", "origin": "http://localhost:3000"}, False),
        (None, {"host": "localhost"}, False),
    ],
)
def test_without_a_token_only_this_machine_is_admin(peer, values, is_admin, monkeypatch):
    monkeypatch.setattr("parley.transport.peer.user_of", lambda *ends: 0)
    listing = authenticator(allowed_origins=["https://listed.example"])
    assert (listing.role_of(peer_at(peer, **values), headers(**values)) == "admin") is is_admin


def test_a_proxy_makes_the_token_necessary(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parley.transport.peer.user_of", lambda *ends: 0)
    behind, local = admission(trust_proxy=True), headers(host="localhost")

    assert authenticator(trust_proxy=True).role_of(peer_at("127.0.0.1"), local) == "talk"
    assert behind.address_of("127.0.0.1", headers(x_forwarded_for="6.6.6.6, 1.2.3.4")) == "1.2.3.4"
    # A proxy that adds a line of its own leaves the client's above it.
    lines = Headers(raw=[(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-for", b"1.2.3.4")])
    assert behind.address_of("127.0.0.1", lines) == "1.2.3.4"
    assert behind.is_encrypted(headers(x_forwarded_proto="http, HTTPS"))
    assert not behind.is_encrypted(headers(x_forwarded_proto="https, http"))
    assert not admission().is_encrypted(headers(x_forwarded_proto="https"))


@pytest.mark.parametrize(
    ("told", "owner"),
    [
        ("192.0.2.7:5000", "192.0.2.7"),
        ("6.6.6.6, [2001:db8:1:2::7]:5000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("unknown", "unknown"),
    ],
)
def test_a_client_has_one_owner_however_its_proxy_writes_its_address(told: str, owner: str):
    """For memory of bodies and answers. Application gateways add the port of each connection."""
    behind = admission(trust_proxy=True)

    assert behind.owner_of("127.0.0.1", headers(x_forwarded_for=told)) == owner


@pytest.mark.parametrize("token", ["", "t0ke", "t0kenn", "ü"])
def test_wrong_tokens_do_not_open(token: str):
    locked = authenticator(admin_token="t0ken")

    shown = {"host": "localhost", "x-admin-token": token}
    assert locked.role_of(peer_at("127.0.0.1"), Headers(shown)) == "talk"
    assert locked.admin_requirement == "An admin token is required."


def test_workers_on_other_hosts_need_a_secret():
    for peer, said in (("10.0.0.5", headers()), ("127.0.0.1", headers(x_real_ip="10.0.0.5"))):
        with pytest.raises(Unauthorized, match="Workers of other hosts or users need a shared"):
            admission().check_worker(peer_at(peer, **said), said)
    with pytest.raises(Unauthorized, match="Workers on other hosts need a shared secret"):
        admission().check_worker_url("http://10.0.0.5:1")

    admission(worker_secret="s").check_worker(peer_at("10.0.0.5"), headers(x_parley_secret="s"))
    admission(worker_secret="s").check_worker_url("http://10.0.0.5:1")


def test_a_visit_of_an_address_or_a_key_counts_only_while_it_lasts():
    runtime = admission(sessions=1)

    for _ in range(2):
        with runtime.visit("a"), pytest.raises(TooManySessions, match="from one address: 1 open"):
            runtime.visit("a").__enter__()
    # A connection that resumes a session takes no place of another one.
    with (
        runtime.visit("key k", limit=1, returns=True),
        runtime.visit("key k", limit=1),
        pytest.raises(TooManySessions, match="with one key: 2 open"),
    ):
        runtime.visit("key k", limit=1, returns=True).__enter__()
    # Sessions that began at another address count where they continue.
    with (
        runtime.count("a", None),
        runtime.count("a", None),
        pytest.raises(TooManySessions, match="from one address: 2 open, 2 allowed"),
    ):
        runtime.visit("a", returns=True).__enter__()

    assert runtime.sessions_by_address == {}


async def test_requests_beyond_the_limit_take_their_turns_in_order(monkeypatch):
    monkeypatch.setattr("parley.gateway.admission.TURNS", 5)
    monkeypatch.setattr("parley.gateway.admission.TURN_S", 10 * HANG_S)
    runtime, order, together = admission(sessions=2), list[int](), list[int]()

    async def request(number: int) -> None:
        async with runtime.visit_in_turn("a"):
            order.append(number)
            together.append(runtime.sessions_by_address["a"])
            await asyncio.sleep(0)

    with runtime.visit("a"), runtime.visit("a"):
        requests = [asyncio.create_task(request(number)) for number in range(6)]
        await asyncio.sleep(0)
        requests[2].cancel()
        with pytest.raises(TooManySessions):
            await requests[5]
        await asyncio.wait({requests[2]})
        assert order == [], "their caller has two sessions"
    async with asyncio.timeout(HANG_S):
        await request(6)  # asks before the others have noticed that they may continue
        await asyncio.gather(*requests[:2], *requests[3:5])

    assert (order, max(together)) == ([0, 1, 3, 4, 6], 2)
    assert (runtime.sessions_by_address, runtime._turns) == ({}, {})


async def test_a_request_whose_turn_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr("parley.gateway.admission.TURN_S", 0.01)
    runtime = admission(sessions=1)

    with runtime.visit("a"), pytest.raises(TooManySessions):
        async with runtime.visit_in_turn("a"):
            raise AssertionError

    async with runtime.visit_in_turn("a"):
        assert runtime.sessions_by_address == {"a": 1}


def test_a_customer_of_ipv6_is_one_address_to_every_limit():
    runtime, opened = admission(sessions=1), OpenConnections(1)

    with runtime.visit("2001:db8::1"), pytest.raises(TooManySessions):
        runtime.visit("2001:db8::2").__enter__()
    with runtime.visit("2001:db8::1"), runtime.visit("2001:db8:0:1::1"):
        pass

    assert opened.enter(network_of("2001:db8::1"))
    assert not opened.enter(network_of("2001:db8::2"))


async def test_a_gateway_whose_settings_cannot_be_used_says_what_to_change():
    with pytest.raises(SetupError, match="unencrypted to another host") as failure:
        async with running_gateway(storage={"session_logs": "redis://10.1.1.1:6379/0"}):
            pass

    assert "rediss://" in failure.value.hint
