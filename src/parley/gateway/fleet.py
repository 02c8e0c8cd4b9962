"""The workers we know, what they can take, and who holds what.

Pure bookkeeping on the gateway's event loop: no sockets, time from a clock. Two truths are kept
apart. What a worker says (state, free slots, session phases) arrives in beats and may be a moment
old; what we promised (leases) is exact. A slot is free only when both agree, so neither a late beat
nor a crashed worker can hand out a place twice or lose one. Source: service.md 2.5, 2.7, 9.1.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal

from parley.clock import Clock
from parley.gateway.eta import CLEANUP_S, LOADING_S, EtaTracker
from parley.protocol.control import (
    SILENCE_LIMIT_S,
    Beat,
    Hello,
    Phase,
    SessionPhase,
    TaskType,
    WorkerState,
)

FORGET_AFTER_S: Final = 600.0
"""How long an absent worker stays in the lists."""
RECLAIM_BEATS: Final = 2
"""A slot that a worker reports free in this many beats, although it never said `ended`, is free."""

GatewayView = WorkerState | Literal["offline"]

MODES: Final[dict[TaskType, str]] = {
    "chat": "chat",
    "half_duplex_audio": "half_duplex",
    "audio_duplex": "duplex",
    "omni_duplex": "duplex",
}
"""Task type → the mode a worker must offer."""

BUSY_STATES: Final[dict[TaskType, WorkerState]] = {
    "chat": "busy_chat",
    "half_duplex_audio": "busy_half_duplex",
    "audio_duplex": "duplex_active",
    "omni_duplex": "duplex_active",
}


@dataclass(eq=False, slots=True)
class Lease:
    """The promise of one slot on one worker. `release` is safe to repeat and does its work once.

    `lost` is called when the worker goes away while the lease is held.
    """

    worker: Worker
    task: TaskType
    session_id: str
    granted_at: float
    granted_time: float
    lease_id: str = field(default_factory=lambda: secrets.token_hex(16))
    phase: Phase | None = None
    was_ready: bool = False
    was_opened: bool = False
    """Whether a session socket was opened under it, so that the worker has something to clean."""
    pause_ends_at: float | None = None
    is_held: bool = True
    is_lost: bool = False
    lost: Callable[[], None] = lambda: None
    _release: Callable[[Lease], None] = lambda lease: None

    def release(self) -> None:
        """Give the slot back."""
        if self.is_held:
            self.is_held = False
            self._release(self)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(eq=False, slots=True)
class Worker:
    """One worker: what it said last, and the leases on it."""

    hello: Hello
    connection: Any
    """Whatever carries its control messages; compared by identity only."""
    last_seen: float
    last_seen_time: float
    beat: Beat | None = None
    is_connected: bool = True
    is_unreachable: bool = False
    """Its session socket could not be opened; it gets no work until a probe succeeds."""
    is_draining: bool = False
    """An admin wants it empty: what runs goes on, nothing new comes."""
    leases: dict[str, Lease] = field(default_factory=dict)
    closing: dict[str, Lease] = field(default_factory=dict)
    """Released, but the worker has not said yet that the slot is clean."""
    said_free: int = 0
    idle_beats: int = 0
    total_requests: int = 0

    @property
    def worker_id(self) -> str:
        return self.hello.worker_id

    @property
    def slots(self) -> int:
        return self.hello.slots

    @property
    def says(self) -> WorkerState:
        """Its own word for itself; ready when it only said hello."""
        return self.beat.state if self.beat else "idle"

    @property
    def is_usable(self) -> bool:
        """Whether it will serve, now or after what it does at present."""
        return self.is_connected and not self.is_unreachable and self.says != "error"

    @property
    def free_slots(self) -> int:
        """Slots that can be leased now."""
        if not self.is_usable or self.is_draining or self.says == "loading":
            return 0
        unseen = sum(1 for lease in self.leases.values() if lease.phase is None)
        by_us = self.slots - len(self.leases) - len(self.closing)
        return max(0, min(by_us, self.said_free - unseen))

    @property
    def view(self) -> GatewayView:
        """One word for lists: what it says, corrected by what we know."""
        if not self.is_connected or self.is_unreachable:
            return "offline"
        if self.says in ("error", "loading"):
            return self.says
        held = list(self.leases.values())
        if held:
            if all(lease.phase == "paused" for lease in held):
                return "duplex_paused"
            return BUSY_STATES[held[0].task]
        if self.closing:
            return "cleanup"
        return self.says

    def offers(self, task: TaskType) -> bool:
        return MODES[task] in self.hello.modes


class Fleet:
    """All workers. `changed` is called whenever a slot may have become free."""

    def __init__(self, clock: Clock, eta: EtaTracker) -> None:
        self._clock = clock
        self._eta = eta
        self._workers: dict[str, Worker] = {}
        self.expected_workers = 0
        """Workers that an executor has started or will; those not connected count as loading."""
        self.last_alive_at = clock.monotonic()
        """When a worker (or one being loaded) was last there."""
        self.changed: Callable[[], None] = lambda: None
        self.joined: Callable[[Worker], None] = lambda worker: None
        """Called when a worker has said hello."""

    def __iter__(self) -> Iterator[Worker]:
        return iter(sorted(self._workers.values(), key=lambda w: (w.hello.index, w.worker_id)))

    def __len__(self) -> int:
        return len(self._workers)

    def knows(self, worker: Worker) -> bool:
        """Whether `worker` is still one of us: it has not left, was not forgotten or replaced."""
        return self._workers.get(worker.worker_id) is worker

    # What workers tell

    def welcome(self, hello: Hello, connection: Any) -> Worker:
        """A worker said hello. The same process coming back keeps its leases; a new process under
        a known name has lost them."""
        now = self._clock.monotonic()
        known = self._workers.get(hello.worker_id)
        worker = Worker(
            hello=hello,
            connection=connection,
            last_seen=now,
            last_seen_time=self._clock.time(),
            said_free=hello.slots,
        )
        if known is not None:
            if known.hello.pid == hello.pid and known.hello.url == hello.url:
                worker.leases, worker.closing = known.leases, known.closing
                worker.is_draining = known.is_draining
                for lease in (*worker.leases.values(), *worker.closing.values()):
                    lease.worker = worker
                worker.said_free = hello.slots - sum(
                    lease.phase is not None for lease in worker.leases.values()
                )
            else:
                self._lose(known)
        self._workers[hello.worker_id] = worker
        self.last_alive_at = now
        self.changed()
        self.joined(worker)
        return worker

    def heard(self, worker: Worker, beat: Beat) -> None:
        """A sign of life."""
        self._touch(worker)
        worker.beat = beat
        worker.said_free = beat.free_slots
        seen = sum(1 for lease in worker.leases.values() if lease.phase is not None)
        if worker.closing and beat.free_slots >= worker.slots - seen:
            worker.idle_beats += 1
            if worker.idle_beats >= RECLAIM_BEATS:
                worker.closing.clear()
                worker.idle_beats = 0
        else:
            worker.idle_beats = 0
        self.changed()

    def phase(self, worker: Worker, message: SessionPhase) -> None:
        """A session on `worker` changed phase."""
        self._touch(worker)
        lease_id = message.lease_id
        lease = worker.leases.get(lease_id) or worker.closing.get(lease_id)
        if lease is None:
            return
        if lease.phase is None and message.phase != "ended":
            worker.said_free -= 1
        lease.was_ready = lease.was_ready or message.was_ready
        lease.pause_ends_at = (
            self._clock.monotonic() + message.pause_left_s
            if message.phase == "paused" and message.pause_left_s is not None
            else None
        )
        was_seen = lease.phase is not None
        lease.phase = message.phase
        if message.phase == "ended":
            worker.said_free = min(worker.slots, worker.said_free + was_seen)
            worker.closing.pop(lease_id, None)
            self.changed()

    def disconnected(self, worker: Worker) -> None:
        """Its control socket closed. No new work at once; running sessions get the silence limit,
        because the socket may come back."""
        if self.knows(worker):
            worker.is_connected = False

    def left(self, worker: Worker) -> None:
        """It said goodbye."""
        if self.knows(worker):
            del self._workers[worker.worker_id]
        worker.is_connected = False
        self._lose(worker)
        self.changed()

    def unreachable(self, worker: Worker) -> None:
        """Its session socket could not be opened."""
        worker.is_unreachable = True

    def reachable(self, worker: Worker) -> None:
        """A probe succeeded."""
        worker.is_unreachable = False
        self.changed()

    def drain(self, worker: Worker, on: bool) -> None:
        """Keep new work away from `worker`, or let it in again. A new process under its name
        begins without it."""
        worker.is_draining = on
        self.changed()

    def find(self, worker_id: str) -> Worker | None:
        """The worker of that name."""
        return self._workers.get(worker_id)

    def sweep(self) -> None:
        """Once a second: who was silent too long is gone."""
        now = self._clock.monotonic()
        for worker in list(self._workers.values()):
            silent_s = now - worker.last_seen
            if silent_s > SILENCE_LIMIT_S:
                worker.is_connected = False
                self._lose(worker)
            if silent_s > FORGET_AFTER_S:
                del self._workers[worker.worker_id]
        if self.loading_workers or any(worker.is_usable for worker in self._workers.values()):
            self.last_alive_at = now

    # What we promise

    @property
    def loading_workers(self) -> int:
        """Workers that will serve but do not yet."""
        connected = [worker for worker in self._workers.values() if worker.is_connected]
        return sum(worker.says == "loading" for worker in connected) + max(
            0, self.expected_workers - len(connected)
        )

    @property
    def leases(self) -> list[Lease]:
        """All leases held, oldest first."""
        held = [lease for worker in self._workers.values() for lease in worker.leases.values()]
        return sorted(held, key=lambda lease: lease.granted_at)

    def can_ever_serve(self, task: TaskType) -> bool:
        """Whether a worker that offers `task` is there or may come."""
        usable = [worker for worker in self._workers.values() if worker.is_usable]
        return not usable or any(worker.offers(task) for worker in usable)

    def lease(self, task: TaskType, session_id: str) -> Lease | None:
        """Take a free slot, on the worker with most of them; None when there is none."""
        free = [w for w in self if w.free_slots > 0 and w.offers(task)]
        if not free:
            return None
        worker = max(free, key=lambda candidate: candidate.free_slots)
        lease = Lease(
            worker=worker,
            task=task,
            session_id=session_id,
            granted_at=self._clock.monotonic(),
            granted_time=self._clock.time(),
            _release=self._released,
        )
        worker.leases[lease.lease_id] = lease
        worker.idle_beats = 0
        return lease

    def free_in_s(self) -> list[float]:
        """For every slot that will ever serve: seconds until it is free."""
        now = self._clock.monotonic()
        times = [LOADING_S] * max(
            0,
            self.expected_workers - sum(worker.is_connected for worker in self._workers.values()),
        )
        for worker in self._workers.values():
            if not worker.is_usable or worker.is_draining:
                continue
            if worker.says == "loading":
                times += [LOADING_S] * worker.slots
                continue
            for lease in worker.leases.values():
                remaining = self._eta.remaining(lease.task, now - lease.granted_at)
                if lease.pause_ends_at is not None:
                    remaining = min(remaining, max(0.0, lease.pause_ends_at - now))
                times.append(remaining)
            times += [CLEANUP_S] * len(worker.closing)
            rest = worker.slots - len(worker.leases) - len(worker.closing)
            # A slot we think free and the worker does not is about to be.
            times += [0.0 if worker.free_slots else CLEANUP_S] * max(0, rest)
        return times

    # Inside

    def _touch(self, worker: Worker) -> None:
        # Who was silent too long counts as gone until it is heard again, e.g. a process that was
        # stopped and continued: its socket never closed.
        worker.is_connected = self.knows(worker)
        worker.last_seen = self._clock.monotonic()
        worker.last_seen_time = self._clock.time()
        self.last_alive_at = worker.last_seen

    def _lose(self, worker: Worker) -> None:
        worker.closing.clear()
        for lease in list(worker.leases.values()):
            if not lease.is_lost:
                lease.is_lost = True
                lease.lost()

    def _released(self, lease: Lease) -> None:
        worker = lease.worker
        worker.leases.pop(lease.lease_id, None)
        worker.total_requests += 1
        if lease.was_ready:
            self._eta.record(lease.task, self._clock.monotonic() - lease.granted_at)
        must_clean = lease.phase != "ended" and (lease.was_opened or lease.phase is not None)
        if must_clean and not lease.is_lost:
            worker.closing[lease.lease_id] = lease
            worker.idle_beats = 0
        self.changed()
