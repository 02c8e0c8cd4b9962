"""Workers on a simulated Ray cluster: nodes are processes of this machine, GPUs are numbers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.contracts.executor import Kept, check_executor
from tests.support.gateways import hear, running_gateway, say, until
from tests.support.patience import HANG_S, PROCESS_S
from tests.support.processes import running
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_now

from parley.executor.base import WorkerNews
from parley.executor.ray import RayExecutor, ray_environments
from parley.settings import Settings

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),
    # Ray's own code on a newer Python and newer libraries.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one GPU and a node with another."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
    try:
        made.add_node(num_cpus=2, num_gpus=1)
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    ray.shutdown()


SECRET = "a-secret-for-tests"


class OnRay:
    """A gateway in this process, and workers in the cluster."""

    def __init__(self, gateway: Any, cluster: Any, workers: int, name: str) -> None:
        self.gateway = gateway
        self.cluster, self.workers, self.name = cluster, workers, name
        self.news: list[WorkerNews] = []

    @property
    def pool(self) -> Any:
        return self.gateway.runtime.worker_pool

    @property
    def usable(self) -> int:
        return sum(worker.is_usable for worker in self.pool)

    def pids(self) -> list[int]:
        return sorted(worker.hello.pid for worker in self.pool if worker.is_usable)

    def make(self) -> RayExecutor:
        settings: Settings = self.gateway.gateway.settings
        executor = RayExecutor(
            ray_environments(
                settings, self.workers, gateway_url=self.gateway.url, fingerprint=None
            ),
            address=self.cluster.address,
            cluster=self.name,
            news=self._heard,
            first_retry_s=0.1,
        )
        return executor

    def _heard(self, news: WorkerNews) -> None:
        self.news.append(news)
        if news.kind == "waiting":
            self.pool.process_waits(news.index, news.why)
        elif news.kind == "started":
            self.pool.process_begins(news.index, pid=news.pid)
        else:
            self.pool.process_ended(news.index, news.pid)

    @contextlib.asynccontextmanager
    async def watched(self, *, stop: bool = True) -> AsyncIterator[RayExecutor]:
        executor = self.make()
        await executor.start()
        watching = asyncio.create_task(executor.watch())
        try:
            yield executor
        finally:
            if stop:
                await executor.stop(2.0)
            else:
                executor._stopping.set()
            await asyncio.wait_for(watching, HANG_S)


@contextlib.asynccontextmanager
async def on_ray(cluster: Any, workers: int, name: str) -> AsyncIterator[OnRay]:
    async with running_gateway(
        model={"name": "parrot"},
        worker={"vad": "energy"},
        security={"worker_secret": SECRET},
    ) as gateway:
        yield OnRay(gateway, cluster, workers, name)


async def all_gone(pids: list[int]) -> None:
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids), HANG_S)


async def test_more_workers_than_gpus_wait_and_a_new_node_takes_them(cluster: Any) -> None:
    async with on_ray(cluster, 3, "waits") as house, house.watched():
        await until(lambda: house.usable == 2 and house.pool.waiting, PROCESS_S)
        async with house.gateway.http() as http:
            status = (await http.get("/status")).json()
        (why,) = status["waiting_workers"].values()
        # On this thread: Ray sets signal handlers.
        added = cluster.add_node(num_cpus=2, num_gpus=1)

        await until(lambda: house.usable == 3, PROCESS_S)
        pids = house.pids()
        cluster.remove_node(added, allow_graceful=False)
        await until(lambda: house.usable == 2 and house.pool.waiting, PROCESS_S)

    assert why == "waiting for a GPU in the cluster"
    await all_gone(pids)


async def test_an_actor_killed_in_a_session_is_told_and_replaced(cluster: Any) -> None:
    async with on_ray(cluster, 1, "killed") as house, house.watched():
        await until(lambda: house.usable == 1, PROCESS_S)
        (pid,) = house.pids()
        async with connect(house.gateway.ws("/ws/duplex/omni_1")) as socket:
            assert (await hear(socket))["type"] == "queue_done"
            await say(socket, type="prepare")
            assert (await hear(socket))["type"] == "prepared"
            actor_process = psutil.Process(pid).parent()
            assert actor_process is not None
            actor_process.kill()
            # The worker ends in order with its actor, or is lost: the client is told either way.
            told = await hear(socket)
        await until(lambda: house.usable == 1 and house.pids() != [pid], PROCESS_S)
        async with connect(house.gateway.ws("/ws/duplex/omni_2")) as socket:
            assert (await hear(socket))["type"] == "queue_done"
        pids = house.pids()

    assert told["code"] in ("worker_lost", "service_unavailable")
    await all_gone([pid, *pids])


async def test_a_new_driver_finds_its_workers_and_starts_no_doubles(cluster: Any) -> None:
    async with on_ray(cluster, 2, "adopted") as house:
        async with house.watched(stop=False):
            await until(lambda: house.usable == 2, PROCESS_S)
            before = house.pids()
        house.news.clear()
        async with house.watched():
            await until(lambda: len(house.news) == 2, PROCESS_S)

            assert {news.pid for news in house.news if news.kind == "started"} == set(before)
            assert house.pids() == before
            names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
            assert sorted(names) == ["parley-adopted-0", "parley-adopted-1"]
        await all_gone(before)


async def test_a_node_with_another_version_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.executor.ray.__version__", "99.0")
    lines: list[str] = []
    async with on_ray(cluster, 1, "skew") as house:
        executor = house.make()
        executor._write = lambda index, line: lines.append(line)
        await executor.start()
        try:
            await asyncio.wait_for(executor.watch(), PROCESS_S)
        finally:
            await executor.stop(1.0)

    assert [news.kind for news in house.news] == ["given_up"]
    assert "the gateway 99.0" in lines[0]


async def test_the_contract(cluster: Any) -> None:
    def make(kept: Kept, program: str, workers: int) -> RayExecutor:
        return RayExecutor(
            [{"N": str(index)} for index in range(workers)],
            address=cluster.address,
            cluster="contract",
            command=("-c", program.replace("{", "{{").replace("}", "}}")),
            news=kept.news.append,
            write=lambda index, line: kept.lines.append((index, line)),
            first_retry_s=0.1,
        )

    await check_executor(make)


def test_serve_on_two_nodes_as_the_docs_print_it_ends_with_ctrl_c(
    cluster: Any, tmp_path: Path
) -> None:
    flags = ("--executor", "ray", "--model", "parrot", "--workers", "2")
    where = ("--ray-address", cluster.address, "--host", "127.0.0.1", "--port", "0", "--http")
    with running(tmp_path, "serve", *flags, *where) as server:
        server.line_with("ready after", 2 * PROCESS_S)
        deadline = time.monotonic() + PROCESS_S
        while True:
            with urllib.request.urlopen(f"{server.url}/workers", timeout=HANG_S) as answer:
                workers = json.loads(answer.read())["workers"]
            if len(workers) == 2:
                break
            assert time.monotonic() < deadline, workers
            time.sleep(0.2)
        ws = "ws" + server.url.removeprefix("http")
        # A call on each at the same time.
        with (
            connect_now(f"{ws}/ws/duplex/omni_1?extensions=true") as one,
            connect_now(f"{ws}/ws/duplex/omni_2?extensions=true") as two,
        ):
            heard = [json.loads(client.recv(HANG_S))["type"] for client in (one, two)]
        ours = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "parley.executor.child" in (process.info["cmdline"] or [])
            and "worker" in process.info["cmdline"]
            and str(tmp_path) in str(_environment(process).get("PARLEY_STORAGE__DATA_DIR"))
        ]
        server.send(signal.SIGINT)
        code = server.popen.wait(PROCESS_S)
        _, alive = psutil.wait_procs(ours, HANG_S)

    assert heard == ["queue_done", "queue_done"]
    assert len(ours) == 2
    assert (code, alive) == (0, [])


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}
