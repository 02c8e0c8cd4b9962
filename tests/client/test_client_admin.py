"""Requests around conversations, and their errors."""

import json
from typing import Any

import httpx
import pytest

from parley.client import Server
from parley.client.access import Access, Unreachable
from parley.errors import ServiceUnavailable, Unauthorized


class Answering:
    """A network with one answer for everything; `asked` is what it was asked."""

    def __init__(self, status: int, body: object = None, *, html: str = "") -> None:
        self.asked: list[httpx.Request] = []
        self._answer = httpx.Response(status, html=html or None, json=None if html else body)

    def requests(self, access: Access) -> httpx.AsyncBaseTransport:
        return httpx.MockTransport(self._heard)

    def _heard(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self._answer


def server_of(network: Any, **more: Any) -> Server:
    return Server("http://a.test", transport=network, **more)


async def test_status_comes_as_it_is_with_the_token_sent() -> None:
    network = Answering(200, {"queue_length": 3})

    async with server_of(network, token="t") as server:
        assert await server.status() == {"queue_length": 3}

    (asked,) = network.asked
    assert (asked.method, asked.url.path) == ("GET", "/status")
    assert asked.headers["authorization"] == "Bearer t"


async def test_stopping_names_session_and_scope_and_is_false_where_there_is_none() -> None:
    network, nothing = Answering(200, {"success": True}), Answering(404, {"success": False})

    async with server_of(network) as server, server_of(nothing) as other:
        assert await server.stop_half_duplex("hdx_1", "turn") is True
        assert await other.stop_half_duplex("hdx_1") is False

    assert json.loads(network.asked[0].content) == {"session_id": "hdx_1", "scope": "turn"}


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(401, "unauthorized", Unauthorized), (503, "service_unavailable", ServiceUnavailable)],
)
async def test_errors_become_their_class(status: int, code: str, error: type[Exception]) -> None:
    async with server_of(Answering(status, {"detail": "No.", "code": code})) as server:
        with pytest.raises(error, match=r"No\."):
            await server.queue()


@pytest.mark.parametrize(
    "network",
    [
        Answering(200, html="<h1>Welcome</h1>"),
        Answering(502, html="<h1>Bad Gateway</h1>"),
        Answering(404, {"message": "no route"}),
    ],
)
async def test_an_answer_of_another_server_is_recognised(network: Answering) -> None:
    async with server_of(network) as server:
        with pytest.raises(Unreachable, match="not a parley server"):
            await server.voices()


async def test_a_redirection_says_where_to() -> None:
    network = Answering(301, html="<h1>Moved</h1>")
    network._answer.headers["location"] = "https://a.test/voices?page=1"

    async with server_of(network) as server:
        with pytest.raises(Unreachable, match=r"redirected to https://a\.test/voices\n"):
            await server.voices()


async def test_a_proxy_that_wants_a_key_is_recognised() -> None:
    async with server_of(Answering(401, html="<h1>Sign in</h1>")) as server:
        with pytest.raises(Unauthorized):
            await server.voices()
