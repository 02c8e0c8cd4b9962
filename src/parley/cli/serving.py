"""A running server: the gateway in this process, workers as child processes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from parley import __version__, logs
from parley.cli.announce import announce, described
from parley.cli.signals import ending_on_signals
from parley.errors import SetupError
from parley.executor.base import Executor, WorkerNews, write_line
from parley.executor.local import LocalExecutor, local_environments, visible_gpus
from parley.executor.ray import RayExecutor
from parley.executor.ray_cluster import (
    cluster_gpus,
    cluster_secret,
    connect,
    gateway_address,
    ray_environments,
)
from parley.executor.scaling import Demand, Scaling
from parley.gateway.main import Gateway
from parley.gateway.worker_pool import Worker
from parley.settings import Settings
from parley.tasks import wait_for_event

WORKERS_GRACE_S: Final = 5.0
"""Time for workers to exit after the gateway has ended their sessions."""
PROGRESS_EVERY_S: Final = 5.0
_ERROR_LINE: Final = re.compile(r"(^|\"message\": ?\")error: ")
"""Output of a worker that cannot start; see `parley.cli.explain`."""


class Serve:
    """See the module.

    Args:
        began_at: monotonic time from which the time until it is ready is measured.
        prepared: a process that becomes the first worker (`prepare_worker`).
        read: reads the settings again, for `reload`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        began_at: float | None = None,
        prepared: subprocess.Popen[str] | None = None,
        read: Callable[[], Settings] | None = None,
    ) -> None:
        secret = settings.security.worker_secret
        if not secret and settings.executor == "ray":
            secret = cluster_secret(settings.storage.data_dir)
        secret = secret or secrets.token_hex(32)
        security = settings.security.model_copy(update={"worker_secret": secret})
        # Workers write to this process, not to the terminal: their log format is determined here.
        style = settings.log.format
        if style == "auto":
            style = "text" if sys.stderr.isatty() else "json"
        log = settings.log.model_copy(update={"format": style})
        self._settings = settings.model_copy(update={"security": security, "log": log})
        self._gateway = Gateway(self._settings)
        if read is not None:
            self._gateway.reread_by(read, settings, has_own_workers=True)
        self._executor: Executor | None = None
        self._prepared = prepared
        self._began_at = time.monotonic() if began_at is None else began_at
        self._given_up: list[str] = []
        self._joined = asyncio.Event()
        self._failing = False

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            SetupError: no worker can be started.
        """
        gateway = self._gateway
        started = asyncio.Event()
        with ending_on_signals(
            gateway.stop,
            gateway.stop_now,
            drain=lambda: gateway.stop(self._settings.gateway.drain_timeout_s),
            reload=gateway.reload,
        ):
            serving = asyncio.create_task(gateway.serve(started.set), name="gateway")
            waiting = asyncio.create_task(started.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            tasks: list[asyncio.Task[Any]] = []
            try:
                if not serving.done():
                    await self._start_workers()
                    assert self._executor is not None
                    tasks = [
                        asyncio.create_task(self._executor.watch(), name="executor"),
                        asyncio.create_task(self._progress(), name="progress"),
                    ]
                    await asyncio.wait({serving, tasks[0]}, return_when=asyncio.FIRST_COMPLETED)
                    gateway.stop()
                await serving
                if tasks and tasks[0].done():
                    tasks[0].result()
                    raise SetupError(
                        "No worker could start.",
                        hint=f"The lines above say why ({self._given_up[-1]}). "
                        "`parley doctor`, with the same --model, checks this machine.",
                    )
            finally:
                gateway.stop_now()
                if self._executor is not None:
                    await self._executor.stop(WORKERS_GRACE_S)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, serving, return_exceptions=True)

    async def _start_workers(self) -> None:
        on_ray = self._settings.executor == "ray"
        executor = await (self._on_ray() if on_ray else self._on_this_machine())
        self._executor = executor
        worker_pool = self._gateway.runtime.dispatcher.worker_pool
        worker_pool.alive.listen(
            lambda worker: executor.alive(worker.hello.index, worker.hello.pid)
        )
        worker_pool.joined.listen(self._worker_joined)
        count = executor.workers
        announce(
            "loading",
            f"parley {__version__}: loading model '{self._settings.model.name}' "
            f"in {count} {'worker' if count == 1 else 'workers'} …",
        )
        await executor.start()

    async def _on_this_machine(self) -> Executor:
        worker = self._settings.worker.model_copy(
            update={"gateway_url": await self._gateway.open_internal()}
        )
        settings = self._settings.model_copy(update={"worker": worker})
        return LocalExecutor(
            local_environments(settings, visible_gpus(os.environ)),
            news=self._heard,
            write=self._worker_wrote,
            heartbeat_limit_s=worker.heartbeat_limit_s,
            loading_limit_s=worker.loading_limit_s,
            prepared=self._prepared,
        )

    async def _on_ray(self) -> Executor:
        settings = self._settings
        await asyncio.to_thread(connect, settings.ray.address)
        least = settings.workers or max(1, await asyncio.to_thread(cluster_gpus))
        most = settings.ray.workers_max or least
        environments = ray_environments(
            settings,
            max(least, most),
            gateway_url=gateway_address(settings, self._gateway.port),
            fingerprint=self._gateway.fingerprint,
        )
        return RayExecutor(
            environments,
            cluster=settings.ray.cluster,
            gpus=settings.ray.gpus_per_worker,
            news=self._heard,
            write=self._worker_wrote,
            heartbeat_limit_s=settings.worker.heartbeat_limit_s,
            loading_limit_s=settings.worker.loading_limit_s,
            scaling=Scaling(
                least,
                most,
                up_after_s=settings.ray.scale_up_after_s,
                down_after_s=settings.ray.scale_down_after_s,
            )
            if most > least
            else None,
            look=self._demand,
            retire=self._gateway.runtime.dispatcher.worker_pool.retire,
        )

    def _demand(self) -> Demand:
        dispatcher = self._gateway.runtime.dispatcher
        workers = list(dispatcher.worker_pool)
        return Demand(
            waiting=len(dispatcher.queue),
            running=len(dispatcher.worker_pool.leases),
            slots=max((worker.slots for worker in workers), default=1),
            idle=frozenset(worker.hello.index for worker in workers if worker.is_empty),
        )

    def _worker_wrote(self, index: int, line: str) -> None:
        if logs.is_json():
            line = _as_json(index, line)
            logs.print_line(line, sys.stderr)
        else:
            write_line(index, line)
        # Do not report progress of loading after the reason for its failure.
        self._failing = self._failing or _ERROR_LINE.search(line) is not None

    def _worker_joined(self, worker: Worker) -> None:
        hello = worker.hello
        slots = "1 slot" if hello.slots == 1 else f"{hello.slots} slots"
        announce(
            "worker_ready",
            f"worker {hello.index} ready: {hello.model} on {hello.device}, {slots}",
        )
        if not self._joined.is_set():
            self._joined.set()
            took_s = time.monotonic() - self._began_at
            # As `parley gateway` does.
            gc.freeze()
            announce(
                "ready",
                f"ready after {took_s:.1f} s: {self._gateway.url}  (Ctrl-C ends)",
                url=self._gateway.url,
            )

    def _heard(self, news: WorkerNews) -> None:
        worker_pool = self._gateway.runtime.dispatcher.worker_pool
        match news.kind:
            case "waiting":
                worker_pool.process_waits(news.index, news.why)
                announce("worker_waiting", f"worker {news.index}: {news.why}", err=True)
            case "started":
                worker_pool.process_begins(news.index, pid=news.pid)
            case "ended":
                self._failing = False
                worker_pool.process_ended(news.index, news.pid)
                worker_pool.process_begins(news.index, in_s=news.retry_in_s)
                announce(
                    "worker_ended",
                    f"worker {news.index} ended ({news.why}); "
                    f"starting it again in {news.retry_in_s:g} s",
                    err=True,
                )
            case "retired":
                worker_pool.process_ended(news.index, news.pid)
                announce("worker_given_back", f"worker {news.index} given back: {news.why}")
            case "given_up":
                self._given_up.append(news.why)
                worker_pool.process_ended(news.index, news.pid)
                announce(
                    "worker_given_up", f"worker {news.index} cannot start ({news.why})", err=True
                )

    async def _progress(self) -> None:
        """Print progress while a model loads."""
        while not await wait_for_event(self._joined, PROGRESS_EVERY_S):
            waited_s = time.monotonic() - self._began_at
            if not self._failing:
                announce("still_loading", f"still loading, {waited_s:.0f} s")


def _as_json(index: int, line: str) -> str:
    """A worker's log line as one JSON object that names the worker."""
    try:
        facts = json.loads(line)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        level = "error" if line.startswith("error: ") else "info"
        facts = described("worker_wrote", line, level=level, logger="worker")
    return json.dumps({**facts, "worker_index": index}, ensure_ascii=False)
