"""What a stranger's head or body may cost the event loop, and what it may not say."""

import asyncio
import time

import pytest
from tests.support.cpu_time import takes_less_than
from tests.support.gateways import RunningGateway, running_gateway
from tests.support.raw_sockets import WS_HEAD, raw_client

from parley.gateway import metrics
from parley.gateway.authenticator import COOKIE, _cookie
from parley.gateway.http import openapi
from parley.gateway.http.auth import _token

GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
LARGE = 15_000
"""Longer heads are refused unread."""

COSTLY_HEADS = {
    "many query fields": (b"/health?" + b"a=&" * (LARGE // 3), b""),
    "a long path": (b"/" + b"%41" * (LARGE // 3), b""),
    "a long token": (b"/health?token=" + b"%41" * (LARGE // 3), b""),
    "many header fields": (b"/health", b"a:b\r\n" * (LARGE // 5)),
}


@pytest.mark.parametrize("name", COSTLY_HEADS)
async def test_a_costly_head_is_refused_and_costs_little(gateway: RunningGateway, name: str):
    heads = (GET % (b"/nosuch", b""), GET % COSTLY_HEADS[name])
    costs_s: list[list[float]] = [[], []]
    for _ in range(7):
        for costs, head in zip(costs_s, heads, strict=True):
            async with raw_client(gateway.gateway.port) as client:
                # Client and server are in this thread.
                began_s = time.thread_time()
                await client.send(head)
                answer = await client.head()
                costs.append(time.thread_time() - began_s)

    assert answer.split()[1] in (b"400", b"401", b"404", b"431"), answer[:200]
    ordinary_s, costly_s = map(min, costs_s)
    assert costly_s < 20 * ordinary_s  # It is 6 times as much.


@pytest.mark.parametrize(
    "header",
    [
        'a="' + "\\\\" * 30_000 + '"',
        f'{COOKIE}="' + "\\\\" * 30_000 + '"',
        "a=b;" * 16_000,
        ";" + " " * 60_000 + "a=b",
    ],
)
def test_our_cookie_is_looked_for_in_a_millisecond_whatever_else_there_is(header: str):
    assert _cookie(header) == ""
    assert takes_less_than(0.005, lambda: _cookie(header))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("parley_token=st_abc-_1", "st_abc-_1"),
        ('a=b; parley_token="st_abc"; c=d', "st_abc"),
        ("xparley_token=st_abc", ""),
        ("parley_token=", ""),
        ("a=parley_token=st_abc", ""),
        (f"parley_token={'a' * 1001}", ""),
    ],
)
def test_the_cookie_that_is_ours(header: str, token: str):
    assert _cookie(header) == token


@pytest.mark.parametrize(
    ("query", "token"),
    [(b"token=a%2Bb", "a+b"), (b"x=1&token=t&y=2", "t"), (b"xtoken=t", None), (b"token=", None)],
)
def test_the_token_of_a_query(query: bytes, token: str | None):
    assert _token({"query_string": query}) == token


BODY = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("needs_key", [False, True])
@pytest.mark.parametrize("path", [b"/api/chat", b"/nosuch", b"/v1/audio/transcriptions"])
async def test_a_body_of_tiny_chunks_is_ended(path: bytes, needs_key: bool):
    async with (
        running_gateway(security={"needs_key": needs_key}) as gateway,
        raw_client(gateway.gateway.port) as client,
    ):
        await client.send(BODY % path)
        began_s = time.thread_time()
        await client.flood(b"1\r\n \r\n" * 10_000)
        cost_s = time.thread_time() - began_s
        await client.rest()

    # It sends until it is cut off; what is not read any more is not parsed either.
    assert cost_s < 1  # It is 0.01.


@pytest.mark.parametrize("endless", [b"0\r\nx: ", b"1;"], ids=["trailer", "extension"])
async def test_a_chunked_body_has_few_bytes_of_framing(gateway, endless: bytes):
    async with raw_client(gateway.gateway.port) as client:
        await client.send(BODY % b"/api/chat" + b"2\r\n{}\r\n" + endless)
        await client.flood(b"a" * 20_000)
        answer = await client.rest()

    assert b"400 Bad Request" in answer
    assert b"framing exceeds 16384 bytes" in answer


async def test_a_long_head_leaves_as_much_room_for_a_body(gateway):
    fields = b"".join(b"x-%02d: %s\r\n" % (number, b"a" * 170) for number in range(93))
    async with raw_client(gateway.gateway.port) as client:
        await client.send(BODY.removesuffix(b"\r\n") % b"/api/token" + fields + b"\r\n")
        await asyncio.sleep(0.1)  # They arrive one after the other.
        await client.send(b"2\r\n{}\r\n0\r\n\r\n")
        answer = await client.head()

    # It got as far as the route.
    assert answer.split()[1] not in (b"400", b"408", b"431"), answer


async def test_a_body_in_ordinary_chunks_is_read_whole(gateway):
    piece = b"0400;signature=3f2a\r\n" + b" " * 1024 + b"\r\n"
    async with raw_client(gateway.gateway.port) as client:
        await client.send(BODY % b"/api/token" + piece * 2000 + b"0\r\n\r\n")
        answer = await client.head()

    # It got as far as the route, which wants something else.
    assert answer.split()[1] not in (b"400", b"408", b"413"), answer


TRAILING = b"%s HTTP/1.1\r\nHost: 127.0.0.1\r\n%sTransfer-Encoding: chunked\r\n\r\n0\r\n%s\r\n\r\n"


@pytest.mark.gateway(
    security={"admin_token": "right"},
    forward_auth={"user_header": "Remote-User", "proxies": ["127.0.0.1"]},
)
@pytest.mark.parametrize(
    "trailer",
    [
        *(b"X-Admin-Token: right", b"Authorization: Bearer right", b"Api-Key: right"),
        b"Remote-User: anna",  # a user without the role would get 403
    ],
)
async def test_a_token_in_a_trailer_opens_nothing(gateway: RunningGateway, trailer: bytes):
    async with raw_client(gateway.gateway.port) as client:
        await client.send(TRAILING % (b"GET /api/admin/state", b"", trailer))
        refused = await client.head()
    async with raw_client(gateway.gateway.port) as client:
        head = b"X-Admin-Token: right\r\n"
        await client.send(TRAILING % (b"GET /api/admin/state", head, b"x: y"))
        opened = await client.head()

    assert refused.split()[1] == b"401"
    assert opened.split()[1] == b"200"


@pytest.mark.gateway(security={"trust_proxy": True, "admin_token": "right"})
async def test_an_address_in_a_trailer_is_not_the_clients(gateway):
    named = b"X-Forwarded-For: 203.0.113.7"
    for head, trailer in ((b"", named), (named + b"\r\n", b"x: y")):
        async with raw_client(gateway.gateway.port) as client:
            head += b"X-Admin-Token: right\r\n"
            await client.send(TRAILING % (b"DELETE /api/admin/keys/k_1", head, trailer))
            assert (await client.head()).split()[1] == b"404"
    newest, oldest = await gateway.runtime.stores.state.audit(2)

    assert (oldest.address, newest.address) == ("127.0.0.1", "203.0.113.7")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /health HTTP/0.9\r\nHost: a\r\n\r\n",
        b"GET /ws/chat HTTP/1.1\r\n" + WS_HEAD.encode() + b"Content-Length: 3\r\n\r\nabc",
        b"GET /ws/chat HTTP/1.1\r\n"
        + WS_HEAD.encode()
        + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_other_versions_and_upgrades_with_a_body_get_400(
    gateway: RunningGateway, request_bytes: bytes
):
    async with raw_client(gateway.gateway.port) as client:
        await client.send(request_bytes)
        answer = await client.rest()

    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_what_anybody_may_ask_for_is_made_once(monkeypatch: pytest.MonkeyPatch):
    made = []

    def counting(name, work):
        def make(*arguments, **options):
            made.append(name)
            return work(*arguments, **options)

        return make

    for module, name in ((metrics, "generate_latest"), (openapi, "document_of")):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    async with running_gateway() as gateway, gateway.http() as http:
        for path, name in (("/metrics", "generate_latest"), ("/openapi.json", "document_of")):
            for _ in range(30):
                assert (await http.get(path)).status_code == 200
            assert 1 <= made.count(name) <= 12
