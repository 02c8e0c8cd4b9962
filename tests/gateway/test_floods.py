"""One client sends as much as it can: it is stopped, and nobody else notices."""

import asyncio
import contextlib
import errno
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs
from tests.support.certificates import self_signed
from tests.support.gateways import (
    HELLO,
    RunningGateway,
    all_free,
    refusal_of,
    running_gateway,
    until,
)
from tests.support.patience import HANG_S
from tests.support.raw_sockets import WS_HEAD, Answers, masked_frame, raw_client, raw_websocket
from tests.support.stand_in_worker import StandInWorker
from tests.support.talking import hear, say
from uvicorn.protocols.http.flow_control import FlowControl
from websockets.asyncio.client import connect

from parley.gateway.http.bodies import Transfers
from parley.gateway.http.routing import DEFAULT_BODY_BYTES
from parley.protocol.control import CONTROL_PATH, SECRET_HEADER
from parley.protocol.values import SLOWEST_BYTES_PER_S
from parley.transport import TlsListener, handshakes, listen
from parley.transport.clients import OpenConnections
from parley.transport.framing import BINARY, CONTINUATION, PING, TEXT, frame
from parley.transport.http import HEAD_LIMIT_BYTES, BoundedHttp

SECRET = {"worker_secret": "right"}

FLOODS = {
    "pings": masked_frame(0x80 | PING) * 1000,
    "pongs": masked_frame(0x8A) * 1000,
    "empty messages": masked_frame(0x80 | BINARY) * 1000,
    "small messages": masked_frame(0x80 | TEXT, b'{"type":"client_diagnostic"}') * 1000,
    "empty fragments": masked_frame(TEXT) + masked_frame(CONTINUATION) * 1000,
    "one-byte fragments": masked_frame(BINARY, b"x") + masked_frame(CONTINUATION, b"x") * 1000,
}


@contextlib.asynccontextmanager
async def live_session(gateway: RunningGateway) -> AsyncIterator[None]:
    """A conversation that must not notice what goes on in the block."""
    async with connect(gateway.ws("/ws/duplex/omni_live")) as live:
        assert (await hear(live))["type"] == "queue_done"
        await say(live, type="prepare")
        assert (await hear(live))["type"] == "prepared"
        yield
        await say(live, type="audio_chunk", audio_base64="AAAA")
        assert (await hear(live))["type"] == "echo"


# Every flood in a session; elsewhere, where the same counts, each way of flooding once.
@pytest.mark.parametrize(
    ("phase", "flood"),
    [
        *(("session", flood) for flood in FLOODS),
        *zip(("chat", "waiting", "worker") * 2, FLOODS, strict=True),
    ],
)
async def test_a_flood_ends_with_1008_and_a_live_session_continues(flood: str, phase: str):
    slots = 1 if phase in ("waiting", "chat") else 2
    paths = {"chat": "/ws/chat", "worker": CONTROL_PATH}
    headers = f"{SECRET_HEADER}: right\r\n" if phase == "worker" else ""
    async with (
        running_gateway(security=SECRET) as gateway,
        StandInWorker(gateway.url, slots=slots, secret="right") as worker,
        live_session(gateway),
    ):
        path = paths.get(phase, "/ws/duplex/omni_attack")
        async with raw_websocket(gateway.gateway.port, path, headers) as attacker:
            if phase == "session":
                await attacker.send(masked_frame(0x80 | TEXT, b'{"type":"prepare"}'))
                # Through the relay: nothing else reads what this client sends from here on.
                await attacker.until(b'"prepared"')
            reading = asyncio.create_task(attacker.rest())
            await attacker.flood(FLOODS[flood])
            answers = Answers(await reading)
        if answers.close_code == 1008:
            # Nor can it begin again immediately.
            assert (await refusal_of(gateway.ws(path)))[0] == 429

        # Who reads messages may refuse the first one, before anybody counts.
        refusals = {1008} if phase == "session" else {1003, 1008}
        assert answers.close_code in refusals
        # What it cost is bounded, however much was sent: so much together, and what a second adds.
        limits = gateway.runtime.links.connection_limits
        assert answers.pongs <= 2 * limits.control_burst
        assert len(worker.heard) <= 2 * limits.message_burst
    assert gateway.runtime.links.budget.used_bytes == 0


async def test_what_came_before_a_bad_frame_reaches_the_worker(gateway, worker):
    async with raw_websocket(gateway.gateway.port, "/ws/duplex/omni_1") as client:
        await until(lambda: "omni_1" in worker.sessions)
        await client.send(frame(TEXT, b'{"type": "prepare"}', mask=True) + b"\xff" * 8)
        answers = Answers(await client.rest())
        await until(lambda: worker.heard)

    assert answers.close_code == 1002
    assert worker.heard == [{"type": "prepare"}]


# HTTP


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoundedHttp, "body_grace_s", 0.2)
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n{"
    async with running_gateway() as gateway:
        for path, came in (
            (b"/api/chat", 0),
            (b"/api/queue", 0),
            (b"/nowhere", 0),
            (b"/api/chat", 8 << 20),
        ):
            async with raw_client(gateway.gateway.port) as client:
                await client.send(head % (path, came + 1000) + b" " * came)
                answer = await client.rest()
            assert answer.split()[1] in (b"408", b"404", b"405"), answer
        assert gateway.runtime.access.admission.sessions_by_address == {}


def test_networks_that_carry_a_call_carry_bodies_and_answers():
    # 48 kbit/s: docs/do/operate.md, "What a call needs of the network".
    assert 8 * SLOWEST_BYTES_PER_S <= 40_000


async def test_bodies_that_come_after_their_answers_end_no_connection_but_large_ones_do(
    gateway, monkeypatch
):
    async with AsyncExitStack() as stack:
        port = gateway.gateway.port
        clients = [await stack.enter_async_context(raw_client(port)) for _ in range(6)]
        for client in clients:
            await client.send(b"GET /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n")
            await client.until(b"Not Found")
        for client in clients:
            await client.send(b" " * 60_000 + b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.until(b'"healthy":true')
        assert not gateway.runtime.access.open_connections.draining

        monkeypatch.setattr("parley.transport.http.DRAIN_BYTES", 59_999)
        await clients[0].send(b"GET /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 60001\r\n\r\n")
        await clients[0].until(b"Not Found")
        await clients[0].send(b" " * 60_000)
        await clients[0].rest()


async def test_a_body_that_comes_slowly_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoundedHttp, "body_grace_s", 0.2)
    monkeypatch.setattr(BoundedHttp, "body_limit_s", 0.3)
    piece = b" " * (16 << 10)
    async with running_gateway() as gateway, raw_client(gateway.gateway.port) as client:
        await client.send(b"POST /api/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 99000000\r\n\r\n")
        for _ in range(20):
            await client.send(piece)
        answer = await client.rest()

        assert answer.split()[1] == b"408"
        assert gateway.runtime.links.budget.used_bytes == 0
        assert gateway.runtime.access.open_connections.ended == {"slow_body": 1}
        text = gateway.runtime.metrics.page().decode()
        assert 'parley_connections_ended_total{reason="slow_body"} 1.0' in text


@pytest.mark.gateway(limits={"sessions_per_client": 2})
async def test_an_address_may_send_only_so_many_bodies_together_and_none_is_read_before(
    gateway, monkeypatch
):
    monkeypatch.setattr("parley.gateway.admission.TURN_S", 0.0)
    head = b"POST /api/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"
    async with (
        raw_client(gateway.gateway.port) as first,
        raw_client(gateway.gateway.port) as second,
        raw_client(gateway.gateway.port) as third,
    ):
        admission = gateway.runtime.access.admission
        await first.send(head)
        await second.send(head)
        await until(lambda: admission.sessions_by_address == {"127.0.0.1": 2})
        await third.send(head)
        refused = await third.head()
        first.abort()
        await until(lambda: admission.sessions_by_address == {"127.0.0.1": 1})

    assert refused.startswith(b"HTTP/1.1 429 ")


async def test_large_bodies_share_the_memory_for_large_messages_and_give_it_back(gateway):
    head = b"POST /api/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"
    budget = gateway.runtime.links.budget
    budget.share_bytes = 5 << 20
    async with (
        raw_client(gateway.gateway.port) as first,
        raw_client(gateway.gateway.port) as second,
    ):
        await first.send(head + b'"' + b"a" * (4 << 20))
        await until(lambda: budget.used_bytes > 3 << 20)
        await second.send(head + b'"' + b"a" * (4 << 20))
        refused = await second.head()
    await until(lambda: budget.used_bytes == 0 and budget.owners == 0)
    counted = gateway.runtime.metrics._errors["service_unavailable", "gateway"]

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 10" in refused.lower()
    assert counted == 1


async def test_bodies_that_stop_early_hold_little_that_is_not_counted(gateway):
    head = b"POST /api/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"
    sent = 900 << 10
    async with AsyncExitStack() as stack:
        budget = gateway.runtime.links.budget
        for _ in range(8):
            client = await stack.enter_async_context(raw_client(gateway.gateway.port))
            await client.send(head + b'"' + b"a" * sent)
        await until(lambda: budget.used_bytes > 8 * (sent - DEFAULT_BODY_BYTES))


@pytest.mark.usefixtures("worker")
async def test_a_body_with_more_items_than_anybody_needs_is_refused_unparsed(http):
    body = b'{"x": [' + b"0," * 200_000 + b"0]}"
    refused = await http.post("/api/chat", content=body)
    spoken = {**HELLO, "unknown": "a" * 200_000}
    answered = await http.post("/api/chat", json=spoken)

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert answered.status_code == 200


async def test_a_large_request_reaches_the_worker_as_one_answer_asked_for(worker, http):
    asked = {**HELLO, "streaming": True, "unknown": "a" * 200_000}
    answer = await http.post("/api/chat", json=asked)
    stop = await http.post("/api/chat", json={**asked, "type": "stop"})

    assert (answer.status_code, stop.status_code) == (200, 200)
    assert [request["streaming"] for request in worker.heard] == [False, False]
    assert all("type" not in request for request in worker.heard)


async def test_an_address_has_only_so_many_connections():
    async with (
        running_gateway(limits={"connections_per_client": 3, "sessions_per_client": 1}) as gateway,
        StandInWorker(gateway.url),  # two of them: its control socket, and none for its server
        connect(gateway.ws("/ws/duplex/omni_1")),
        raw_client(gateway.gateway.port),
    ):
        await until(lambda: gateway.runtime.access.open_connections.by_address == {"127.0.0.1": 3})
        async with raw_client(gateway.gateway.port) as fourth:
            refused = await fourth.rest()
    assert refused.startswith(b"HTTP/1.1 429 ")
    assert gateway.runtime.access.open_connections.by_address == {}


async def test_who_begins_no_handshake_takes_no_place_of_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 1.0)
    _, trusted = self_signed(tmp_path)
    files = {"http": False, "ssl_certfile": trusted, "ssl_keyfile": tmp_path / "key.pem"}
    limits = {"connections_per_client": 2, "sessions_per_client": 1}
    other = httpx.AsyncHTTPTransport(
        verify=ssl.create_default_context(cafile=trusted), local_address="127.0.0.2"
    )

    async with (
        running_gateway(gateway=files, limits=limits) as gateway,
        httpx.AsyncClient(transport=other, timeout=HANG_S) as http,
        raw_client(gateway.gateway.port) as first,
        raw_client(gateway.gateway.port),
        raw_client(gateway.gateway.port) as third,
    ):
        refused = await third.rest()
        health = await http.get(f"https://127.0.0.1:{gateway.gateway.port}/health")
        given_up = await first.rest()

    assert refused == given_up == b""
    assert health.status_code == 200
    assert gateway.runtime.access.open_connections.ended == {"too_many": 1}


@pytest.mark.parametrize(("accepts", "status"), [(b"text/html", b"307"), (b"*/*", b"400")])
async def test_the_answer_to_plain_http_names_the_address(tmp_path: Path, accepts, status):
    context, _ = self_signed(tmp_path)
    with listen("127.0.0.1", 0) as listener:
        listening = TlsListener(listener, asyncio.Protocol, context, OpenConnections())
        async with raw_client(listener.getsockname()[1]) as client:
            head = b"GET /chat?a=1 HTTP/1.1\r\nAccept: %b\r\nHost: a.test:8006\r\n\r\n" % accepts
            await client.send(head)
            answer = await client.rest()
        listening.close()
        await listening.wait_closed()

    assert answer.startswith(b"HTTP/1.1 %b " % status)
    assert b"\r\nlocation: https://a.test:8006/chat?a=1\r\n" in answer
    assert b"HTTPS only: use https://a.test:8006." in answer


async def test_handshakes_begin_as_often_as_an_address_may_connect(tmp_path: Path):
    context, _ = self_signed(tmp_path)
    made: list[asyncio.Protocol] = []

    def protocol() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        listening = TlsListener(listener, protocol, context, OpenConnections(2, now=lambda: 0.0))
        for _ in range(6):
            async with raw_client(port) as client:
                await client.send(b"no handshake")
                await client.rest()
        listening.close()
        await listening.wait_closed()

    assert len(made) == 4
    assert not listening._by_address


async def test_a_server_without_files_accepts_again_when_it_has_some(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(handshakes, "NO_FILES_S", 0.05)
    context, _ = self_signed(tmp_path)
    failures = [OSError(errno.EMFILE, "Too many open files")]

    class Listener(socket.socket):
        def accept(self):
            if failures:
                raise failures.pop()
            return super().accept()

    with listen("127.0.0.1", 0) as bound, Listener(fileno=bound.detach()) as listener:
        listening = TlsListener(listener, asyncio.Protocol, context, OpenConnections())
        with capture_logs() as lines:
            async with raw_client(listener.getsockname()[1]) as client:
                await client.send(b"no handshake")
                await client.rest()
        listening.close()
        await listening.wait_closed()

    assert [line["event"] for line in lines] == ["connections_not_accepted"]


def test_an_address_opens_only_so_many_connections_in_a_time():
    now = 0.0
    counter = OpenConnections(8, now=lambda: now)

    at_once = [counter.may_open("a") for _ in range(20)]
    other = counter.may_open("b")
    now = 1.0
    later = [counter.may_open("a") for _ in range(4)]

    assert at_once == [True] * 16 + [False] * 4
    assert other
    assert later == [True, False, False, False]
    assert OpenConnections().may_open("a")


def test_who_flooded_waits_before_the_next_websocket():
    counter = OpenConnections(16)

    counter.flooded("a", now=1.0)

    assert counter.is_held_off("a", now=5.9)
    assert not counter.is_held_off("a", now=6.1)
    assert not counter.is_held_off("b", now=1.0)


@pytest.mark.gateway(limits={"connections_per_client": 1}, security={"trust_proxy": True})
async def test_behind_a_proxy_connections_are_not_counted_by_address(gateway, http):
    async with raw_client(gateway.gateway.port):
        assert (await http.get("/health")).status_code == 200


ONE_HOST = "must have one Host field"
ADMIN, LOCAL = "GET /api/admin/keys HTTP", "Host: localhost\r\n"
UPGRADE = f"GET /ws/chat HTTP/1.1\r\n{WS_HEAD}"
ODD_HEADS = {
    "upgrade by HTTP/1.0": (UPGRADE.replace("1.1", "1.0"), 400, "requires HTTP/1.1"),
    "upgrade without Host": (UPGRADE.replace("Host: 127.0.0.1\r\n", ""), 400, ONE_HOST),
    "upgrade with two": (f"{UPGRADE}Host: b\r\n", 400, ONE_HOST),
    "upgrade of a long path": (UPGRADE.replace("chat", "a" * 8200), 431, "at most 8192 bytes"),
    "upgrade with a long cookie": (
        f"{UPGRADE}Cookie: a={'b' * 8200}\r\n",
        431,
        "A line of a WebSocket request may have at most 8192 bytes",
    ),
    "no Host": ("GET /health HTTP/1.1\r\n", 400, ONE_HOST),
    "HTTP/1.0 without Host": ("GET /health HTTP/1.0\r\n", 200, "healthy"),
    "long head": (
        "GET / HTTP/1.1\r\nx: " + "y" * (HEAD_LIMIT_BYTES + 9),
        431,
        "exceeds 16384 bytes",
    ),
    "many fields": ("GET / HTTP/1.1\r\n" + "a:\r\n" * 101, 431, "more than 100 header fields"),
    "fifty at once": (
        "GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 50,
        400,
        "More than 8 requests wait",
    ),
    "another host in the target": ("GET http://b/ HTTP/1.1\r\nHost: a\r\n", 400, "name the host"),
    "a user in the target": ("GET http://b@a/ HTTP/1.1\r\nHost: a\r\n", 400, "name the host"),
    "the host in the target": (
        "GET http://a/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n",
        200,
        "healthy",
    ),
    "admin by a plain nginx": (f"{ADMIN}/1.0\r\n{LOCAL}", 401, "its machine"),
    "empty upgrade": (f"{ADMIN}/1.1\r\n{LOCAL}Connection: upgrade, close\r\n", 401, "its machine"),
    "two lengths": ("POST / HTTP/1.1\r\nHost: a\r\n" + "Content-Length: 1\r\n" * 2, 400, "Invalid"),
}


@pytest.mark.parametrize("name", ODD_HEADS)
async def test_odd_heads_get_their_status_and_a_reason(gateway: RunningGateway, name: str):
    head, status, words = ODD_HEADS[name]
    async with raw_client(gateway.gateway.port) as client:
        await client.send(f"{head}\r\n".encode())
        answer = (await client.rest()).decode()

    assert (answer.split()[1], words in answer) == (str(status), True), answer


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """Pages with a large file."""
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "large.wav").write_bytes(b"x" * (64 << 20))
    (tmp_path / "version").write_text("0" * 16)
    return tmp_path


async def test_a_reader_that_stands_still_is_dropped(monkeypatch: pytest.MonkeyPatch, web: Path):
    monkeypatch.setattr(BoundedHttp, "stall_s", 0.2)
    async with (
        running_gateway(web=web) as gateway,
        raw_client(gateway.gateway.port) as reader,
    ):
        await reader.send(b"GET /static/large.wav HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: gateway.runtime.access.open_connections.by_address)
        await until(lambda: not gateway.runtime.access.open_connections.by_address)


@pytest.mark.parametrize("place", ["here", "in flight"])
async def test_a_connection_is_not_idle_while_its_answer_is_read(
    monkeypatch: pytest.MonkeyPatch, place: str
):
    acknowledged = iter([None, None] if place == "here" else [7, 8, 8])
    monkeypatch.setattr("parley.transport.http.acknowledged_bytes", lambda _: next(acknowledged))
    transport = Mock(is_closing=lambda: False)
    http = BoundedHttp.__new__(BoundedHttp)
    http.transport, http.flow, http._delivered = transport, FlowControl(transport), None
    http.loop, http.timeout_keep_alive = asyncio.get_running_loop(), 0

    http.flow.write_paused = place == "here"
    http.timeout_keep_alive_handler()
    was_closed = transport.close.called
    http.flow.write_paused = False
    await until(lambda: transport.close.called)

    assert not was_closed


async def test_unread_answers_are_memory_of_their_address(web: Path):
    async with running_gateway(web=web) as gateway, AsyncExitStack() as stack:
        budget, connections = gateway.runtime.links.budget, gateway.runtime.access.open_connections
        budget.share_bytes = 1 << 20
        for _ in range(40):
            reader = await stack.enter_async_context(raw_client(gateway.gateway.port))
            await reader.send(b"GET /static/large.wav HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: connections.ended["unread_answers"])
        await asyncio.sleep(0)

        assert 0 < budget.used_bytes <= budget.share_bytes
        assert 0 < sum(connections.by_address.values()) < 40
        await stack.aclose()
        await until(lambda: budget.used_bytes == 0)


async def test_one_client_does_not_wait_for_the_transfers_of_another():
    transfers = Transfers("uploads", 3, each=2)

    async def status(address: str) -> int:
        try:
            async with transfers.one(address):
                return 200
        except HTTPException as refusal:
            return refusal.status_code

    async with transfers.one("a"), transfers.one("a"):
        with_two = [await status("a"), await status("b")]
        async with transfers.one("b"):
            full = await status("c")

    assert with_two == [429, 200]
    assert full == 503
    assert await status("c") == 200


async def test_a_client_that_leaves_during_its_upload_is_not_an_error(logged):
    head = b"POST /api/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{"
    async with running_gateway() as gateway:
        async with raw_client(gateway.gateway.port) as client:
            await client.send(head)
            await until(lambda: gateway.runtime.access.admission.sessions_by_address)
        await until(lambda: not gateway.runtime.access.admission.sessions_by_address)

        assert not gateway.runtime.metrics._errors
    assert not [record for record in logged if record.exc_info]


async def test_large_messages_that_are_never_finished_give_their_share_back(gateway):
    wire = frame(TEXT, b"x" * (3 << 20), mask=True)
    budget = gateway.runtime.links.budget
    async with raw_websocket(gateway.gateway.port, "/ws/duplex/omni_1") as client:
        await client.send(wire[: 2 << 20])
        await until(lambda: budget.used_bytes == (2 << 20) - 14)
        assert budget.owners == 1
    await until(lambda: budget.used_bytes == 0 and budget.owners == 0)
    async with connect(gateway.ws("/ws/chat")) as chat:
        await chat.send(json.dumps({**HELLO, "unknown": "a" * (2 << 20)}))
        await until(lambda: budget.used_bytes)
    await all_free(gateway)
    await until(lambda: budget.used_bytes == 0)
