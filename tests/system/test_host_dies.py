"""A host dies, gateway and worker: its sessions continue on another host, from Redis."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path

import pytest
from tests.support.blocking import asked, eventually
from tests.support.processes import Process, running
from tests.support.redis_server import RedisServer, redis_server
from tests.support.resumed_talks import MAILBOX_UNITS, TALKS, comparable, whole_talk
from tests.support.resuming import WaitingClient

pytestmark = pytest.mark.starts_python


def sessions_in(redis: RedisServer) -> list[bytes]:
    return [key for key in redis.keys("parley:session:*") if b":index" not in key]


async def ready(url: str) -> None:
    await asyncio.to_thread(eventually, lambda: asked(f"{url}/ready")[0] == 200, f"{url} not ready")


class Hosts:
    """Gateways with one data folder, and workers with one of their own each; all know one Redis."""

    def __init__(self, folder: Path, redis: RedisServer, stack: contextlib.ExitStack) -> None:
        self.folder, self.redis, self._stack = folder, redis, stack
        self.urls: dict[str, str] = {}

    def gateway(self, name: str, words: str) -> Process:
        process = self._start(
            "gateway",
            name,
            f'[standby]\nredis_url = "{self.redis.url}"\nname = "{name}"\nttl_s = 4.0\n',
            *("--http", "--host", "127.0.0.1", "--port", "0"),
        )
        self.urls[name] = json.loads(process.line_with(words))["url"]
        return process

    def worker(self, name: str) -> Process:
        process = self._start(
            "worker",
            f"worker_{name}",
            f'session_logs = "{self.redis.url}"\n[limits]\nmailbox_units = {MAILBOX_UNITS}\n',
            *("--gateway", ",".join(self.urls.values()), "--model", "parrot"),
            *("--vad", "energy", "--slots", "6"),
        )
        process.line_with("gateway_welcomed")
        return process

    def _start(self, verb: str, name: str, config: str, *flags: str) -> Process:
        data = self.folder / ("gateways" if verb == "gateway" else name)
        storage = f'[storage]\ndata_dir = "{data}"\n'
        path = self.folder / f"{name}.toml"
        path.write_text(config + storage if verb == "gateway" else storage + config)
        return self._stack.enter_context(running(self.folder, verb, *flags, "--config", str(path)))


async def test_a_host_that_dies_loses_no_session(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis, contextlib.ExitStack() as stack:
        hosts = Hosts(tmp_path, redis, stack)
        gateway = hosts.gateway("a", "gateway ready")
        hosts.gateway("b", "gateway_on_standby")
        worker = hosts.worker("a")
        await ready(hosts.urls["a"])
        there, may_continue = asyncio.Semaphore(0), asyncio.Event()
        talking: list[WaitingClient] = []

        def talk(name: str, waits_after: int = -1) -> asyncio.Task[WaitingClient]:
            path = TALKS[name].path()
            client = WaitingClient("ws" + hosts.urls["a"].removeprefix("http") + path)
            client.waits_after, client.there, client.may_continue = waits_after, there, may_continue
            talking.append(client)
            return asyncio.create_task(whole_talk(client, name, path))

        whole = {name: await talk(name) for name in TALKS}
        talking.clear()
        talks = {name: talk(name, len(whole[name].heard) // 2) for name in TALKS}
        for _ in talks:
            await there.acquire()
        await asyncio.to_thread(hosts.worker, "b")

        for process in (gateway, worker):
            process.send(signal.SIGKILL)
        await ready(hosts.urls["b"])
        for client in talking:
            client.url = client.url.replace(hosts.urls["a"][4:], hosts.urls["b"][4:])
        may_continue.set()

        for name, task in talks.items():
            after = await task
            assert comparable(after.heard) == comparable(whole[name].heard), name
            assert (after.doubles, after.holes, after.resumes) == (0, 0, 1), name

        def is_free() -> bool:
            return not asked(f"{hosts.urls['b']}/status")[1]["busy_workers"]

        await asyncio.to_thread(eventually, is_free, "a slot stays taken")
        await asyncio.to_thread(eventually, lambda: not sessions_in(redis), "sessions are left")
