"""Workers as child processes of this one.

Each child runs `parley worker` with its settings, the secret among them, in its environment. Its
output appears here with its name in front. A child that dies is replaced, later and later if it
keeps dying; one that says its set-up is wrong is not. A child that hangs, i.e. gives no sign of
life (`alive`, or `SIGN_OF_LIFE` while it loads) for too long, is killed and so replaced. Children
are in process groups of their own, so a Ctrl-C at the terminal reaches the parent only, which ends
them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

from parley import logs
from parley.clock import Backoff
from parley.executor import base
from parley.executor.child import PREPARE
from parley.settings import Settings
from parley.settings.reader import variable
from parley.settings.tree import values

LINE_LIMIT_BYTES: Final = 1 << 16
CHECK_EVERY_S: Final = 1.0

log = logs.get(__name__)


def worker_command(*options: str) -> list[str]:
    """Command that starts a worker which ends with this process."""
    # -P: a file in the working folder must not stand for a module of its name.
    child = [sys.executable, "-P", "-m", "parley.executor.child", str(os.getpid())]
    return [*child, *options, "worker"]


async def prepare_worker(*modules: str) -> Process:
    """Start a worker process that imports modules while its settings are determined."""
    return await _start(worker_command(PREPARE, ",".join(modules)), {}, stdin=PIPE)


async def end_unused(prepared: Process) -> None:
    """End a prepared process that no executor has taken."""
    if prepared.stdin is not None and not prepared.stdin.is_closing():
        _kill_group(prepared.pid)
        await prepared.wait()


async def _start(command: Sequence[str], more: Mapping[str, str], *, stdin: int) -> Process:
    """Start a child in its own process group."""
    return await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **more},
        stdin=stdin,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
        limit=LINE_LIMIT_BYTES,
    )


@dataclass(eq=False, repr=False)
class LocalExecutor(base.Supervision):
    """See the module, and `Supervision` for the other arguments.

    Args:
        environments: one per worker, on top of our own environment.
        command: what to run.
        prepared: a process that becomes the first child (`prepare_worker`).
    """

    environments: Sequence[Mapping[str, str]]
    _: KW_ONLY
    command: Sequence[str]
    prepared: Process | None = None

    def __post_init__(self) -> None:
        self._due_at: dict[int, float] = {}
        """Process id → time at which it is killed unless it reports before."""
        self._is_ready: set[int] = set()
        """Process ids that have reported."""
        self._hung: dict[int, str] = {}
        """Process id → why it was killed."""
        self._children: dict[int, Process] = {}
        self._stopping = asyncio.Event()

    @property
    def workers(self) -> int:
        return len(self.environments)

    @property
    def pids(self) -> dict[int, int]:
        """Index → process id of the running children."""
        return {
            index: child.pid for index, child in self._children.items() if child.returncode is None
        }

    async def start(self) -> None:
        """Start every child once."""
        for index in range(self.workers):
            await self._spawn(index)

    async def watch(self) -> None:
        """Keep every child running; returns when all have been given up."""
        checking = asyncio.create_task(self._kill_hung(), name="worker heartbeats")
        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(self.workers):
                    tasks.create_task(self._keep(index), name=f"worker {index}")
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)

    def alive(self, index: int, pid: int) -> None:
        """A child reported; unknown process ids are ignored."""
        del index
        if pid in self._due_at:
            self._is_ready.add(pid)
            self._due_at[pid] = time.monotonic() + self.heartbeat_limit_s

    def _comes_further(self, pid: int) -> None:
        """A loading child has made progress."""
        if pid in self._due_at and pid not in self._is_ready:
            self._due_at[pid] = time.monotonic() + self.loading_limit_s

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

    async def _spawn(self, index: int) -> Process:
        environment = self.environments[index]
        child = await self._take_prepared(environment)
        if child is None:
            child = await _start(self.command, environment, stdin=DEVNULL)
        self._children[index] = child
        self._due_at[child.pid] = time.monotonic() + self.loading_limit_s
        if self._stopping.is_set():
            # Born while everything is being stopped.
            _kill_group(child.pid)
        self.news(base.WorkerNews("started", index, child.pid))
        return child

    async def _take_prepared(self, environment: Mapping[str, str]) -> Process | None:
        """The prepared process with its environment; None if there is none or it has ended."""
        child, self.prepared = self.prepared, None
        if child is None or child.returncode is not None:
            return None
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(dict(environment)).encode() + b"\n")
            await child.stdin.drain()
        except ConnectionError:
            return None
        finally:
            child.stdin.close()
        return child

    async def _keep(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(self.first_retry_s, base.LAST_RETRY_S, base.SETTLED_S)
        while not self._stopping.is_set():
            child = self._children.get(index)
            if child is None or child.returncode is not None:
                child = await self._spawn(index)
            born_at = loop.time()
            await self._copy_output(index, child)
            code = await child.wait()
            _kill_group(child.pid)
            why = self._forget(child.pid) or base.how_it_ended(code)
            if self._stopping.is_set():
                return
            if code == base.SETUP_EXIT_CODE:
                log.error("worker_start_failed", worker=index, why=why)
                self.news(base.WorkerNews("given_up", index, child.pid, why))
                return
            if code == base.RESTART_EXIT_CODE:
                log.info("worker_restarting", worker=index)
                self.news(base.WorkerNews("ended", index, child.pid, "restart ordered", 0.0))
                backoff.reset()
                continue
            pause_s = backoff.take(ran_s=loop.time() - born_at)
            log.warning("worker_died", worker=index, why=why, retry_in_s=pause_s)
            self.news(base.WorkerNews("ended", index, child.pid, why, pause_s))
            await asyncio.sleep(pause_s)

    def _forget(self, pid: int) -> str | None:
        """Remove an ended child; returns why it was killed, if it was."""
        self._due_at.pop(pid, None)
        self._is_ready.discard(pid)
        return self._hung.pop(pid, None)

    async def _kill_hung(self) -> None:
        while True:
            due_at = time.monotonic() + CHECK_EVERY_S
            await asyncio.sleep(CHECK_EVERY_S)
            now = time.monotonic()
            if now - due_at > CHECK_EVERY_S:
                # This process was suspended and could not hear heartbeats.
                self._due_at = {pid: at + now - due_at for pid, at in self._due_at.items()}
            for pid, at in self._due_at.items():
                if now > at and pid not in self._hung:
                    self._hung[pid] = (
                        f"hung: no heartbeat for {self.heartbeat_limit_s:g} s"
                        if pid in self._is_ready
                        else f"hung: no progress for {self.loading_limit_s:g} s while loading"
                    )
                    log.error("worker_hung_killed", pid=pid, why=self._hung[pid])
                    _kill_group(pid)

    async def _copy_output(self, index: int, child: Process) -> None:
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
            if text == base.SIGN_OF_LIFE:
                self._comes_further(child.pid)
            elif text:
                self.write(index, text)


def _kill_group(pid: int) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


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
    """GPUs that children may use, in the form of `CUDA_VISIBLE_DEVICES`. Determined without CUDA,
    so that this process never allocates device memory."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    try:
        return [str(index) for index, _ in enumerate(sorted(driver.iterdir()))]
    except OSError:
        return []


def local_environments(settings: Settings, gpus: Sequence[str]) -> list[dict[str, str]]:
    """One environment per worker on this machine: the given number, or one per GPU, or one; spread
    over the GPUs. `settings` already contain the gateway and the secret."""
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
