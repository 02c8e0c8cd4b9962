"""Whatever makes workers exist: three verbs, and news of what happened.

An executor never talks to workers. They dial in to the gateway by themselves, so the gateway does
not learn who started them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class WorkerNews:
    """Something happened to a worker.

    `started`: a process exists. `ended`: it is gone, another follows in `retry_in_s`. `given_up`:
    it cannot be started, and no other follows. `why` is for people.
    """

    kind: Literal["started", "ended", "given_up"]
    index: int
    pid: int = 0
    why: str = ""
    retry_in_s: float = 0.0


Listener = Callable[[WorkerNews], None]


class Executor(Protocol):
    """Starts workers, watches them, stops them."""

    @property
    def workers(self) -> int:
        """How many it keeps alive."""
        ...

    async def start(self) -> None:
        """Bring all workers into being; returns without waiting for their models."""
        ...

    async def watch(self) -> None:
        """Replace workers that end, until cancelled or until none is left that can be started."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End all workers: politely, then after `grace_s` by force. Safe to repeat."""
        ...
