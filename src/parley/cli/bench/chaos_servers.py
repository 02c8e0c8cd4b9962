"""Gateway and workers of `parley bench chaos` and `parley bench hour`, as processes that can be
killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from parley.errors import SetupError

START_S: Final = 120.0
"""How long servers may take to begin, and slots to become free."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time during which a process was not there. Monotonic seconds.

    Args:
        kind: `gateway` or `worker`.
        began_s: when it was killed.
        ended_s: when another could take its place; None: not yet.
    """

    kind: str
    began_s: float
    ended_s: float | None = None


class Servers:
    """A gateway on one port, whatever happens to it, and its workers.

    Args:
        folder: where they keep their files.
        model: of every worker.
        slots: of each worker.
        workers: how many.
        environment: settings besides.
    """

    def __init__(
        self,
        folder: str,
        *,
        model: str,
        slots: int,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._model = model
        self._slots = slots
        self._count = workers
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._environment = {
            **os.environ,
            "PARLEY_SECURITY__WORKER_SECRET": secrets.token_hex(16),
            # Not every dialect lets its client say so.
            "PARLEY_STORAGE__RECORDING": "false",
            **(environment or {}),
        }
        self._processes: list[asyncio.subprocess.Process] = []
        self._gateway: asyncio.subprocess.Process | None = None
        self._workers: list[asyncio.subprocess.Process] = []
        self._one_at_a_time = asyncio.Lock()
        self.outages: list[Outage] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def gateway_pid(self) -> int:
        assert self._gateway is not None
        return self._gateway.pid

    @property
    def worker_pid(self) -> int:
        """Of the newest worker."""
        return self._workers[-1].pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls,
        *,
        model: str = "parrot",
        slots: int = 1,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Servers]:
        """Up and free while the block runs."""
        with tempfile.TemporaryDirectory(prefix="parley-chaos-") as folder:
            servers = cls(
                folder, model=model, slots=slots, workers=workers, environment=environment
            )
            try:
                await servers._start_gateway()
                for _ in range(workers):
                    await servers._start_worker()
                await servers.until_free()
                yield servers
            finally:
                await servers._end()

    # ---- what happens to them --------------------------------------------------------------

    async def replace_gateway(self, delay_s: float) -> None:
        """Kill it after a moment, and start another at its place."""
        async with self._one_at_a_time:
            await asyncio.sleep(delay_s)
            assert self._gateway is not None
            number = self._out("gateway")
            self._gateway.kill()
            await self._gateway.wait()
            await self._start_gateway()
            self._back(number)

    async def replace_worker(self, delay_s: float) -> None:
        """Kill one after a moment, and start another. Its sessions may go on as soon as a slot is
        free elsewhere, which is at once where there are more slots than conversations."""
        async with self._one_at_a_time:
            await asyncio.sleep(delay_s)
            victim = self._workers.pop(0)
            number = self._out("worker")
            victim.kill()
            await victim.wait()
            if self._count > 1:
                self._back(number)
            await self._start_worker()
            await self.until_workers()
            if self._count == 1:
                self._back(number)

    async def freeze(self, kind: str, seconds: float) -> None:
        """Stop a process for so long (SIGSTOP); then it goes on."""
        async with self._one_at_a_time:
            process = self._gateway if kind == "gateway" else self._workers[0]
            assert process is not None
            number = self._out(f"frozen {kind}")
            process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                process.send_signal(signal.SIGCONT)
                self._back(number)

    def _out(self, kind: str) -> int:
        self.outages.append(Outage(kind, time.monotonic()))
        return len(self.outages) - 1

    def _back(self, number: int) -> None:
        before = self.outages[number]
        self.outages[number] = Outage(before.kind, before.began_s, time.monotonic())

    # ---- what is asked of them -------------------------------------------------------------

    async def leaked(self) -> int:
        """Slots that are not free although nobody talks."""
        try:
            await self.until_free()
        except SetupError:
            return self._slots * self._count - max(0, (await self._look())[1])
        return 0

    async def until_free(self) -> None:
        """Until every slot is.

        Raises:
            SetupError: it takes too long.
        """
        wanted = self._slots * self._count

        async def is_free() -> bool:
            return (await self._look())[1] == wanted

        await self._until(is_free)

    async def until_workers(self) -> None:
        """Until all workers are there.

        Raises:
            SetupError: it takes too long.
        """

        async def are_there() -> bool:
            return (await self._look())[0] >= self._count

        await self._until(are_there)

    async def _look(self) -> tuple[int, int]:
        """Workers that can take sessions, and free slots; -1 where nobody answers."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
                answer = await http.get(f"{self.url}/workers")
        except httpx.HTTPError:
            return -1, -1
        workers = answer.json()["workers"]
        there = sum(1 for worker in workers if worker["status"] not in ("offline", "loading"))
        return there, sum(int(worker["free_slots"]) for worker in workers)

    async def _start_gateway(self) -> None:
        port = str(self._port)
        self._gateway = await self._start(
            *("gateway", "--http", "--host", "127.0.0.1", "--port", port)
        )

        async def answers() -> bool:
            return (await self._look())[0] >= 0

        await self._until(answers)

    async def _start_worker(self) -> None:
        self._workers.append(
            await self._start(
                *("worker", "--gateway", self.url, "--model", self._model),
                *("--slots", str(self._slots)),
            )
        )

    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", *words, "--log-level", "error"),
            cwd=self._folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    async def _end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        due = time.monotonic() + START_S
        while not await condition():
            if time.monotonic() > due:
                raise SetupError("The servers of this bench do not get ready.")
            await asyncio.sleep(0.1)
