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
"""Maximum time for servers to start, and for slots to become free."""
BUSY_S: Final = 10.0
"""Time to wait for a session on a worker before it is killed anyway."""
FILLED_S: Final = 2.0
"""Time after which a newly started Redis has the logs of all sessions again."""
TO_SPARE: Final = 2
"""Number of workers required before one may be killed: the other one takes over its sessions."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A period during which a process was not available. Monotonic seconds.

    Args:
        kind: `gateway`, `worker`, `both`, `stopped`, `redis` or `frozen …`.
        began_s: when the process was killed or stopped.
        ended_s: when a replacement was available; None: not yet.
    """

    kind: str
    began_s: float
    ended_s: float | None = None


@dataclass(kw_only=True, eq=False)
class Servers:
    """A gateway, which always has the same port, and its workers. On entry, all are ready and all
    slots free.

    Args:
        model: of every worker.
        slots: of each worker.
        workers: number of workers.
        environment: further settings.
        logs: folder for the output of every process; None: only errors are shown.
        redis: session logs are stored in a separate redis-server.
        spare: number of workers that must be available before the next one is killed or asked to
            stop.
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
            # Not every dialect has a field for it.
            "PARLEY_STORAGE__RECORDING": "false",
            **self.environment,
        }
        if self.redis:
            url = f"redis://127.0.0.1:{self._redis_port}/0"
            self._environment["PARLEY_STORAGE__SESSION_LOGS"] = url
        self._processes: list[asyncio.subprocess.Process] = []
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        """By index, oldest first; an index is never reused."""
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
        """Process id of the newest worker."""
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

    # ---- disasters -------------------------------------------------------------------------

    async def kill(self, kind: str, delay_s: float) -> None:
        """Kill the `gateway`, the `worker` with most sessions, or `both` simultaneously, after a
        delay, and start replacements. A worker is killed only once it has sessions; they may
        continue as soon as a slot is free elsewhere, immediately if there are more slots than
        conversations. Returns when the next kill is allowed."""
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
                # The state of the two is now only in the logs of the sessions.
                await asyncio.sleep(FILLED_S)

    async def stop_worker(self, delay_s: float) -> None:
        """Ask the worker with most sessions to stop (SIGTERM), `delay_s` after it has some, and
        start another. Its sessions move to workers with free slots."""
        async with self._one_at_a_time:
            victim = await self._take_busiest(delay_s)
            with self._outage("stopped"):
                victim.terminate()
                await victim.wait()
            await self._replace_worker()

    async def restart_redis(self, delay_s: float) -> None:
        """Kill the redis-server, which stores nothing on disk, and restart it."""
        async with self._one_at_a_time:
            await asyncio.sleep(delay_s)
            # A log that no process has any more would be lost with Redis.
            await self._until(self._is_settled)
            with self._outage("redis"):
                self._redis.kill()
                await self._redis.wait()
                await self._start_redis()
            await asyncio.sleep(FILLED_S)

    async def freeze(self, kind: str, seconds: float) -> None:
        """Suspend a process (SIGSTOP) for a time."""
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
        """Remove and return the worker with most sessions, `delay_s` after one has some."""
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

    # ---- queries ---------------------------------------------------------------------------

    async def leaked(self, window_s: float) -> int:
        """Number of slots that are not free although no client is connected. A client that left
        while there was no gateway keeps its slot for `window_s`."""
        try:
            await self.until_free(START_S + window_s)
        except SetupError:
            return self.slots * self.workers - max(0, (await self._look())[1])
        return 0

    async def until_free(self, limit_s: float = START_S) -> None:
        """Wait until every slot is free.

        Raises:
            SetupError: it takes too long.
        """
        wanted = self.slots * self.workers

        async def is_free() -> bool:
            return (await self._look())[1] == wanted

        await self._until(is_free, limit_s)

    async def until_workers(self, count: int) -> None:
        """Wait until this number of workers is available.

        Raises:
            SetupError: it takes too long.
        """

        async def are_there() -> bool:
            return (await self._look())[0] >= count

        await self._until(are_there)

    async def _is_settled(self) -> bool:
        """True if no session is moving between two workers."""
        told = await self._ask("/status")
        return told is not None and not told["session_states"].get("moving")

    async def _ask(self, path: str) -> dict[str, Any] | None:
        """The gateway's answer; None if there is none."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
                told: dict[str, Any] = (await http.get(f"{self.url}{path}")).json()
        except httpx.HTTPError:
            return None
        return told

    async def _busy(self) -> dict[int, int]:
        """Index of each worker → number of its occupied slots."""
        return {
            int(worker["index"]): int(worker["slots"]) - int(worker["free_slots"])
            for worker in await self._list() or ()
        }

    async def _look(self) -> tuple[int, int]:
        """Number of workers that can accept sessions, and of free slots; -1 if no gateway
        answers."""
        workers = await self._list()
        if workers is None:
            return -1, -1
        return len(workers), sum(int(worker["free_slots"]) for worker in workers)

    async def _list(self) -> list[dict[str, Any]] | None:
        """Our workers that can accept sessions; None if no gateway answers."""
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
