"""The known workers, their free slots, and the lease on each slot.

Pure bookkeeping on the gateway's event loop: no sockets, time from a clock. Two kinds of facts are
kept apart: reports of workers (state, free slots, session phases) arrive in heartbeats and may be
slightly old, while leases are exact. A slot is free only if both agree, so neither a late heartbeat
nor a crashed worker can make the gateway lease a slot twice or lose one. Source: service.md 2.5,
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
"""Time for which an absent worker remains listed."""
COUNTED_ON_S: Final = 4.0
"""A worker that was silent for longer gets a new session only if no other worker has room, although
its running ones are not considered lost yet (`SILENCE_LIMIT_S`)."""
RECLAIM_BEATS: Final = 2
"""A slot is free if its worker reports it free in this many heartbeats, even if it never reported
the session's end."""

_note = msgspec.json.Decoder(LeaseNote)

GatewayView = WorkerState | Literal["offline"]


@dataclass(eq=False, slots=True)
class Lease:
    """The exclusive use of one slot on one worker. `release` is safe to repeat. `lost` is notified
    if the worker is lost while the lease is held.
    """

    worker: Worker
    kind: Kind
    session_id: str
    granted_at: float
    granted_time: float
    """Unix time at which its session got its first slot."""
    ran_s: float = 0.0
    """Time for which its session ran at other workers before."""
    counted_s: float = 0.0
    """Part of the time since `granted_at` that is in the usage of its key."""
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
    """Set if its client may continue over another connection."""
    resume_ends_at: float | None = None
    """Monotonic time until which its worker waits for a client that lost its connection."""
    tokens: int = 0
    """Number of tokens that its session has generated, as last reported."""
    is_ending: bool = False
    """True once its worker was asked to end it because its key has used up its daily limit."""
    is_held: bool = True
    is_lost: bool = False
    lost: Signal[()] = field(default_factory=Signal[()])
    """Notified when its worker is lost; see `is_lost`."""
    _release: Callable[[Lease], None] = lambda lease: None

    @property
    def log_id(self) -> str:
        """Id of the log from which another worker can continue its session; "": there is none."""
        return "" if self.resume is None else self.resume.log_id

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            self._release(self)

    def transfer(self) -> Lease:
        """The same lease for another holder; releasing this one has no effect any more."""
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
    """One worker: its last report, and the leases on it."""

    hello: Hello
    connection: Any
    """The connection for its control messages; compared only by identity."""
    last_seen: float
    last_seen_time: float
    heartbeat: Heartbeat | None = None
    is_connected: bool = True
    was_reached: bool = False
    """True once it has answered at its address after joining."""
    is_unreachable: bool = False
    """Its session socket could not be opened; it gets no work until a probe succeeds."""
    is_silent: bool = False
    """True while it has been silent for longer than the limit."""
    is_draining: bool = False
    """True while an admin drains it: running sessions continue, but it gets no new ones."""
    leases: dict[str, Lease] = field(default_factory=dict)
    closing: dict[str, Lease] = field(default_factory=dict)
    """Released leases whose slots the worker has not reported clean yet."""
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
        """The state that it reported; "ready" if it has only sent its hello."""
        return self.heartbeat.state if self.heartbeat else "idle"

    @property
    def is_usable(self) -> bool:
        """True if it takes sessions, now or after its current work."""
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
        """Its state in lists: what it reported, corrected by what the gateway knows."""
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
        """True if it could take sessions and has none."""
        return self.is_usable and not (self.leases or self.closing or self.is_draining)

    def offers(self, kind: Kind) -> bool:
        return kind.mode in self.hello.modes


@dataclass(slots=True)
class Loading:
    """A worker process of an executor that is loading or about to be started."""

    begins_at: float
    pid: int = 0
    """Process id; 0 if it is about to be started."""


def caller_of(address: str, key_id: str | None) -> str:
    """The caller to which a session or ticket counts: its key, else its address (or the /64 of an
    IPv6 address); "": unknown."""
    return f"key {key_id}" if key_id else network_of(address)


class WorkerPool:
    def __init__(self, clock: Clock, eta: EtaTracker) -> None:
        self._clock = clock
        self._eta = eta
        self._workers: dict[str, Worker] = {}
        self.loading: dict[int, Loading] = {}
        """Worker processes that an executor is starting, by index."""
        self.waiting: dict[int, str] = {}
        """Reasons why an executor has no device for worker processes, by index."""
        self.loading_s = LOADING_S
        """Time from the start of the last worker to its hello."""
        self._failed_loads: set[int] = set()
        """Indices of worker processes that ended the last time before they were ready."""
        self.last_alive_at = clock.monotonic()
        """Monotonic time at which a worker was last available or loading."""
        self.changed: Signal[()] = Signal()
        """Notified when a slot may have become free."""
        self.joined: Signal[Worker] = Signal()
        """Notified when a worker has sent its hello."""
        self.alive: Signal[Worker] = Signal()
        """Notified on each message of a worker."""
        self.released: Signal[Lease] = Signal()
        """Notified when a lease was released."""
        self.learned: Signal[Lease] = Signal()
        """Notified when a worker has reported a session that was unknown here; its lease has no
        holder."""
        self.ended: Signal[Lease, int] = Signal()
        """Notified when a session has ended, with the number of tokens that it generated."""
        self.spent: Signal[Lease, int] = Signal()
        """Notified when a session has generated further tokens, with their number."""
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
        """A worker sent its hello. If the same process reconnects, it keeps its leases; a new
        process under a known name has lost them."""
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
        """Release sessions that ended while their worker's control socket was broken, too long ago
        to be reported: no other message would free their slots."""
        reported = {session.lease_id for session in worker.hello.sessions}
        for lease in list(worker.leases.values()):
            if lease.resume is not None and lease.lease_id not in reported:
                lease.phase = Phase.ENDED
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
        # The first reports of a rebuilt session may arrive after the result of rebuilding,
        # which comes over another connection and has more details.
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
        """Count the tokens that its session has generated in total."""
        if tokens > lease.tokens:
            more, lease.tokens = tokens - lease.tokens, tokens
            self.spent.notify(lease, more)

    def _learn(self, worker: Worker, message: SessionPhase, resume: ResumeState) -> Lease:
        """Add a session that a worker has kept while it had no gateway, or that ended during that
        time and whose client may still fetch its last messages."""
        now, now_time = self._clock.monotonic(), self._clock.time()
        try:
            note = _note.decode(resume.note)
        except msgspec.MsgspecError:
            note = LeaseNote(granted_time=now_time)
        ran_s = max(0.0, now_time - note.granted_time)
        if resume.ran_s is not None:
            # The system clock may have been changed since then; the measured run time counts.
            ran_s = note.ran_s + resume.ran_s
        lease = Lease(
            worker=worker,
            kind=message.kind,
            session_id=message.session_id,
            granted_at=now - ran_s,
            granted_time=note.granted_time,
            ran_s=note.ran_s,
            # Up to a few seconds ago, by the gateway that had it.
            counted_s=ran_s,
            lease_id=message.lease_id,
            address=note.address,
            key_id=note.key_id,
            dialect=resume.dialect,
            was_opened=True,
            resume=resume,
            is_held=message.phase is not Phase.ENDED,
            # The gateway that leased it has counted these.
            tokens=message.tokens,
            _release=self._released,
        )
        if lease.is_held:
            worker.leases[lease.lease_id] = lease
            self.learned.notify(lease)
        # A listener may have transferred it.
        return worker.leases.get(lease.lease_id, lease)

    def find_resumable(self, session_id: str) -> Lease | None:
        """The lease of a session that a client may resume. Leases that are being closed are
        considered last: the session may have moved away from there."""
        workers = self._workers.values()
        held = (lease for worker in workers for lease in worker.leases.values())
        closing = (lease for worker in workers for lease in worker.closing.values())
        for lease in chain(held, closing):
            if lease.session_id == session_id and lease.resume is not None:
                return lease
        return None

    # Reports of an executor

    def process_waits(self, index: int, why: str) -> None:
        """There is no device for worker process `index` yet; it is not counted in estimates."""
        self.loading.pop(index, None)
        self.waiting[index] = why
        self.changed.notify()

    def process_begins(self, index: int, *, pid: int = 0, in_s: float = 0.0) -> None:
        """Worker process `index` was started, or will be in `in_s`."""
        self.waiting.pop(index, None)
        self.loading[index] = Loading(self._clock.monotonic() + in_s, pid)
        self.changed.notify()

    def process_ended(self, index: int, pid: int) -> None:
        """Worker process `index` has ended; its successor will have another name."""
        self.waiting.pop(index, None)
        if self.loading.pop(index, None) is not None:
            self._failed_loads.add(index)
        for worker in list(self._workers.values()):
            # On another node of a cluster, another worker may have the same process id.
            if (worker.hello.index, worker.hello.pid) == (index, pid):
                self.left(worker)
        self.changed.notify()

    def disconnected(self, worker: Worker) -> None:
        """Its control socket closed. It gets no new sessions; running ones are kept until the limit
        of silence, because it may reconnect."""
        if self.knows(worker):
            worker.is_connected = False
            self.changed.notify()

    def gone(self, worker: Worker) -> None:
        """Its process has ended; it stays listed for a while."""
        if self.knows(worker) and not worker.is_connected:
            self._lose(worker)

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
        """Stop or resume giving new sessions to `worker`. A new process with its name starts
        undrained."""
        worker.is_draining = on
        self.changed.notify()

    def retire(self, index: int) -> bool:
        """Retire worker process `index` if it is empty; returns True if its slots are no longer
        leased."""
        for worker in self._workers.values():
            if worker.hello.index == index and worker.is_empty:
                self.drain(worker, True)
                return True
        return False

    def find(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def sweep(self) -> list[Worker]:
        """Called once a second: mark workers that were silent for too long as lost; returns the
        newly lost."""
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
        # A worker that never gets ready is not worth waiting for.
        if self._promising or any(worker.is_usable for worker in self._workers.values()):
            self.last_alive_at = now
        if silent:
            self.changed.notify()
        return silent

    def forgive(self, late_s: float) -> None:
        """This process was suspended for `late_s` and could not receive messages of workers."""
        now = self._clock.monotonic()
        self.last_alive_at = min(now, self.last_alive_at + late_s)
        for worker in self._workers.values():
            worker.last_seen = min(now, worker.last_seen + late_s)

    # Leases and estimates

    @property
    def model(self) -> str | None:
        """The model that answers: that of the first connected worker."""
        return next((worker.hello.model for worker in self if worker.is_connected), None)

    @property
    def loading_workers(self) -> int:
        """Number of workers that are loading."""
        connected = [worker for worker in self._workers.values() if worker.is_connected]
        return sum(worker.says == "loading" for worker in connected) + len(self.loading)

    @property
    def leases(self) -> list[Lease]:
        """All leases held, oldest first."""
        held = [lease for worker in self._workers.values() for lease in worker.leases.values()]
        return sorted(held, key=lambda lease: lease.granted_at)

    def can_ever_serve(self, kind: Kind) -> bool:
        """True if a worker that offers `kind` is connected or may still connect."""
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
        """True if a worker takes sessions, now or when a slot is free again."""
        return any(
            worker.is_usable
            and not worker.is_draining
            and worker.says != "loading"
            and self._is_heard(worker)
            for worker in self._workers.values()
        )

    def _is_heard(self, worker: Worker) -> bool:
        return self._clock.monotonic() - worker.last_seen <= COUNTED_ON_S

    def with_room(self, kind: Kind, fingerprint: str | None) -> list[Worker]:
        """Workers with a free slot for `kind`; if `fingerprint` is given, only those that have
        it."""
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
        """Lease a free slot on the worker with most free slots, of those that are not silent if
        possible; None if there is none.

        Args:
            fingerprint: restricts the choice to workers that have it.
        """
        free = self.with_room(kind, fingerprint)
        if not free:
            return None
        # If it is frozen, a connection to it is opened, and its client waits for nothing.
        worker = max(free, key=lambda one: (self._is_heard(one), one.free_slots))
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
        """For every usable or loading slot: seconds until it is free."""
        now = self._clock.monotonic()
        times: list[float] = []
        # A worker that failed to load the last time is not counted.
        for loading in self._promising:
            elapsed_s = now - loading.begins_at
            left_s = self.loading_s - elapsed_s
            # If it takes longer than the last time, assume half of the elapsed time again.
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
                    # Its clock is stopped; it ends at this time if its client does not return.
                    remaining = max(remaining, lease.resume_ends_at - now)
                if lease.pause_ends_at is not None:
                    remaining = min(remaining, max(0.0, lease.pause_ends_at - now))
                times.append(remaining)
            times += [CLEANUP_S] * len(worker.closing)
            rest = worker.slots - len(worker.leases) - len(worker.closing)
            # A slot that is free for the gateway but not for its worker is about to become free.
            times += [0.0 if worker.free_slots else CLEANUP_S] * max(0, rest)
        return times

    def _touch(self, worker: Worker) -> None:
        # A worker that was silent for too long counts as lost until its next message, e.g. one that
        # was stopped and continued without its socket being closed.
        worker.is_connected = self.knows(worker)
        worker.is_silent = False
        worker.last_seen = self._clock.monotonic()
        worker.last_seen_time = self._clock.time()
        if worker.is_usable:
            self.last_alive_at = worker.last_seen
        self.alive.notify(worker)

    @property
    def _promising(self) -> list[Loading]:
        """Loading workers, except those that failed to load the last time."""
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
