"""The contract of an executor, which starts and supervises workers.

An executor never talks to workers. They connect to the gateway by themselves, so the gateway does
not know who started them; whether one is alive is decided by its heartbeats there.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from parley import logs

SETUP_EXIT_CODE: Final = 2
"""Exit code if the command cannot start and a retry would not help."""
RESTART_EXIT_CODE: Final = 75
"""Exit code of a worker that an admin wants restarted."""
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
SETTLED_S: Final = 60.0
"""A worker that ran this long is replaced without delay."""
HEARTBEAT_LIMIT_S: Final = 60.0
LOADING_LIMIT_S: Final = 1800.0
"""A worker that is not ready yet is killed after this time without progress."""
SIGN_OF_LIFE: Final = "\x16"
"""Output line with which a starting worker reports progress; it is not displayed."""


@dataclass(frozen=True, slots=True)
class WorkerNews:
    """A worker process waits for a place, started, ended, failed for good or is not needed.

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


@dataclass(eq=False, repr=False, kw_only=True)
class Supervision:
    """How an executor supervises its workers, wherever they run.

    Args:
        news: hears what happens.
        write: takes a worker's number and one line of its output.
        heartbeat_limit_s: a worker is killed when its last sign of life is older than this.
        loading_limit_s: the same before its first heartbeat; progress counts (`SIGN_OF_LIFE`).
    """

    news: Listener = lambda news: None
    write: Callable[[int, str], None] = write_line
    first_retry_s: float = FIRST_RETRY_S
    heartbeat_limit_s: float = HEARTBEAT_LIMIT_S
    loading_limit_s: float = LOADING_LIMIT_S


class Executor(Protocol):
    """Starts workers and keeps them running. Belongs to an event loop.
    `tests/contracts/executor.py` tests every implementation."""

    @property
    def workers(self) -> int:
        """Wanted number of workers."""
        ...

    async def start(self) -> None:
        """Start every worker once; does not wait until one is ready.

        Raises:
            SetupError: none can be started here.
        """
        ...

    async def watch(self) -> None:
        """Keep every worker alive; returns when all have been given up."""
        ...

    def alive(self, index: int, pid: int) -> None:
        """Worker `index` reported from process `pid`; reports of other processes are ignored."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End all workers; kill those left after `grace_s`. No process remains."""
        ...


def how_it_ended(code: int) -> str:
    """Describe an exit code, or the negative number of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
