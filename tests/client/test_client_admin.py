"""Requests around conversations, and their errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parley.client import Server
from parley.errors import ServiceUnavailable, Unauthorized


@asynccontextmanager
async def answering(status: int, body: object) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A web server with one answer for everything; yields its address and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
             if line.startswith(b"content-length")), 0,
        )  # fmt: skip
        asked.append(head + await reader.readexactly(length))
        data = json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % (status, len(data)) + data
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_status_comes_as_it_is_with_the_token_sent() -> None:
    async with (
        answering(200, {"queue_length": 3}) as (url, asked),
        Server(url, token="t") as server,
    ):
        assert await server.status() == {"queue_length": 3}

    assert asked[0].startswith(b"GET /status ")
    assert b"Bearer t" in asked[0]


async def test_stopping_names_session_and_scope() -> None:
    async with answering(200, {"success": True}) as (url, asked), Server(url) as server:
        assert await server.stop_half_duplex("hdx_1", "turn") is True

    assert json.loads(asked[0].split(b"\r\n\r\n")[1]) == {"session_id": "hdx_1", "scope": "turn"}


async def test_stopping_what_is_not_there_is_false_and_no_error() -> None:
    async with answering(404, {"success": False}) as (url, _), Server(url) as server:
        assert await server.stop_half_duplex("hdx_1") is False


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(401, "unauthorized", Unauthorized), (503, "service_unavailable", ServiceUnavailable)],
)
async def test_errors_become_their_class(status: int, code: str, error: type[Exception]) -> None:
    async with (
        answering(status, {"detail": "No.", "code": code}) as (url, _),
        Server(url) as server,
    ):
        with pytest.raises(error, match=r"No\."):
            await server.queue()
