"""Base class of executors, which start workers and keep them running.

An executor never talks to workers. They connect to the gateway by themselves, so the gateway does
not know who started them; their heartbeats there show if they are alive.

A worker that dies is replaced, with increasing delays if it keeps dying. One that reports a wrong
set-up is not, unless it worked before, because e.g. a missing disk may return. A worker that hangs,
i.e. gives no sign of life (`alive`, or `SIGN_OF_LIFE` while it loads) for too long, is killed and
thus replaced. Subclasses determine where processes run.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from parley import logs
from parley.clock import Backoff
from parley.executor.node_worker import WORKER_COMMAND, NodeWorkerState
from parley.tasks import wait_for_event

SETUP_EXIT_CODE: Final = 2
"""Exit code if the command cannot start and a retry would not help."""
RESTART_EXIT_CODE: Final = 75
"""Exit code of a worker that an admin has ordered to restart."""
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
SETTLED_S: Final = 60.0
"""Run time after which a worker that dies is replaced without delay."""
HEARTBEAT_LIMIT_S: Final = 60.0
LOADING_LIMIT_S: Final = 1800.0
"""Time without progress after which a loading worker is killed."""
SIGN_OF_LIFE: Final = "\x16"
"""Output line with which a starting worker reports progress; it is not displayed."""
POLL_S: Final = 1.0

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class WorkerNews:
    """News of a worker process: it waits for a device, was started, ended, failed permanently or is
    not needed.

    `waiting`: there is no device for it yet. `started`: a process exists. `ended`: it exited and is
    restarted in `retry_in_s`. `given_up`: it cannot be started and is not retried. `retired`: it
    was ended, because fewer are enough. `why` is a sentence for the log.
    """

    kind: Literal["waiting", "started", "ended", "given_up", "retired"]
    index: int
    pid: int = 0
    why: str = ""
    retry_in_s: float = 0.0


Listener = Callable[[WorkerNews], None]


def write_line(index: int, line: str) -> None:
    """Print a worker's line with its name as a prefix."""
    logs.print_line(f"worker {index} │ {line}", sys.stderr)


@dataclass(slots=True)
class WorkerPlace:
    """One worker: the holder of its process (a `NodeWorker`, or its actor), and its state."""

    holder: Any
    backoff: Backoff
    pid: int = 0
    born_at: float = 0.0
    due_at: float = math.inf
    """Time at which it is killed unless there is a sign of life."""
    is_ready: bool = False
    was_ready: bool = False
    """True if one of its processes was ready."""
    is_given_up: bool = False
    begins_at: float | None = None
    """Time at which its process is restarted."""
    why_killed: str = ""


@dataclass(eq=False, repr=False)
class Executor(ABC):
    """See the module. Belongs to an event loop. `tests/contracts/executor.py` tests every subclass.

    Args:
        environments: one per worker, in addition to our own environment.
        command: arguments of Python (`node_worker.WORKER_COMMAND`).
        news: is called with `News`.
        write: is called with a worker's index and one line of its output.
        heartbeat_limit_s: a worker is killed if its last sign of life is older than this.
        loading_limit_s: the same before its first heartbeat; progress counts (`SIGN_OF_LIFE`).
    """

    environments: Sequence[Mapping[str, str]]
    _: KW_ONLY
    command: Sequence[str] = WORKER_COMMAND
    news: Listener = lambda news: None
    write: Callable[[int, str], None] = write_line
    first_retry_s: float = FIRST_RETRY_S
    heartbeat_limit_s: float = HEARTBEAT_LIMIT_S
    loading_limit_s: float = LOADING_LIMIT_S

    def __post_init__(self) -> None:
        self._places: dict[int, WorkerPlace] = {}
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        """Set if workers should be checked before `POLL_S` has passed."""
        self._asking = asyncio.Lock()
        """Held while workers are polled, so that none is ended meanwhile."""

    @property
    def workers(self) -> int:
        """Wanted number of workers."""
        return len(self.environments)

    @abstractmethod
    async def start(self) -> None:
        """Start all workers; does not wait until they are ready.

        Raises:
            SetupError: no worker can be started here.
        """

    async def watch(self) -> None:
        """Keep all workers running; returns when all have been given up."""
        while True:
            async with self._asking:
                if self._stopping.is_set():
                    return
                self._wake.clear()
                await self._look()
            if all(place.is_given_up for place in self._places.values()):
                return
            await self._rest()

    def alive(self, index: int, pid: int) -> None:
        """Worker `index` gave a sign of life from process `pid`; reports of other processes are
        ignored, because on another node one may have the same id."""
        place = self._places.get(index)
        if place is not None and place.pid == pid:
            place.is_ready = place.was_ready = True
            place.due_at = time.monotonic() + self.heartbeat_limit_s

    async def stop(self, grace_s: float) -> None:
        """End all workers; kill those left after `grace_s`. No process remains."""
        self._stopping.set()
        self._wake.set()
        async with self._asking:
            await asyncio.to_thread(self._stop, grace_s)

    @abstractmethod
    def _poll(self) -> dict[int, Any]:
        """The states of all workers. Runs in a thread."""

    @abstractmethod
    def _stop(self, grace_s: float) -> None:
        """End all workers. Runs in a thread."""

    def _add(self, index: int, holder: Any) -> None:
        backoff = Backoff(self.first_retry_s, LAST_RETRY_S, SETTLED_S)
        self._places[index] = WorkerPlace(holder, backoff)

    async def _look(self) -> None:
        found = await asyncio.to_thread(self._poll)
        now = time.monotonic()
        for index, state in found.items():
            self._heard(index, self._places[index], state, now)
        for index, place in self._places.items():
            self._look_after(index, place, now)

    async def _rest(self) -> None:
        """Wait for news, at most `POLL_S`."""
        begins = [place.begins_at for place in self._places.values() if place.begins_at is not None]
        now = time.monotonic()
        limit_s = max(0.0, min([POLL_S, *(at - now for at in begins)]))
        await wait_for_event(self._wake, limit_s)
        late_s = time.monotonic() - now - limit_s
        if late_s > POLL_S:
            # This process was suspended and could not receive heartbeats.
            for place in self._places.values():
                place.due_at += late_s

    def _heard(self, index: int, place: WorkerPlace, state: NodeWorkerState, now: float) -> None:
        for line in state.lines:
            if line != SIGN_OF_LIFE:
                self.write(index, line)
            elif not place.is_ready and place.due_at < math.inf:
                place.due_at = now + self.loading_limit_s
        if place.is_given_up:
            return
        if state.pid != place.pid and state.pid:
            self._ended(index, place, "its actor was started again", 0.0)
            place.pid, place.born_at, place.begins_at = state.pid, now, None
            place.is_ready, place.due_at = False, now + self.loading_limit_s
            self.news(WorkerNews("started", index, state.pid))
        if state.returncode is not None and place.begins_at is None:
            self._exited(index, place, state.returncode, now)

    def _exited(self, index: int, place: WorkerPlace, code: int, now: float) -> None:
        why, place.why_killed = place.why_killed or how_it_ended(code), ""
        if code == SETUP_EXIT_CODE and not place.was_ready:
            place.is_given_up = True
            log.error("worker_start_failed", worker=index, why=why)
            self.news(WorkerNews("given_up", index, place.pid, why))
            return
        if code == RESTART_EXIT_CODE:
            place.backoff.reset()
            delay_s, why = 0.0, "restart ordered"
            log.info("worker_restarting", worker=index)
        else:
            delay_s = place.backoff.take(ran_s=now - place.born_at)
            log.warning("worker_died", worker=index, why=why, retry_in_s=delay_s)
        self._ended(index, place, why, delay_s)
        place.begins_at = now + delay_s

    def _ended(self, index: int, place: WorkerPlace, why: str, retry_in_s: float) -> None:
        if place.pid and place.begins_at is None:
            self.news(WorkerNews("ended", index, place.pid, why, retry_in_s))
        if not retry_in_s and place.begins_at is None:
            place.pid = 0
        place.due_at = math.inf

    def _look_after(self, index: int, place: WorkerPlace, now: float) -> None:
        if place.begins_at is not None and now >= place.begins_at:
            place.begins_at, place.pid = None, 0
            place.holder.begin()
        if now > place.due_at:
            place.why_killed = (
                f"hung: no heartbeat for {self.heartbeat_limit_s:g} s"
                if place.is_ready
                else f"hung: no progress for {self.loading_limit_s:g} s while loading"
            )
            place.due_at = math.inf
            log.error("worker_hung_killed", worker=index, pid=place.pid, why=place.why_killed)
            place.holder.kill()


def how_it_ended(code: int) -> str:
    """Describe an exit code, or the negative number of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
