"""The copy store is killed in the middle of a conversation, and then its worker: the conversation
goes on. It does not outlive its gateway, however that ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.apart import Apart
from tests.support.patience import HANG_S
from tests.support.resumed_talks import TALKS, UNITS, comparable
from tests.support.resuming import ResumingClient
from tests.support.talking import Message

pytestmark = pytest.mark.slow

FLAGS = ("--slots", "2", "--vad", "energy")


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    runtime = Apart(tmp_path)
    try:
        yield runtime
    finally:
        runtime.close()


async def begin(apart: Apart, path: str) -> ResumingClient:
    client = ResumingClient(f"ws://127.0.0.1:{apart.port}{path}")
    spoken = TALKS["duplex"]
    await client.begin(session_id=spoken.session_id(path), first=spoken.first)
    return client


async def speak(client: ResumingClient, number: int) -> Message:
    await client.say({"type": "audio_chunk", "audio_base64": UNITS[number % len(UNITS)]})
    return await client.hear()


async def stop(client: ResumingClient) -> None:
    await client.say({"type": "stop"})
    while client.heard[-1]["type"] != "stopped":
        await client.hear()
    await client.close()


async def test_a_copy_store_and_then_a_worker_are_killed(apart: Apart) -> None:
    first = apart.start_worker(0, *FLAGS)
    paths = [TALKS["duplex"].path() for _ in range(2)]
    whole = await begin(apart, paths[0])
    for number in range(6):
        await speak(whole, number)
    await stop(whole)

    client = await begin(apart, paths[1])
    await speak(client, 0)
    await asyncio.to_thread(first.line_with, "copy store connected")
    (store,) = apart.gateway.children
    await speak(client, 1)
    store.kill()
    await speak(client, 2)
    await asyncio.to_thread(first.line_with, "copy store connected")
    (again,) = apart.gateway.children
    assert again.pid != store.pid
    await speak(client, 3)

    await asyncio.to_thread(apart.start_worker, 1, *FLAGS)
    first.send(signal.SIGKILL)
    for number in (4, 5):
        await speak(client, number)
    await stop(client)

    assert comparable(client.heard) == comparable(whole.heard)
    assert (client.doubles, client.holes, client.resumes) == (0, 0, 1)

    apart.gateway.send(signal.SIGKILL)
    deadline = time.monotonic() + HANG_S
    # Nobody may be there to ask what became of it.
    while again.is_running() and again.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
