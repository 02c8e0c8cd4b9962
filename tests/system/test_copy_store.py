"""The copy store is killed in the middle of a conversation, and then its worker, and then its next
worker together with the gateway: the conversation goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

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

    second = await asyncio.to_thread(apart.start_worker, 1, *FLAGS)
    first.send(signal.SIGKILL)
    await speak(client, 4)
    await asyncio.to_thread(second.line_with, "copy store connected")
    # In one moment: nobody is left who knows of the session, but the copy store.
    second.send(signal.SIGKILL)
    apart.gateway.send(signal.SIGKILL)
    apart.gateway.popen.wait(HANG_S)
    apart.gateway = await asyncio.to_thread(apart.start_gateway)
    await asyncio.to_thread(apart.start_worker, 2, *FLAGS)
    await speak(client, 5)
    await stop(client)

    assert comparable(client.heard) == comparable(whole.heard)
    assert (client.doubles, client.holes, client.resumes) == (0, 0, 2)
    assert again.is_running()
    # A gateway that is told to end leaves nothing behind when it has no session any more.
    apart.gateway.send(signal.SIGTERM)
    apart.gateway.popen.wait(HANG_S)
    again.wait(HANG_S)


@pytest.mark.starts_python
async def test_a_copy_store_to_which_no_gateway_comes_ends(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLEY_LIMITS__RESUME_WINDOW_S", "1")
    apart.gateway.end()
    apart.gateway = await asyncio.to_thread(apart.start_gateway)
    worker = await asyncio.to_thread(apart.start_worker, 0, *FLAGS)
    client = await begin(apart, TALKS["duplex"].path())
    await speak(client, 0)
    await asyncio.to_thread(worker.line_with, "copy store connected")
    await speak(client, 1)
    (store,) = apart.gateway.children

    apart.gateway.send(signal.SIGKILL)
    await asyncio.sleep(0.5)
    assert store.is_running()

    await asyncio.to_thread(store.wait, HANG_S)
    assert not (apart.folder / "data" / "copy-store.json").exists()
    await client.close()
