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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

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


@dataclass(kw_only=True, eq=False)
class Servers:
    """A gateway on one port, whatever happens to it, and its workers; up and free while its block
    runs.

    Args:
        model: of every worker.
        slots: of each worker.
        workers: how many.
        environment: further settings.
        logs: a folder for what every process says; None: only errors are shown.
        redis: session logs are in a redis-server of its own.
        spare: workers that must be there before the next one is killed or asked to stop.
    """

    model: str = "parrot"
    slots: int = 1
    workers: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None
    redis: bool = False
    spare: int = TO_SPARE

    def __post_init__(self) -> None:
        self.spare = min(self.workers, self.spare)
        self._port, self._redis_port = _free_port(), _free_port()
        self._environment = {
            "PARLEY_SECURITY__WORKER_SECRET": secrets.token_hex(16),
            # Not every dialect lets its client say so.
            "PARLEY_STORAGE__RECORDING": "false",
            **self.environment,
        }
        if self.redis:
            url = f"redis://127.0.0.1:{self._redis_port}/0"
            self._environment["PARLEY_STORAGE__SESSION_LOGS"] = url
        self._processes: list[asyncio.subprocess.Process] = []
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
        return self._gateway.pid

    @property
    def worker_pid(self) -> int:
        """Of the newest worker."""
        return list(self._workers.values())[-1].pid

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="parley-chaos-")
        try:
            if self.redis:
                await self._start_redis()
            await self._start_gateway()
            for _ in range(self.workers):
                await self._start_worker()
            await self.until_free()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))
        self._folder.cleanup()

    # ---- what happens to them --------------------------------------------------------------

    async def kill(self, kind: str, delay_s: float) -> None:
        """Kill the `gateway`, the `worker` with most sessions, or `both` in one moment, and start
        others; a moment later, and a worker only when it has some. Its sessions may continue as
        soon as a slot is free elsewhere, immediately if there are more slots than conversations.
        Returns when the next one may be killed."""
        has_gateway, has_worker = kind != "worker", kind != "gateway"
        async with self._one_at_a_time:
            victims = [await self._take_busiest(delay_s)] if has_worker else []
            if not has_worker:
                await asyncio.sleep(delay_s)
            with self._outage(kind):
                victims += [self._gateway] if has_gateway else []
                for victim in victims:
                    victim.kill()
                await asyncio.gather(*(victim.wait() for victim in victims))
                if has_gateway:
                    await self._start_gateway()
                if has_worker and self.workers == 1:
                    await self._replace_worker()
            if has_worker and self.workers > 1:
                await self._replace_worker()
            if kind == "both":
                # What the two knew is only in the logs of the sessions.
                await asyncio.sleep(FILLED_S)

    async def stop_worker(self, delay_s: float) -> None:
        """Ask the worker with most sessions to stop (SIGTERM), a moment after it has some, and
        start another. Its sessions move to workers with room."""
        async with self._one_at_a_time:
            victim = await self._take_busiest(delay_s)
            with self._outage("stopped"):
                victim.terminate()
                await victim.wait()
            await self._replace_worker()

    async def restart_redis(self, delay_s: float) -> None:
        """Kill the redis-server, which keeps nothing, and start it again."""
        async with self._one_at_a_time:
            await asyncio.sleep(delay_s)
            # A log that no process has any more is gone with the Redis that kept it.
            await self._until(self._is_settled)
            with self._outage("redis"):
                self._redis.kill()
                await self._redis.wait()
                await self._start_redis()
            await asyncio.sleep(FILLED_S)

    async def freeze(self, kind: str, seconds: float) -> None:
        """Stop a process for so long (SIGSTOP); then it continues."""
        async with self._one_at_a_time:
            process = self._gateway if kind == "gateway" else next(iter(self._workers.values()))
            with self._outage(f"frozen {kind}"):
                process.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _outage(self, kind: str) -> Iterator[None]:
        number, outage = len(self.outages), Outage(kind, time.monotonic())
        self.outages.append(outage)
        yield
        self.outages[number] = replace(outage, ended_s=time.monotonic())

    async def _take_busiest(self, delay_s: float) -> asyncio.subprocess.Process:
        """The worker with most sessions, a moment after one has some; it is none of ours now."""
        due = time.monotonic() + BUSY_S

        async def is_busy() -> bool:
            return any((await self._busy()).values()) or time.monotonic() > due

        await self._until(is_busy)
        await asyncio.sleep(delay_s)
        busy = await self._busy()
        return self._workers.pop(max(self._workers, key=lambda each: busy.get(each, 0)))

    async def _replace_worker(self) -> None:
        await self._start_worker()
        await self.until_workers(self.spare)

    # ---- what is asked of them -------------------------------------------------------------

    async def leaked(self, window_s: float) -> int:
        """Slots that are not free although no client is connected. A client that left while
        there was no gateway keeps its slot for `window_s`."""
        try:
            await self.until_free(START_S + window_s)
        except SetupError:
            return self.slots * self.workers - max(0, (await self._look())[1])
        return 0

    async def until_free(self, limit_s: float = START_S) -> None:
        """Until every slot is.

        Raises:
            SetupError: it takes too long.
        """
        wanted = self.slots * self.workers

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
            *("--dir", self._folder.name),
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
            *("worker", "--gateway", self.url, "--model", self.model),
            *("--slots", str(self.slots), "--worker-index", str(index)),
        )

    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        with contextlib.ExitStack() as files:
            says: dict[str, Any] = {"stdout": asyncio.subprocess.DEVNULL}
            if self.logs is not None:
                path = self.logs / f"{len(self._processes):04}-{words[0]}.log"
                file = files.enter_context(path.open("wb"))
                says = {"stdout": file, "stderr": file}
            level = "error" if self.logs is None else "info"
            process = await start(
                *("parley", *words, "--log-level", level),
                variables=self._environment,
                cwd=self._folder.name,
                **says,
            )
        self._processes.append(process)
        return process

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
