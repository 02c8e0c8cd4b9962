"""Runs workers as child processes, each with its settings, including the secret, in its
environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.executor.base import Executor
from parley.executor.child import PREPARE
from parley.executor.node_worker import (
    WORKER_COMMAND,
    NodeWorker,
    NodeWorkerState,
    kill_group,
    start,
)
from parley.protocol.networks import host_name
from parley.settings import Settings
from parley.settings.reader import variable
from parley.settings.tree import values


def prepare_worker(*modules: str) -> subprocess.Popen[str]:
    """Start a worker process that imports modules while its settings are being determined."""
    *child, worker = WORKER_COMMAND
    return start([*child, PREPARE, ",".join(modules), worker], {}, stdin=subprocess.PIPE)


def end_unused(prepared: subprocess.Popen[str]) -> None:
    """End a prepared process that no executor has taken."""
    if prepared.stdin is not None and not prepared.stdin.closed:
        kill_group(prepared.pid)
        prepared.communicate()


@dataclass(eq=False, repr=False)
class LocalExecutor(Executor):
    """See the module, and `Executor` for the other arguments.

    Args:
        prepared: a process that becomes the first child (`prepare_worker`).
    """

    prepared: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # The event loop has ended, and with it the watch.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake.set)

        for index, environment in enumerate(self.environments):
            # Not in a thread: Linux sends a child a signal when the thread that started it ends.
            child = NodeWorker(environment, self.command, prepared=self.prepared, wake=wake)
            self.prepared = None
            self._add(index, child)

    def _poll(self) -> dict[int, NodeWorkerState]:
        return {index: place.holder.state() for index, place in self._places.items()}

    def _stop(self, grace_s: float) -> None:
        children: list[NodeWorker] = [place.holder for place in self._places.values()]
        with ThreadPoolExecutor(max(1, len(children))) as threads:
            for stopping in [threads.submit(child.stop, grace_s) for child in children]:
                stopping.result()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM to all, and SIGKILL to the process groups of those left after `grace_s`."""
        await super().stop(grace_s)
        for index, state in (await asyncio.to_thread(self._poll)).items():
            for line in state.lines:
                self.write(index, line)


# Environments


def as_environment(settings: Settings) -> dict[str, str]:
    """Settings as the `PARLEY_…` variables from which a child reads the same values."""
    return {
        variable(name): _text(value)
        for name, value in values(settings).items()
        if value is not None
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)


def visible_gpus(
    environment: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")
) -> list[str]:
    """GPUs that children may use, in the format of `CUDA_VISIBLE_DEVICES`. Determined without CUDA,
    so that this process never allocates device memory."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    try:
        return [str(index) for index, _ in enumerate(sorted(driver.iterdir()))]
    except OSError:
        return []


def worker_environments(settings: Settings, count: int, **worker: Any) -> list[dict[str, str]]:
    """One environment for each of `count` workers, any of which may run on the same machine.

    Args:
        worker: settings of `[worker]`.
    """
    shared = settings.worker.model_copy(update={"port": 0, "advertise_url": None, **worker})
    environment = as_environment(settings.model_copy(update={"worker": shared}))
    return [{**environment, variable("worker.index"): str(index)} for index in range(count)]


def local_environments(settings: Settings, gpus: Sequence[str]) -> list[dict[str, str]]:
    """One environment per worker on this machine: the given number, or one per GPU, or one;
    distributed over the GPUs. `settings` must already contain the gateway, which listens on
    loopback as the workers will, and the secret."""
    count = settings.workers or max(1, len(gpus))
    host = host_name(settings.worker.gateway_url)
    environments = worker_environments(settings, count, host=host)
    if gpus and settings.model.device in ("auto", "cuda"):
        for index, environment in enumerate(environments):
            environment["CUDA_VISIBLE_DEVICES"] = gpus[index % len(gpus)]
    return environments
