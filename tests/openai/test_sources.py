"""Pictures by address: only where the operator allows it, and never from inside a network."""

import asyncio
import base64
import gzip
import socket
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from tests.support.gateways import until
from tests.support.patience import HANG_S

from parley.errors import BadInput
from parley.gateway.http.openai import completions, sources
from parley.gateway.http.openai.answering import answer
from parley.gateway.http.openai.sources import Sources, is_public, public_address
from parley.protocol import values

PICTURE = b"\x89PNG picture"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1"),
        *("::ffff:127.0.0.1", "2002:7f00:0001::", "ff02::1", "fe80::1%eth0"),
        *("64:ff9b::10.0.0.1", "64:ff9b:1::1", "::127.0.0.1", "fec0::1"),
    ],
)
def test_addresses_inside_a_network_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_addresses_of_the_world_are(address):
    assert is_public(address)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/x", "data, http or https"),
        ("file:///etc/passwd", "data, http or https"),
        ("http://user:secret@example.org/", "data, http or https"),
        ("http://example.org:65536/", "data, http or https"),
        ("http://[::1", "not a URL"),
        ("http://127.0.0.1:8006/admin", "private network"),
        ("http://[::1]/", "private network"),
        ("http://2130706433/", "private network"),
        ("http://localhost/", "private network"),
        ("http://a\0b.example/", "not a URL"),
        ("http://８.8.8.8/", "not a URL"),
        ("http://8.8.8.8/\n", "not a URL"),
        ("http://8.8.8.8/\ud800", "not a URL"),
        ("http://xn--a/", "not known"),
        (f"http://{'a' * 70}.example/", "not known"),
    ],
)
async def test_addresses_that_lead_elsewhere_are_refused(url, why):
    with pytest.raises(BadInput, match=why):
        await public_address(url, field="image_url")


async def test_names_that_take_long_keep_no_other_name_waiting(monkeypatch: pytest.MonkeyPatch):
    answered = threading.Event()

    def lookup(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host == "slow.example":
            answered.wait(HANG_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    url = "http://slow.example/picture.png"
    slow = [asyncio.create_task(public_address(url, field="image_url")) for _ in range(40)]
    await asyncio.sleep(0)

    # As a gateway looks for a worker.
    worker = await asyncio.get_running_loop().getaddrinfo("localhost", 8007)
    is_before = not answered.is_set()
    answered.set()

    assert worker
    assert is_before
    assert await asyncio.gather(*slow) == ["93.184.216.34"] * 40


def asking_for(url: str) -> completions.Completion:
    image = completions.ImageContent(completions.MediaUrl(url))
    message = completions.CompletionMessage(role="user", content=(image,))
    return completions.Completion(model="m", messages=(message,))


async def test_nothing_is_fetched_unless_the_operator_allows_it():
    with pytest.raises(BadInput, match="data URL"):
        await Sources().completed(asking_for("https://example.org/a.png"))


@pytest.fixture
async def site(monkeypatch) -> AsyncIterator[str]:
    """A site of the world, as far as the code under test can see."""

    async def picture(request):
        return Response(PICTURE, media_type="image/png")

    async def page(request):
        return Response("<html>", media_type="text/html")

    async def elsewhere(request):
        return RedirectResponse("http://169.254.169.254/")

    async def packed(request):
        return Response(
            gzip.compress(PICTURE), media_type="image/png", headers={"content-encoding": "gzip"}
        )

    async def endless(request):
        return Response(b"x" * 5000, media_type="image/png")

    app = Starlette(
        routes=[
            Route("/picture", picture),
            Route("/page", page),
            Route("/elsewhere", elsewhere),
            Route("/packed", packed),
            Route("/endless", endless),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]

    async def resolved(url: str, *, field: str) -> str:
        return "127.0.0.1"

    monkeypatch.setattr(sources, "public_address", resolved)
    yield f"http://site.example:{port}"
    server.should_exit = True
    await serving


async def test_what_is_fetched_goes_to_the_worker_as_data(site):
    asked = await Sources(may_fetch=True).completed(asking_for(f"{site}/picture"))

    request = completions.request_of(asked, voice=None)
    (part,) = request.messages[0].parts
    assert isinstance(part, values.Base64Image)
    assert base64.b64decode(part.data) == PICTURE


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("page", "does not point to a picture"),
        ("elsewhere", "redirections"),
        ("packed", "compresses"),
        ("nothing", "404"),
    ],
)
async def test_what_is_not_a_picture_is_refused(site, path, why):
    with pytest.raises(BadInput, match=why):
        await Sources(may_fetch=True).completed(asking_for(f"{site}/{path}"))


async def test_what_is_too_large_is_not_read_to_its_end(site, monkeypatch):
    monkeypatch.setattr(values, "IMAGE_LIMIT_BYTES", 1000)

    with pytest.raises(BadInput, match="too large"):
        await Sources(may_fetch=True).completed(asking_for(f"{site}/endless"))


@pytest.mark.parametrize(("count", "problem"), [(2, "too large"), (17, "16 addresses")])
async def test_what_one_request_names_is_bounded_as_a_whole(site, monkeypatch, count, problem):
    monkeypatch.setattr(sources, "FETCHED_BYTES", 7000)
    one = asking_for(f"{site}/endless").messages[0]
    asked = completions.Completion(model="m", messages=(one,) * count)

    with pytest.raises(BadInput, match=problem):
        await Sources(may_fetch=True).completed(asked)


class Fetched(completions.Completion, frozen=True, kw_only=True, weakref=True):
    """A request with what was fetched in it."""


async def test_what_was_fetched_is_kept_only_in_the_message_to_the_worker() -> None:
    kept: list[weakref.ref[Fetched]] = []

    async def completed(asked: completions.Completion) -> Fetched:
        whole = Fetched(**msgspec.structs.asdict(asked))
        kept.append(weakref.ref(whole))
        return whole

    async def messages() -> AsyncIterator[Any]:
        await until(lambda: kept[0]() is None)
        for each in list[Any]():
            yield each

    @asynccontextmanager
    async def forward(*asked):
        yield SimpleNamespace(messages=messages)

    fetching: Any = SimpleNamespace(completed=completed)
    forwarder: Any = SimpleNamespace(visit=lambda *who: nullcontext("chat_1"), forward=forward)
    request: Any = None
    asked = asking_for("data:image/png;base64,AAAA")

    assert [each async for each in answer(forwarder, request, "http", asked, fetching)] == []


# ---- the text at which an answer ends ------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stops", "shown"),
    [
        (("cd",), "ab"),
        (("cdx", "ef"), "abcd"),
        (("ababc",), "abcdefgh"),
        ((), "abcdefgh"),
        (("h",), "abcdefg"),
        (("hi",), "abcdefgh"),
    ],
)
def test_an_answer_ends_where_a_stop_text_begins(stops, shown, size):
    text, called = "abcdefgh", []
    finder = completions.StopFinder(stops)

    told = [
        finder.add(text[at : at + size], found=lambda: called.append(1))
        for at in range(0, len(text), size)
    ]

    assert "".join(told) + finder.rest() == shown
    assert finder.is_found == (len(called) == 1) == (shown != text)
