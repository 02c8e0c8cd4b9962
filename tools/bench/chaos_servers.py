"""Gateway and workers of the benches `chaos` and `hour`, as processes that can be killed and
frozen."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from parley.cli.bench.server import start
from parley.errors import SetupError

START_S: Final = 120.0
"""How long servers may take to begin, and slots to become free."""
BUSY_S: Final = 10.0
"""How long a worker that is to be killed may take to get a session."""
FILLED_S: Final = 2.0
"""After that a Redis that has just started has the logs of all sessions again."""
TO_SPARE: Final = 2
"""Workers of which one may be killed: the other one takes its sessions."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time during which a process was not there. Monotonic seconds.

    Args:
        kind: `gateway`, `worker`, or `both`.
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
        environment: further settings.
        logs: a folder for what every process says; None: only errors are shown.
        redis: session logs are in a redis-server of its own.
        spare: workers that must be there before the next one is killed or asked to stop.
    """

    def __init__(
        self,
        folder: str,
        *,
        model: str,
        slots: int,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        logs: Path | None = None,
        redis: bool = False,
        spare: int = TO_SPARE,
    ) -> None:
        self._folder = folder
        self._logs = logs
        self._model = model
        self._slots = slots
        self._count = workers
        self._spare = min(workers, spare)
        self._port = _free_port()
        self._redis_port = _free_port() if redis else 0
        self._redis: asyncio.subprocess.Process | None = None
        self._environment = {
            "PARLEY_SECURITY__WORKER_SECRET": secrets.token_hex(16),
            # Not every dialect lets its client say so.
            "PARLEY_STORAGE__RECORDING": "false",
            **(environment or {}),
        }
        if redis:
            url = f"redis://127.0.0.1:{self._redis_port}/0"
            self._environment["PARLEY_STORAGE__SESSION_LOGS"] = url
        self._processes: list[asyncio.subprocess.Process] = []
        self._gateway: asyncio.subprocess.Process | None = None
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        """By their index, oldest first; it is never used twice."""
        self._next_index = 0
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
        return list(self._workers.values())[-1].pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls,
        *,
        model: str = "parrot",
        slots: int = 1,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        logs: Path | None = None,
        redis: bool = False,
        spare: int = TO_SPARE,
    ) -> AsyncIterator[Servers]:
        """Up and free while the block runs."""
        with tempfile.TemporaryDirectory(prefix="parley-chaos-") as folder:
            servers = cls(
                folder,
                model=model,
                slots=slots,
                workers=workers,
                environment=environment,
                logs=logs,
                redis=redis,
                spare=spare,
            )
            try:
                if redis:
                    await servers._start_redis()
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
        """Kill the one with most sessions, a moment after it has some, and start another. Its
        sessions may continue as soon as a slot is free elsewhere, immediately if there are more
        slots than conversations. Returns when a worker may be killed again."""
        async with self._one_at_a_time:
            await self._until_busy()
            await asyncio.sleep(delay_s)
            busy = await self._busy()
            index = max(self._workers, key=lambda each: busy.get(each, 0))
            victim = self._workers.pop(index)
            number = self._out("worker")
            victim.kill()
            await victim.wait()
            if self._count > 1:
                self._back(number)
            await self._start_worker()
            await self.until_workers(self._spare)
            if self._count == 1:
                self._back(number)

    async def replace_both(self, delay_s: float) -> None:
        """Kill the gateway and the worker with most sessions in one moment, a moment after it has
        some, and start others. What they knew is only in the logs of the sessions."""
        async with self._one_at_a_time:
            await self._until_busy()
            await asyncio.sleep(delay_s)
            busy = await self._busy()
            victim = self._workers.pop(max(self._workers, key=lambda each: busy.get(each, 0)))
            assert self._gateway is not None
            number = self._out("both")
            victim.kill()
            self._gateway.kill()
            await asyncio.gather(victim.wait(), self._gateway.wait())
            await self._start_gateway()
            if self._count > 1:
                self._back(number)
            await self._start_worker()
            await self.until_workers(self._spare)
            if self._count == 1:
                self._back(number)
            await asyncio.sleep(FILLED_S)

    async def stop_worker(self, delay_s: float) -> None:
        """Ask the worker with most sessions to stop (SIGTERM), a moment after it has some, and
        start another. Its sessions move to workers with room."""
        async with self._one_at_a_time:
            await self._until_busy()
            await asyncio.sleep(delay_s)
            busy = await self._busy()
            victim = self._workers.pop(max(self._workers, key=lambda each: busy.get(each, 0)))
            number = self._out("stopped")
            victim.terminate()
            await victim.wait()
            self._back(number)
            await self._start_worker()
            await self.until_workers(self._spare)

    async def restart_redis(self, delay_s: float) -> None:
        """Kill the redis-server, which keeps nothing, and start it again."""
        async with self._one_at_a_time:
            await asyncio.sleep(delay_s)
            # A log that no process has any more is gone with the Redis that kept it.
            await self._until(self._is_settled)
            assert self._redis is not None
            number = self._out("redis")
            self._redis.kill()
            await self._redis.wait()
            await self._start_redis()
            self._back(number)
            await asyncio.sleep(FILLED_S)

    async def freeze(self, kind: str, seconds: float) -> None:
        """Stop a process for so long (SIGSTOP); then it continues."""
        async with self._one_at_a_time:
            process = self._gateway if kind == "gateway" else next(iter(self._workers.values()))
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

    async def leaked(self, window_s: float) -> int:
        """Slots that are not free although no client is connected. A client that left while
        there was no gateway keeps its slot for `window_s`."""
        try:
            await self.until_free(START_S + window_s)
        except SetupError:
            return self._slots * self._count - max(0, (await self._look())[1])
        return 0

    async def until_free(self, limit_s: float = START_S) -> None:
        """Until every slot is.

        Raises:
            SetupError: it takes too long.
        """
        wanted = self._slots * self._count

        async def is_free() -> bool:
            return (await self._look())[1] == wanted

        await self._until(is_free, limit_s)

    async def until_workers(self, count: int) -> None:
        """Until so many workers are there.

        Raises:
            SetupError: it takes too long.
        """

        async def are_there() -> bool:
            return (await self._look())[0] >= count

        await self._until(are_there)

    async def _until_busy(self) -> None:
        """Until a worker holds a session, for a moment at most."""
        due = time.monotonic() + BUSY_S

        async def is_busy() -> bool:
            return any((await self._busy()).values()) or time.monotonic() > due

        await self._until(is_busy)

    async def _is_settled(self) -> bool:
        """True if no session is between two workers."""
        told = await self._ask("/status")
        return told is not None and not told["session_states"].get("moving")

    async def _ask(self, path: str) -> dict[str, Any] | None:
        """What the gateway answers; None: nothing."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
                told: dict[str, Any] = (await http.get(f"{self.url}{path}")).json()
        except httpx.HTTPError:
            return None
        return told

    async def _busy(self) -> dict[int, int]:
        """Workers by their index, and how many slots of each are taken."""
        return {
            int(worker["index"]): int(worker["slots"]) - int(worker["free_slots"])
            for worker in await self._list() or ()
        }

    async def _look(self) -> tuple[int, int]:
        """Workers that can take sessions, and free slots; -1 if no gateway answers."""
        workers = await self._list()
        if workers is None:
            return -1, -1
        return len(workers), sum(int(worker["free_slots"]) for worker in workers)

    async def _list(self) -> list[dict[str, Any]] | None:
        """Our workers that can take sessions; None: no gateway answers."""
        told = await self._ask("/workers")
        if told is None:
            return None
        return [
            worker
            for worker in told["workers"]
            if worker["status"] not in ("offline", "loading") and worker["index"] in self._workers
        ]

    async def _start_gateway(self) -> None:
        port = str(self._port)
        self._gateway = await self._start(
            *("gateway", "--http", "--host", "127.0.0.1", "--port", port)
        )

        async def answers() -> bool:
            return (await self._look())[0] >= 0

        await self._until(answers)

    async def _start_redis(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise SetupError("No redis-server or valkey-server is installed.")
        self._redis = await asyncio.create_subprocess_exec(
            *(program, "--bind", "127.0.0.1", "--port", str(self._redis_port), "--save", ""),
            *("--dir", self._folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        self._processes.append(self._redis)

        async def answers() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._redis_port)
            except OSError:
                return False
            writer.close()
            return True

        await self._until(answers)

    async def _start_worker(self) -> None:
        index, self._next_index = self._next_index, self._next_index + 1
        self._workers[index] = await self._start(
            *("worker", "--gateway", self.url, "--model", self._model),
            *("--slots", str(self._slots), "--worker-index", str(index)),
        )

    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        with contextlib.ExitStack() as files:
            says: dict[str, Any] = {"stdout": asyncio.subprocess.DEVNULL}
            if self._logs is not None:
                path = self._logs / f"{len(self._processes):04}-{words[0]}.log"
                file = files.enter_context(path.open("wb"))
                says = {"stdout": file, "stderr": file}
            level = "error" if self._logs is None else "info"
            process = await start(
                *("parley", *words, "--log-level", level),
                variables=self._environment,
                cwd=self._folder,
                **says,
            )
        self._processes.append(process)
        return process

    async def _end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))

    async def _until(
        self, condition: Callable[[], Awaitable[bool]], limit_s: float = START_S
    ) -> None:
        due = time.monotonic() + limit_s
        while not await condition():
            if time.monotonic() > due:
                raise SetupError("The servers of this bench do not get ready.")
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
