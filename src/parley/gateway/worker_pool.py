"""The known workers, their free slots, and the lease on each slot.

Pure bookkeeping on the gateway's event loop: no sockets, time from a clock. Two truths are kept
apart. What a worker says (state, free slots, session phases) arrives in heartbeats and may be a
moment old; what we promised (leases) is exact. A slot is free only when both agree, so neither a
late heartbeat nor a crashed worker can hand out a place twice or lose one. Source: service.md 2.5,
2.7."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

import msgspec

from parley.clock import Clock
from parley.gateway.eta import CLEANUP_S, LOADING_S, EtaTracker
from parley.gateway.signals import Signal
from parley.protocol.control import (
    SILENCE_LIMIT_S,
    Heartbeat,
    Hello,
    LeaseNote,
    ResumeState,
    SessionPhase,
)
from parley.protocol.kinds import Kind, Phase, WorkerState
from parley.protocol.networks import network_of

FORGET_AFTER_S: Final = 600.0
"""How long an absent worker remains listed."""
COUNTED_ON_S: Final = 4.0
"""A worker that was not heard for longer is not promised to newcomers, although its sessions are
not given up yet (`SILENCE_LIMIT_S`)."""
RECLAIM_BEATS: Final = 2
"""A slot that a worker reports free in this many heartbeats, although it never said `ended`, is
free."""

_note = msgspec.json.Decoder(LeaseNote)

GatewayView = WorkerState | Literal["offline"]


@dataclass(eq=False, slots=True)
class Lease:
    """The promise of one slot on one worker. `release` is safe to repeat and does its work once.

    `lost` is called when the worker goes away while the lease is held.
    """

    worker: Worker
    kind: Kind
    session_id: str
    granted_at: float
    granted_time: float
    lease_id: str = field(default_factory=lambda: secrets.token_hex(16))
    address: str = ""
    key_id: str | None = None
    """Address of its client, and the client's key."""
    dialect: str = ""
    """Dialect of its client, known once its session socket is opened."""
    phase: Phase | None = None
    was_ready: bool = False
    was_opened: bool = False
    """True once its session socket is dialled: the worker may have a session to close."""
    pause_ends_at: float | None = None
    resume: ResumeState | None = None
    """If its client may continue over another connection."""
    resume_ends_at: float | None = None
    """How long its worker waits for a client that lost its connection."""
    tokens: int = 0
    """Tokens that its session has generated, as last reported."""
    is_ending: bool = False
    """True once its worker was asked to end it because its key's day is used up."""
    is_held: bool = True
    is_lost: bool = False
    lost: Signal[()] = field(default_factory=Signal[()])
    """Its worker is gone; see `is_lost`."""
    _release: Callable[[Lease], None] = lambda lease: None

    @property
    def log_id(self) -> str:
        """Of the log from which another worker can continue its session; "": there is none."""
        return "" if self.resume is None else self.resume.log_id

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            self._release(self)

    def transfer(self) -> Lease:
        """The same promise for another holder; this one has nothing to release any more."""
        self.worker.closing.pop(self.lease_id, None)
        taken = dataclasses.replace(self, is_held=True, lost=Signal())
        self.is_held = False
        self.worker.leases[self.lease_id] = taken
        return taken

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.release()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Worker:
    """One worker: what it said last, and the leases on it."""

    hello: Hello
    connection: Any
    """Whatever carries its control messages; compared by identity only."""
    last_seen: float
    last_seen_time: float
    heartbeat: Heartbeat | None = None
    is_connected: bool = True
    was_reached: bool = False
    """True once it has answered at its address since it joined."""
    is_unreachable: bool = False
    """Its session socket could not be opened; it gets no work until a probe succeeds."""
    is_silent: bool = False
    """True while it has been silent for longer than the limit."""
    is_draining: bool = False
    """An admin drains it: running sessions continue, it gets no new ones."""
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
        return self.heartbeat.state if self.heartbeat else "idle"

    @property
    def is_usable(self) -> bool:
        """True if it serves, now or after its present work."""
        return self.is_connected and not self.is_unreachable and self.says != "error"

    @property
    def free_slots(self) -> int:
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
            if all(lease.phase is Phase.PAUSED for lease in held):
                return "duplex_paused"
            return held[0].kind.busy_state
        if self.closing:
            return "cleanup"
        return self.says

    @property
    def is_empty(self) -> bool:
        """True if it could serve and has nothing to do."""
        return self.is_usable and not (self.leases or self.closing or self.is_draining)

    def offers(self, kind: Kind) -> bool:
        return kind.mode in self.hello.modes


@dataclass(slots=True)
class Loading:
    """A worker process of an executor that is not ready yet, or is about to be started."""

    begins_at: float
    pid: int = 0
    """0: it is about to be started."""


def caller_of(address: str, key_id: str | None) -> str:
    """Whose a session or a ticket is, where callers share places: its key's, else those of its
    address, or /64 of IPv6; "": none."""
    return f"key {key_id}" if key_id else network_of(address)


class WorkerPool:
    def __init__(self, clock: Clock, eta: EtaTracker) -> None:
        self._clock = clock
        self._eta = eta
        self._workers: dict[str, Worker] = {}
        self.loading: dict[int, Loading] = {}
        """Worker processes that an executor is starting, by their number."""
        self.waiting: dict[int, str] = {}
        """Worker processes that an executor has no device for, and why, by their number."""
        self.loading_s = LOADING_S
        """Time from start to hello of the last worker."""
        self._failed_loads: set[int] = set()
        """Numbers of the processes whose last one ended before it was ready."""
        self.last_alive_at = clock.monotonic()
        """When a worker (or one being loaded) was last there."""
        self.changed: Signal[()] = Signal()
        """A slot may have become free."""
        self.joined: Signal[Worker] = Signal()
        """A worker has said hello."""
        self.alive: Signal[Worker] = Signal()
        """A worker gave a sign of life."""
        self.released: Signal[Lease] = Signal()
        """A lease was given back."""
        self.learned: Signal[Lease] = Signal()
        """A worker brought a session that was unknown here; its lease has no holder."""
        self.ended: Signal[Lease, int] = Signal()
        """A worker has put a session away, which generated so many tokens."""
        self.spent: Signal[Lease, int] = Signal()
        """A session generated so many tokens more."""
        self._slots_seen = 1

    def __iter__(self) -> Iterator[Worker]:
        return iter(sorted(self._workers.values(), key=lambda w: (w.hello.index, w.worker_id)))

    def __len__(self) -> int:
        return len(self._workers)

    def held_by(self, caller: str) -> int:
        leases = (lease for worker in self._workers.values() for lease in worker.leases.values())
        return sum(caller_of(lease.address, lease.key_id) == caller for lease in leases)

    def knows(self, worker: Worker) -> bool:
        """True if `worker` has not left and was not forgotten or replaced."""
        return self._workers.get(worker.worker_id) is worker

    # Reports of workers

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
        for session in hello.sessions:
            self.phase(worker, session)
        self._end_forgotten(worker)
        self.last_alive_at = now
        self._slots_seen = hello.slots
        self._has_loaded(hello, now)
        self.changed.notify()
        self.joined.notify(worker)
        self.alive.notify(worker)
        return worker

    def _end_forgotten(self, worker: Worker) -> None:
        """Sessions that ended while their worker's control socket was broken, so long ago that it
        does not report them: no other message would free their slots."""
        told = {session.lease_id for session in worker.hello.sessions}
        for lease in list(worker.leases.values()):
            if lease.resume is not None and lease.lease_id not in told:
                lease.phase = Phase.ENDED
                worker.said_free = min(worker.slots, worker.said_free + 1)
                self.ended.notify(lease, lease.tokens)

    def heard(self, worker: Worker, heartbeat: Heartbeat) -> None:
        self._touch(worker)
        for lease_id, tokens in heartbeat.tokens.items():
            held = worker.leases.get(lease_id) or worker.closing.get(lease_id)
            if held is not None:
                self._spend(held, tokens)
        worker.heartbeat = heartbeat
        worker.said_free = heartbeat.free_slots
        seen = sum(1 for lease in worker.leases.values() if lease.phase is not None)
        if worker.closing and heartbeat.free_slots >= worker.slots - seen:
            worker.idle_beats += 1
            if worker.idle_beats >= RECLAIM_BEATS:
                worker.closing.clear()
                worker.idle_beats = 0
        else:
            worker.idle_beats = 0
        self.changed.notify()

    def phase(self, worker: Worker, message: SessionPhase) -> None:
        self._touch(worker)
        lease_id = message.lease_id
        lease = worker.leases.get(lease_id) or worker.closing.get(lease_id)
        if lease is None and message.resume is not None:
            lease = self._learn(worker, message, message.resume)
        if lease is None:
            return
        # The first reports of a session that its worker has rebuilt may arrive after the result,
        # which comes over another connection and says more.
        if message.resume is not None or message.phase is Phase.ENDED:
            lease.resume = message.resume
            left_s = None if message.resume is None else message.resume.left_s
            lease.resume_ends_at = None if left_s is None else self._clock.monotonic() + left_s
        if lease.phase is None and message.phase is not Phase.ENDED:
            worker.said_free -= 1
        lease.was_ready = lease.was_ready or message.was_ready
        lease.pause_ends_at = (
            self._clock.monotonic() + message.pause_left_s
            if message.phase is Phase.PAUSED and message.pause_left_s is not None
            else None
        )
        was_seen = lease.phase is not None
        lease.phase = message.phase
        if message.phase is Phase.ENDED:
            worker.said_free = min(worker.slots, worker.said_free + was_seen)
            worker.closing.pop(lease_id, None)
            self._spend(lease, message.tokens)
            self.ended.notify(lease, message.tokens)
            self.changed.notify()

    def _spend(self, lease: Lease, tokens: int) -> None:
        """Its session has generated so many tokens in all."""
        if tokens > lease.tokens:
            more, lease.tokens = tokens - lease.tokens, tokens
            self.spent.notify(lease, more)

    def _learn(self, worker: Worker, message: SessionPhase, resume: ResumeState) -> Lease:
        """A session that a worker has kept while this gateway, or the previous one, was away; or
        that has ended meanwhile, and whose client may come for its last words."""
        now, now_time = self._clock.monotonic(), self._clock.time()
        try:
            note = _note.decode(resume.note)
        except msgspec.MsgspecError:
            note = LeaseNote(granted_time=now_time)
        ran_s = max(0.0, now_time - note.granted_time)
        if resume.ran_s is not None:
            # The system's clock may have been set since; what a session ran is charged.
            ran_s = note.ran_s + resume.ran_s
        lease = Lease(
            worker=worker,
            kind=message.kind,
            session_id=message.session_id,
            granted_at=now - ran_s,
            granted_time=note.granted_time,
            lease_id=message.lease_id,
            address=note.address,
            key_id=note.key_id,
            dialect=resume.dialect,
            was_opened=True,
            resume=resume,
            is_held=message.phase is not Phase.ENDED,
            # Those were counted by the gateway that leased it.
            tokens=message.tokens,
            _release=self._released,
        )
        if lease.is_held:
            worker.leases[lease.lease_id] = lease
            self.learned.notify(lease)
        # Whoever learned of it may hold it now.
        return worker.leases.get(lease.lease_id, lease)

    def find_resumable(self, session_id: str, lease_id: str = "") -> Lease | None:
        """The lease of a session that a client may resume. One that is being closed, as far as we
        know, is found last: the session may have moved from there.

        Args:
            lease_id: found first. Two sessions have one id if a client began again while its first
                session was not known here yet.
        """
        workers = self._workers.values()
        held = (lease for worker in workers for lease in worker.leases.values())
        closing = (lease for worker in workers for lease in worker.closing.values())
        found = None
        for lease in chain(held, closing):
            if lease.session_id == session_id and lease.resume is not None:
                if lease.lease_id == lease_id:
                    return lease
                found = found or lease
        return found

    # Reports of an executor

    def process_waits(self, index: int, why: str) -> None:
        """There is no place for worker process `index` yet; nothing is promised of it."""
        self.loading.pop(index, None)
        self.waiting[index] = why
        self.changed.notify()

    def process_begins(self, index: int, *, pid: int = 0, in_s: float = 0.0) -> None:
        """Worker process `index` was started, or will be."""
        self.waiting.pop(index, None)
        self.loading[index] = Loading(self._clock.monotonic() + in_s, pid)
        self.changed.notify()

    def process_ended(self, index: int, pid: int) -> None:
        """Worker process `index` is gone; its successor comes under another name."""
        self.waiting.pop(index, None)
        if self.loading.pop(index, None) is not None:
            self._failed_loads.add(index)
        for worker in list(self._workers.values()):
            # On another node of a cluster another one may have the same process id.
            if (worker.hello.index, worker.hello.pid) == (index, pid):
                self.left(worker)
        self.changed.notify()

    def disconnected(self, worker: Worker) -> None:
        """Its control socket closed. It gets no new work; running sessions get the silence limit,
        because the socket may come back."""
        if self.knows(worker):
            worker.is_connected = False
            self.changed.notify()

    def gone(self, worker: Worker) -> None:
        """Its process has ended; it stays in the lists for a while."""
        if self.knows(worker) and not worker.is_connected:
            self._lose(worker)
            self.changed.notify()

    def left(self, worker: Worker) -> None:
        if self.knows(worker):
            del self._workers[worker.worker_id]
        worker.is_connected = False
        self._lose(worker)
        self.changed.notify()

    def reachable(self, worker: Worker) -> None:
        """A probe succeeded."""
        worker.is_unreachable = False
        self.changed.notify()

    def drain(self, worker: Worker, on: bool) -> None:
        """Keep new work away from `worker`, or let it in again. A new process under its name
        begins without it."""
        worker.is_draining = on
        self.changed.notify()

    def retire(self, index: int) -> bool:
        """True if worker process `index` is empty; its slots are then not given out any more."""
        for worker in self._workers.values():
            if worker.hello.index == index and worker.is_empty:
                self.drain(worker, True)
                return True
        return False

    def find(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def sweep(self) -> list[Worker]:
        """Once a second: who was silent too long is gone. Gives those that went now."""
        now = self._clock.monotonic()
        silent = []
        for worker in list(self._workers.values()):
            silent_s = now - worker.last_seen
            if silent_s > SILENCE_LIMIT_S:
                if not worker.is_silent:
                    silent.append(worker)
                worker.is_silent = True
                worker.is_connected = False
                self._lose(worker)
            if silent_s > FORGET_AFTER_S:
                del self._workers[worker.worker_id]
        # A worker that never gets ready is none that could be waited for.
        if self._promising or any(worker.is_usable for worker in self._workers.values()):
            self.last_alive_at = now
        if silent:
            self.changed.notify()
        return silent

    def forgive(self, late_s: float) -> None:
        """This process stood still for `late_s` and could not hear any worker."""
        now = self._clock.monotonic()
        self.last_alive_at = min(now, self.last_alive_at + late_s)
        for worker in self._workers.values():
            worker.last_seen = min(now, worker.last_seen + late_s)

    # What we promise

    @property
    def loading_workers(self) -> int:
        """Workers that will serve but do not yet."""
        connected = [worker for worker in self._workers.values() if worker.is_connected]
        return sum(worker.says == "loading" for worker in connected) + len(self.loading)

    @property
    def leases(self) -> list[Lease]:
        """All leases held, oldest first."""
        held = [lease for worker in self._workers.values() for lease in worker.leases.values()]
        return sorted(held, key=lambda lease: lease.granted_at)

    def can_ever_serve(self, kind: Kind) -> bool:
        """True if a worker that offers `kind` is there or may come."""
        usable = [worker for worker in self._workers.values() if worker.is_usable]
        return not usable or any(worker.offers(kind) for worker in usable)

    @property
    def is_cut_off(self) -> bool:
        """True if workers are connected, none of them can be reached, and none is being started."""
        connected = [worker for worker in self._workers.values() if worker.is_connected]
        return (
            bool(connected)
            and all(worker.is_unreachable for worker in connected)
            and not self._promising
        )

    @property
    def can_take(self) -> bool:
        """True if a worker takes sessions, perhaps after those that it has."""
        now = self._clock.monotonic()
        return any(
            worker.is_usable
            and not worker.is_draining
            and worker.says != "loading"
            and now - worker.last_seen <= COUNTED_ON_S
            for worker in self._workers.values()
        )

    def with_room(self, kind: Kind, fingerprint: str | None) -> list[Worker]:
        """Workers with a free slot for `kind`; with a fingerprint only such."""
        return [
            worker
            for worker in self
            if worker.free_slots > 0
            and worker.offers(kind)
            and fingerprint in (None, worker.hello.fingerprint)
        ]

    def lease(
        self,
        kind: Kind,
        session_id: str,
        *,
        address: str = "",
        key_id: str | None = None,
        fingerprint: str | None = None,
    ) -> Lease | None:
        """Take a free slot, on the worker with most of them; None when there is none.

        Args:
            fingerprint: only of such a worker.
        """
        free = self.with_room(kind, fingerprint)
        if not free:
            return None
        worker = max(free, key=lambda candidate: candidate.free_slots)
        lease = Lease(
            worker=worker,
            kind=kind,
            session_id=session_id,
            granted_at=self._clock.monotonic(),
            granted_time=self._clock.time(),
            address=address,
            key_id=key_id,
            _release=self._released,
        )
        worker.leases[lease.lease_id] = lease
        worker.idle_beats = 0
        return lease

    def free_in_s(self) -> list[float]:
        """For every slot that will ever serve: seconds until it is free."""
        now = self._clock.monotonic()
        times: list[float] = []
        # Of a worker that failed to get ready the last time nothing can be promised.
        for loading in self._promising:
            elapsed_s = now - loading.begins_at
            left_s = self.loading_s - elapsed_s
            # Whatever takes longer than the last time is expected to take as much again by half.
            times += [max(left_s, elapsed_s / 2)] * self._slots_seen
        for worker in self._workers.values():
            if not worker.is_usable or worker.is_draining:
                continue
            if worker.says == "loading":
                times += [LOADING_S] * worker.slots
                continue
            for lease in worker.leases.values():
                remaining = self._eta.remaining(lease.kind, now - lease.granted_at)
                if lease.resume_ends_at is not None:
                    # Its clock stands still; should its client not return, this is when it ends.
                    remaining = max(remaining, lease.resume_ends_at - now)
                if lease.pause_ends_at is not None:
                    remaining = min(remaining, max(0.0, lease.pause_ends_at - now))
                times.append(remaining)
            times += [CLEANUP_S] * len(worker.closing)
            rest = worker.slots - len(worker.leases) - len(worker.closing)
            # A slot we think free and the worker does not is about to be.
            times += [0.0 if worker.free_slots else CLEANUP_S] * max(0, rest)
        return times

    def _touch(self, worker: Worker) -> None:
        # Who was silent too long counts as gone until it is heard again, e.g. a process that was
        # stopped and continued: its socket never closed.
        worker.is_connected = self.knows(worker)
        worker.is_silent = False
        worker.last_seen = self._clock.monotonic()
        worker.last_seen_time = self._clock.time()
        if worker.is_usable:
            self.last_alive_at = worker.last_seen
        self.alive.notify(worker)

    @property
    def _promising(self) -> list[Loading]:
        """Those that load and did not fail to the last time."""
        return [one for index, one in self.loading.items() if index not in self._failed_loads]

    def _has_loaded(self, hello: Hello, now: float) -> None:
        loading = self.loading.get(hello.index)
        if loading is not None and loading.pid == hello.pid:
            del self.loading[hello.index]
            self._failed_loads.discard(hello.index)
            self.loading_s = max(1.0, now - loading.begins_at)

    def _lose(self, worker: Worker) -> None:
        worker.closing.clear()
        for lease in list(worker.leases.values()):
            if not lease.is_lost:
                lease.is_lost = True
                lease.lost.notify()

    def _released(self, lease: Lease) -> None:
        worker = lease.worker
        worker.leases.pop(lease.lease_id, None)
        worker.total_requests += 1
        self.released.notify(lease)
        if lease.was_ready:
            self._eta.record(lease.kind, self._clock.monotonic() - lease.granted_at)
        must_clean = lease.phase is not Phase.ENDED and (
            lease.was_opened or lease.phase is not None
        )
        if must_clean and not lease.is_lost:
            worker.closing[lease.lease_id] = lease
            worker.idle_beats = 0
        self.changed.notify()
