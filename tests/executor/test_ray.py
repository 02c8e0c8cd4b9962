"""Workers on a simulated Ray cluster: nodes are processes of this machine, GPUs are numbers."""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.contracts.executor import Kept, check_executor
from tests.support import redis_server
from tests.support.blocking import asked, eventually
from tests.support.blocking import hear as hear_now
from tests.support.blocking import prepare as prepare_now
from tests.support.gateways import running_gateway, until
from tests.support.patience import HANG_S, PROCESS_S
from tests.support.processes import running
from tests.support.talking import hear, say
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_now

from parley.executor import ray_cluster
from parley.executor.base import WorkerNews
from parley.executor.ray import RayExecutor
from parley.executor.ray_cluster import ray_environments
from parley.executor.scaling import Demand, Scaling
from parley.settings import Settings

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed"
    ),
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.starts_python,
    # Ray's own code on a newer Python and newer libraries.
    pytest.mark.filterwarnings("default"),
]


ray: Any


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """It takes a second to import: only by the process that runs these tests."""
    global ray
    ray = importlib.import_module("ray")


@pytest.fixture(scope="module")
def cluster(library: None) -> Iterator[Any]:
    """A head with one GPU and a node with another; with a Redis for the head's state where one is
    installed."""
    from ray.cluster_utils import Cluster

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # Processes for tasks, of which there are none; each actor has a process of its own.
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        if redis_server.PROGRAM is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            redis = stack.enter_context(redis_server.redis_server(folder))
            patch.setenv("RAY_REDIS_ADDRESS", f"127.0.0.1:{redis.port}")
            # A node stops when the head is away for longer; a busy machine takes its time.
            patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
        # Nobody looks at a dashboard, reads Ray's own log or adds nodes by themselves here.
        bare = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        head = {"num_cpus": 2, "num_gpus": 1, **bare}
        made = Cluster(initialize_head=True, head_node_args=head)
        stack.callback(made.shutdown)
        stack.callback(ray.shutdown)
        made.add_node(num_cpus=2, num_gpus=1)
        made.wait_for_nodes()
        yield made


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
        return self.gateway.runtime.dispatcher.worker_pool

    @property
    def usable(self) -> int:
        return sum(worker.is_usable for worker in self.pool)

    def pids(self) -> list[int]:
        return sorted(worker.hello.pid for worker in self.pool if worker.is_usable)

    def pids_of(self, kind: str) -> list[int]:
        return [news.pid for news in self.news if news.kind == kind]

    def make(self, **more: Any) -> RayExecutor:
        settings: Settings = self.gateway.gateway.settings
        ray_cluster.connect(self.cluster.address)
        executor = RayExecutor(
            ray_environments(
                settings, self.workers, gateway_url=self.gateway.url, fingerprint=None
            ),
            **more,
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
    async def watched(self, *, stop: bool = True, **more: Any) -> AsyncIterator[RayExecutor]:
        executor = self.make(**more)
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
    async with on_ray(cluster, 3, "waits") as on_cluster, on_cluster.watched():
        # A worker may be connected before its executor has heard that it waits no longer.
        await until(lambda: on_cluster.usable == 2 and len(on_cluster.pool.waiting) == 1, PROCESS_S)
        async with on_cluster.gateway.http() as http:
            status = (await http.get("/status")).json()
        (why,) = status["waiting_workers"].values()
        # On this thread: Ray sets signal handlers.
        added = cluster.add_node(num_cpus=2, num_gpus=1)

        await until(lambda: on_cluster.usable == 3, PROCESS_S)
        pids = on_cluster.pids()
        cluster.remove_node(added, allow_graceful=False)
        await until(lambda: on_cluster.usable == 2 and on_cluster.pool.waiting, PROCESS_S)

    assert why == "waiting for a GPU in the cluster"
    await all_gone(pids)


async def test_a_lost_nodes_worker_begins_again_on_a_spare_one(cluster: Any) -> None:
    added = [cluster.add_node(num_cpus=2, num_gpus=1)]
    try:
        async with on_ray(cluster, 3, "spare") as on_cluster, on_cluster.watched():
            await until(lambda: on_cluster.usable == 3, PROCESS_S)
            before = on_cluster.pids()
            # On this thread: Ray sets signal handlers.
            added.append(cluster.add_node(num_cpus=2, num_gpus=1))
            cluster.remove_node(added.pop(0), allow_graceful=False)
            await until(lambda: on_cluster.usable < 3, PROCESS_S)
            await until(lambda: on_cluster.usable == 3, PROCESS_S)
            after = on_cluster.pids()
    finally:
        for node in added:
            cluster.remove_node(node, allow_graceful=False)

    assert len(set(before) & set(after)) == 2
    await all_gone([*before, *after])


def asked_for() -> int:
    """How many bundles an autoscaler of this cluster is to have room for."""
    from ray.experimental.internal_kv import _internal_kv_get

    return len(json.loads(_internal_kv_get(b"autoscaler_resource_request") or "[]"))


async def test_people_who_wait_bring_more_workers_and_an_idle_one_is_given_back(
    cluster: Any,
) -> None:
    async with on_ray(cluster, 2, "scaled") as on_cluster:
        pool, queue = on_cluster.pool, on_cluster.gateway.runtime.dispatcher.queue

        def look() -> Demand:
            idle = frozenset(worker.hello.index for worker in pool if worker.is_empty)
            return Demand(len(queue), len(pool.leases), 1, idle)

        policy = Scaling(1, 2, up_after_s=1.0, down_after_s=3.0)
        async with on_cluster.watched(scaling=policy, look=look, retire=pool.retire):
            await until(lambda: on_cluster.usable == 1, PROCESS_S)
            alone, asked = on_cluster.pids(), [asked_for()]
            async with (
                connect(on_cluster.gateway.ws("/ws/duplex/omni_1")) as one,
                connect(on_cluster.gateway.ws("/ws/duplex/omni_2")) as two,
            ):
                assert (await hear(one))["type"] == "queue_done"
                while (await hear(two))["type"] != "queue_done":
                    assert len(queue) == 1
                asked.append(asked_for())
                both = on_cluster.pids()
                # The first to hang up leaves the other's worker alone.
                await one.close()
                await until(lambda: on_cluster.pids_of("retired"), PROCESS_S)
                assert on_cluster.usable == 1
                asked.append(asked_for())
                await say(two, type="prepare")
                assert (await hear(two))["type"] == "prepared"
        asked.append(asked_for())

    assert alone[0] in both
    assert asked == [1, 2, 1, 0]
    await all_gone(both)


async def test_workers_that_a_smaller_server_does_not_want_end(cluster: Any) -> None:
    async with on_ray(cluster, 2, "smaller") as on_cluster:
        async with on_cluster.watched(stop=False):
            await until(lambda: on_cluster.usable == 2, PROCESS_S)
            before = on_cluster.pids()
        on_cluster.workers = 1
        async with on_cluster.watched():
            await until(lambda: on_cluster.usable == 1, PROCESS_S)
            (kept,) = on_cluster.pids()
            assert kept in before
            names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
            assert names == ["parley-smaller-0"]
        await all_gone(before)


async def test_an_actor_killed_in_a_session_is_told_and_replaced(cluster: Any) -> None:
    async with on_ray(cluster, 1, "killed") as on_cluster, on_cluster.watched():
        await until(lambda: on_cluster.usable == 1, PROCESS_S)
        (pid,) = on_cluster.pids()
        async with connect(on_cluster.gateway.ws("/ws/duplex/omni_1")) as socket:
            assert (await hear(socket))["type"] == "queue_done"
            await say(socket, type="prepare")
            assert (await hear(socket))["type"] == "prepared"
            actor_process = psutil.Process(pid).parent()
            assert actor_process is not None
            actor_process.kill()
            # The worker ends in order with its actor, or is lost: the client learns either way.
            told = await hear(socket)
        await until(lambda: on_cluster.usable == 1 and on_cluster.pids() != [pid], PROCESS_S)
        async with connect(on_cluster.gateway.ws("/ws/duplex/omni_2")) as socket:
            assert (await hear(socket))["type"] == "queue_done"
        pids = on_cluster.pids()

    assert told["code"] in ("worker_lost", "service_unavailable")
    await all_gone([pid, *pids])


async def test_a_new_driver_finds_its_workers_and_starts_no_doubles(cluster: Any) -> None:
    async with on_ray(cluster, 2, "adopted") as on_cluster:
        async with on_cluster.watched(stop=False):
            await until(lambda: on_cluster.usable == 2, PROCESS_S)
            before = on_cluster.pids()
        on_cluster.news.clear()
        async with on_cluster.watched():
            await until(lambda: len(on_cluster.news) == 2, PROCESS_S)

            assert {news.pid for news in on_cluster.news if news.kind == "started"} == set(before)
            assert on_cluster.pids() == before
            names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
            assert sorted(names) == ["parley-adopted-0", "parley-adopted-1"]
        await all_gone(before)


async def test_a_node_with_another_version_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.executor.ray.__version__", "99.0")
    lines: list[str] = []
    async with on_ray(cluster, 1, "skew") as on_cluster:
        executor = on_cluster.make()
        executor.write = lambda index, line: lines.append(line)
        await executor.start()
        try:
            await asyncio.wait_for(executor.watch(), PROCESS_S)
        finally:
            await executor.stop(1.0)

    # On a busy machine Ray may take long enough to be waited for.
    assert [news.kind for news in on_cluster.news if news.kind != "waiting"] == ["given_up"]
    assert "the gateway 99.0" in lines[0]


async def test_the_contract(cluster: Any) -> None:
    ray_cluster.connect(cluster.address)

    def make(kept: Kept, program: str, workers: int) -> RayExecutor:
        return RayExecutor(
            [{"N": str(index)} for index in range(workers)],
            cluster="contract",
            command=("-c", program),
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
        workers = f"{server.url}/workers"
        eventually(lambda: len(asked(workers)[1]["workers"]) == 2, "not two workers", PROCESS_S)
        ws = "ws" + server.url.removeprefix("http")
        # A call on each at the same time.
        with (
            connect_now(f"{ws}/ws/duplex/omni_1?extensions=true") as one,
            connect_now(f"{ws}/ws/duplex/omni_2?extensions=true") as two,
        ):
            heard = [hear_now(client)["type"] for client in (one, two)]
        ours = workers_of(tmp_path)
        server.send(signal.SIGINT)
        code = server.popen.wait(PROCESS_S)
        _, alive = psutil.wait_procs(ours, HANG_S)

    assert heard == ["queue_done", "queue_done"]
    assert len(ours) == 2
    assert (code, alive) == (0, [])


@contextlib.contextmanager
def head_away(cluster: Any) -> Iterator[None]:
    """The cluster without its control service; it is back afterwards, whatever happened."""
    head = cluster.head_node
    head.kill_gcs_server(check_alive=False)
    try:
        yield
    finally:
        head.start_gcs_server()


@pytest.mark.skipif(redis_server.PROGRAM is None, reason="no redis-server is installed")
def test_a_call_continues_while_the_head_is_away_and_workers_are_replaced_when_it_is_back(
    cluster: Any, tmp_path: Path
) -> None:
    flags = ("--executor", "ray", "--model", "parrot", "--workers", "1", "--data-dir", "data")
    where = ("--ray-address", cluster.address, "--host", "127.0.0.1", "--port", "0", "--http")

    def ask(path: str) -> Any:
        return asked(f"{server.url}{path}")

    def there() -> set[str]:
        workers = ask("/workers")[1]["workers"]
        return {one["worker_id"] for one in workers if one["status"] not in ("offline", "loading")}

    with running(tmp_path, "serve", *flags, *where) as server:
        server.line_with("ready after", 2 * PROCESS_S)
        (worker,) = eventually(there, "no worker", PROCESS_S)
        ws = "ws" + server.url.removeprefix("http")
        with contextlib.ExitStack() as away:
            with connect_now(f"{ws}/ws/duplex/omni_1?extensions=true") as call:
                prepared = prepare_now(call)
                away.enter_context(head_away(cluster))
                assert ask("/ready")[0] == 200
                call.send('{"type": "stop"}')
                assert hear_now(call)["type"] == "stopped"
            with connect_now(f"{ws}/ws/duplex/omni_2?extensions=true") as call:
                # The slot is free again, if not in the very moment of the hang-up.
                while (said := hear_now(call)["type"]) != "queue_done":
                    assert said in ("queued", "queue_update")
            finished = [one["session_id"] for one in ask("/api/sessions")[1]["recordings"]]

        (process,) = workers_of(tmp_path)
        actor_process = process.parent()
        assert actor_process is not None
        actor_process.kill()
        eventually(lambda: worker not in there(), "it is not lost", PROCESS_S)
        unready = ask("/ready")[0]
        eventually(lambda: there() - {worker}, "it is not replaced", PROCESS_S)
        ready = ask("/ready")[0]
        ours = workers_of(tmp_path)
        with head_away(cluster):
            server.send(signal.SIGINT)
            code = server.popen.wait(PROCESS_S)
            _, alive = psutil.wait_procs(ours, HANG_S)

    assert prepared["recording_session_id"] in finished
    assert (unready, ready, code) == (503, 200, 0)
    assert (len(ours), alive) == (1, [])


def workers_of(folder: Path) -> list[psutil.Process]:
    """Worker processes of a server whose data lies below `folder`."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "parley.executor.child" in (process.info["cmdline"] or [])
        and "worker" in process.info["cmdline"]
        and str(folder) in str(_environment(process).get("PARLEY_STORAGE__DATA_DIR"))
    ]


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}
