"""Workers as child processes of this one.

Each child runs `parley worker` with its settings, the secret among them, in its environment. Its
output appears here with its name in front. A child that dies is replaced, later and later if it
keeps dying; one that says its set-up is wrong is not. Children are in process groups of their own,
so a Ctrl-C at the terminal reaches the parent only, which ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from parley import logs
from parley.executor.base import Listener, WorkerNews
from parley.settings import Settings

SETUP_EXIT_CODE: Final = 2
"""How the command line ends when it cannot start and trying again would not help."""
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
SETTLED_S: Final = 60.0
"""A worker that lived this long is replaced without delay the next time."""
LINE_LIMIT_BYTES: Final = 1 << 16

log = logs.get(__name__)


def worker_command() -> list[str]:
    """How to start one worker that ends with this process."""
    return [sys.executable, "-m", "parley.executor.child", str(os.getpid()), "worker"]


class LocalExecutor:
    """See the module.

    Args:
        environments: one per worker, on top of our own environment.
        command: what to run.
        news: hears what happens.
        write: takes one line of a worker's output, its name in front.
    """

    def __init__(
        self,
        environments: Sequence[Mapping[str, str]],
        *,
        command: Sequence[str],
        news: Listener = lambda news: None,
        write: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._environments = environments
        self._command = command
        self._news = news
        self._write = write
        self._first_retry_s = first_retry_s
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    @property
    def workers(self) -> int:
        return len(self._environments)

    @property
    def pids(self) -> dict[int, int]:
        """Index → process id of those alive."""
        return {
            index: child.pid for index, child in self._children.items() if child.returncode is None
        }

    async def start(self) -> None:
        """Start every child once."""
        for index in range(self.workers):
            await self._spawn(index)

    async def watch(self) -> None:
        """Keep every child alive, each on its own; returns when all were given up."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(self.workers):
                tasks.create_task(self._keep(index), name=f"worker {index}")

    async def stop(self, grace_s: float) -> None:
        """SIGTERM to all, SIGKILL to the groups of those left after `grace_s`."""
        self._stopping.set()
        living = [child for child in self._children.values() if child.returncode is None]
        for child in living:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        waiting = [asyncio.create_task(child.wait()) for child in living]
        if waiting:
            await asyncio.wait(waiting, timeout=grace_s)
        for child in self._children.values():
            # The group too: a worker's own helpers must not stay behind.
            _kill_group(child.pid)
        if waiting:
            await asyncio.wait(waiting)

    async def _spawn(self, index: int) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **self._environments[index]},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=LINE_LIMIT_BYTES,
        )
        self._children[index] = child
        if self._stopping.is_set():
            # Born while everything is being stopped.
            _kill_group(child.pid)
        self._news(WorkerNews("started", index, child.pid))
        return child

    async def _keep(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        retry_s = self._first_retry_s
        while not self._stopping.is_set():
            child = self._children.get(index)
            if child is None or child.returncode is not None:
                child = await self._spawn(index)
            born_at = loop.time()
            await self._copy_output(index, child)
            code = await child.wait()
            _kill_group(child.pid)
            if self._stopping.is_set():
                return
            why = _how_it_ended(code)
            if code == SETUP_EXIT_CODE:
                log.error("worker cannot start", worker=index, why=why)
                self._news(WorkerNews("given_up", index, child.pid, why))
                return
            if loop.time() - born_at >= SETTLED_S:
                retry_s = self._first_retry_s
            log.warning("worker died", worker=index, why=why, retry_in_s=retry_s)
            self._news(WorkerNews("ended", index, child.pid, why, retry_s))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _copy_output(self, index: int, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while True:
            try:
                line = await child.stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError as rest:
                line = rest.partial
                if not line:
                    return
            except asyncio.LimitOverrunError as overrun:
                line = await child.stdout.read(max(1, overrun.consumed))
            text = line.decode(errors="replace").rstrip()
            if text:
                self._write(f"worker {index} │ {text}")


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _kill_group(pid: int) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


# Environments


def as_environment(settings: Settings) -> dict[str, str]:
    """Settings as the `PARLEY_…` variables that make a child read the same."""
    return {
        "PARLEY_" + "__".join(path).upper(): _text(value)
        for path, value in _leaves(settings)
        if value is not None
    }


def _leaves(part: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)


def visible_gpus(
    environment: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")
) -> list[str]:
    """The GPUs that children may use, as `CUDA_VISIBLE_DEVICES` names them. Found without CUDA, so
    that this process never holds device memory."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    try:
        return [str(index) for index, _ in enumerate(sorted(driver.iterdir()))]
    except OSError:
        return []


def local_environments(settings: Settings, gpus: Sequence[str]) -> list[dict[str, str]]:
    """One environment per worker of this machine: as many as asked for, else one per GPU, else one;
    spread over the GPUs. `settings` already name the gateway and the secret."""
    count = settings.workers or max(1, len(gpus))
    environments = []
    for index in range(count):
        worker = settings.worker.model_copy(
            update={"index": index, "host": "127.0.0.1", "port": 0, "advertise_url": None}
        )
        environment = as_environment(settings.model_copy(update={"worker": worker}))
        if gpus and settings.model.device in ("auto", "cuda"):
            environment["CUDA_VISIBLE_DEVICES"] = gpus[index % len(gpus)]
        environments.append(environment)
    return environments
