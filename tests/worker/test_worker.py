"""A whole worker on loopback: real sockets, the parrot, the real voice detector, spoken words."""

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.faults import Gated
from tests.support.gateway_control import FakeGatewayControl, fake_gateway_control
from tests.support.patience import HANG_S
from tests.support.programs import python
from tests.support.raw_sockets import raw_client
from tests.support.sessions import KINDS
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from parley.engine.model import Model
from parley.engine.work import Stage
from parley.errors import SetupError
from parley.models.parrot import Parrot
from parley.protocol.control import (
    EXTENSIONS_HEADER,
    KIND_HEADER,
    LEASE_HEADER,
    QUEUE_WAIT_HEADER,
    SECRET_HEADER,
    SESSION_HEADER,
    Goodbye,
    Hello,
    Leave,
)
from parley.settings import load
from parley.transport import peer
from parley.worker import main
from parley.worker.main import DONE, FAILED, RESTART, WorkerProcess

SECRET = "between us"


@pytest.fixture(autouse=True)
def data_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker's data would lie among the sources."""
    monkeypatch.chdir(tmp_path)


@contextlib.asynccontextmanager
async def running(
    model: Model | None = None, **flags: Any
) -> AsyncIterator[tuple[WorkerProcess, FakeGatewayControl, asyncio.Task[int]]]:
    async with fake_gateway_control() as gateway:
        settings = load(
            flags={
                "worker.gateway_url": gateway.url,
                "worker.vad": "energy",
                "model.name": "parrot",
                "storage.recording": False,
                "security.worker_secret": SECRET,
                **flags,
            }
        )
        worker = WorkerProcess(settings, load_model=None if model is None else lambda: model)
        task = asyncio.create_task(worker.run())
        try:
            await gateway.until(Hello)
            yield worker, gateway, task
        finally:
            worker.stop()
            async with asyncio.timeout(HANG_S):
                await asyncio.gather(task, return_exceptions=True)


def session(
    worker: WorkerProcess, dialect: str, session_id: str = "session", **headers: str
) -> contextlib.AbstractAsyncContextManager[ClientConnection]:
    lease = {
        SECRET_HEADER: SECRET,
        LEASE_HEADER: f"lease {session_id}",
        SESSION_HEADER: session_id,
        KIND_HEADER: KINDS[dialect],
        EXTENSIONS_HEADER: "true",
        **headers,
    }
    return connect(
        f"ws://127.0.0.1:{worker.port}/session/{dialect}",
        additional_headers=lease,
        compression=None,
        max_size=None,
        proxy=None,
    )


async def send(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(HANG_S):
        message: dict[str, Any] = json.loads(await socket.recv())
    return message


async def until(socket: ClientConnection, *types: str) -> list[dict[str, Any]]:
    messages = [await receive(socket)]
    while messages[-1]["type"] not in types:
        messages.append(await receive(socket))
    return messages


async def closed(socket: ClientConnection) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(HANG_S):
            while True:
                await socket.recv()
    return socket.close_code


async def test_health_and_new_limits_are_there_before_and_after_the_model(monkeypatch):
    loads = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly() -> Parrot:
        asyncio.run_coroutine_threadsafe(loads.wait(), loop).result(HANG_S)
        return Parrot()

    async with fake_gateway_control() as gateway, httpx.AsyncClient(trust_env=False) as http:
        flags = {"worker.gateway_url": gateway.url, "worker.vad": "energy", "worker.index": 3}
        warm: list[int] = []
        worker = WorkerProcess(
            load(flags=flags),
            load_model=slowly,
            warm=lambda: warm.append(len(gateway.heard)),
        )
        task = asyncio.create_task(worker.run())
        url = f"http://127.0.0.1:{worker.port}/health"
        probed = await http.get(url)
        early = probed.json()
        assert gateway.heard == []
        worker.reload(lambda: load(flags={**flags, "limits.pause_s": 7.0}))
        loads.set()
        hello = await gateway.until(Hello)
        assert worker.host is not None
        assert worker.host.limits.pause_s == 7.0
        late = (await http.get(url)).json()
        worker.stop()

        assert await task == DONE
        # Once, before anybody knows of it.
        assert warm == [0]
        assert (probed.status_code, early["status"]) == (503, "initializing")
        assert early["model_loaded"] is False
        assert late["status"] == "healthy"
        assert late["worker_status"] == "idle"
        assert (hello.model, hello.slots, hello.index) == ("parrot", 1, 3)
        assert hello.url == f"http://127.0.0.1:{worker.port}"


async def test_stopping_while_the_model_loads_ends_immediately():
    loop = asyncio.get_running_loop()
    never = asyncio.Event()

    def for_ever() -> Parrot:
        asyncio.run_coroutine_threadsafe(never.wait(), loop).result(HANG_S)
        return Parrot()

    worker = WorkerProcess(load(flags={"worker.vad": "energy"}), load_model=for_ever)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    worker.stop()

    assert await asyncio.wait_for(task, HANG_S) == DONE
    never.set()


STOPPED_WHILE_LOADING = """
import atexit, os, runpy, signal, sys, threading
from parley import models

def load(settings):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()

models.load = load
atexit.register(print, "The interpreter ends.")
sys.argv = ["parley", "worker", "--vad", "energy", "--model", "parrot"]
runpy.run_module("parley", run_name="__main__")
"""


def test_no_interpreter_ends_under_a_thread_that_loads_the_model(tmp_path):
    done = python("-c", STOPPED_WHILE_LOADING, cwd=tmp_path)

    assert (done.returncode, "Shutting down" in done.stdout + done.stderr) == (0, True)
    assert "The interpreter ends." not in done.stdout


async def test_a_model_that_cannot_be_loaded_is_a_set_up_error():
    worker = WorkerProcess(load(flags={"model.name": "no such model", "worker.vad": "energy"}))

    with pytest.raises(SetupError, match="no such model"):
        await asyncio.wait_for(worker.run(), HANG_S)


async def test_who_begins_no_handshake_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(main, "CONNECTIONS_OF_ONE", 1)

    async with (
        running(None, **{"worker.http": False}) as (worker, *_),
        raw_client(worker.port) as first,
        raw_client(worker.port) as second,
    ):
        assert await second.rest() == b""
        first.abort()


async def test_without_a_secret_only_loopback_may_listen():
    with pytest.raises(SetupError, match="shared secret"):
        WorkerProcess(load(flags={"worker.host": "0.0.0.0"}))


async def test_a_caller_without_the_secret_and_a_lease_that_makes_no_sense_are_turned_away():
    async with running() as (worker, *_):
        for headers in (
            {SECRET_HEADER: ""},
            {SECRET_HEADER: "wrong"},
            {KIND_HEADER: "dance"},
            {LEASE_HEADER: ""},
            {QUEUE_WAIT_HEADER: "noon"},
        ):
            with pytest.raises(InvalidStatus, match="403"):
                async with session(worker, "chat", **headers):
                    pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows users")
async def test_without_a_secret_programs_of_other_users_are_turned_away(
    monkeypatch: pytest.MonkeyPatch,
):
    open_to_own: dict[str, Any] = {"security.worker_secret": ""}
    async with running(**open_to_own) as (worker, *_):
        async with session(worker, "chat"):
            pass
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(peer, "ROOT", -1)
        with pytest.raises(InvalidStatus, match="403"):
            async with session(worker, "chat"):
                pass


async def test_a_message_above_the_limit_closes_with_1009():
    small: dict[str, Any] = {"limits.frame_mb": 1}
    async with running(**small) as (worker, *_), session(worker, "duplex") as socket:
        await socket.send("x" * (1024 * 1024 + 1))

        assert await closed(socket) == 1009


async def test_memory_is_returned_to_the_system_when_a_session_has_ended(monkeypatch):
    trimmed = threading.Event()

    def trim(least_bytes: int) -> int:
        trimmed.set()
        return least_bytes

    monkeypatch.setattr(main, "READ_MEMORY_EVERY_S", 0.01)
    monkeypatch.setattr(main, "trim", trim)
    async with running() as (worker, *_):
        async with session(worker, "duplex", "omni_1") as socket:
            await send(socket, type="prepare")
            await until(socket, "prepared")
            assert not trimmed.is_set()

        assert await asyncio.to_thread(trimmed.wait, HANG_S)


async def test_leave_ends_sessions_and_the_process():
    async with running() as (worker, gateway, task):
        async with session(worker, "realtime") as socket:
            await send(socket, type="session.update", session={"instructions": "Be kind."})
            await until(socket, "session.created")
            await gateway.say(Leave(5.0))

            assert await receive(socket) == {
                "type": "session.closed",
                "reason": "server_shutdown",
            }
            assert await closed(socket) == 1001
        assert await asyncio.wait_for(task, HANG_S) == RESTART
        await gateway.until(Goodbye)


async def test_a_device_that_hangs_ends_the_process_with_a_failure(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("parley.worker.main.STEP_CHECK_S", 0.02)
    gate = Gated(Parrot(1))
    limits: dict[str, Any] = {"worker.step_limit_s": 0.2, "worker.cleanup_limit_s": 0.1}
    async with running(gate, **limits) as (worker, gateway, task):
        gate.shut(Stage.DECODE)
        async with session(worker, "chat", "hangs") as socket:
            await send(socket, messages=[{"role": "user", "content": "hi"}])
            await gate.arrived()
            goodbye = await gateway.until(Goodbye)
        gate.open()

        assert await asyncio.wait_for(task, HANG_S) == FAILED
        assert goodbye.reason == "failed"
