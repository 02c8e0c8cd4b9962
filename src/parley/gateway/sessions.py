"""The registry of sessions: where each one is, from its lease to its end.

    waiting ─▶ connected ◀─▶ away ─▶ ended
                   │          │
                   └▶ moving ◀┘ ─▶ lost
                        └─▶ away

Waiting sessions are tickets of the queue. A session is `moving` while its worker is lost, drained
or unreachable and another one is to continue it from its log; also if it belonged to an earlier
gateway and its worker may still connect. Ended and lost sessions are remembered for a while, to
answer their clients. Each transition is a method or a handler of this class.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from parley import logs
from parley.errors import Refused
from parley.gateway.admission import Admission
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.rebuilding import NotRebuilt, Rebuilding
from parley.gateway.signals import Signal
from parley.gateway.successor import LostSession, ReservedSlot
from parley.gateway.waits import wait_until
from parley.gateway.worker_pool import Lease, Worker
from parley.protocol.control import SILENCE_LIMIT_S
from parley.protocol.kinds import Phase
from parley.session_log.contract import StoredLog
from parley.tasks import end_tasks, wait_for_event

HOLD_S: Final = 4.0
"""Time for which a client waits for its session to be found or rebuilt; then its connection is
closed, and the client tries again. Together with dialling the worker this is shorter than the time
that clients wait for an answer."""
COMES_S: Final = 2 * SILENCE_LIMIT_S
"""Time limit for the worker of an earlier gateway to join while its process runs."""
RETURNS_S: Final = 10.0
"""A client that has been away for less than this is expected back at any moment: another worker
continues its session without being asked."""
SPARE_EVERY_S: Final = 2.0
"""A session whose client has been away for longer looks at this interval for a slot that no client
waits for. By then, sessions whose clients are expected have their slots."""
LOOK_EVERY_S: Final = 0.25
OVER_LIMIT: Final = 1024
"""Number of ended sessions that are remembered."""
NOTHING_KEPT: Final = "Nothing of it was kept."

log = logs.get(__name__)


class NotYetKnown(Exception):
    """The session may be found later: the client should ask again."""


class SessionState(StrEnum):
    CONNECTED = "connected"
    AWAY = "away"
    MOVING = "moving"
    ENDED = "ended"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class GatewaySession:
    """One session of the registry.

    Args:
        lease: at its worker; None while it moves and once it is lost.
        lost: what another worker needs to continue it; while it moves and once it is lost.
        held: what its client took at admission; given back at its end.
        since_s: monotonic time at which it entered this state.
        rebuilding: the task that has another worker continue it; None while the gateway waits for
            its worker.
        asked: set when its client has returned or is expected at any moment. Until then it takes
            only a slot that no client waits for.
        was_there: True if its client was connected a moment before an earlier gateway and the
            worker were lost: it takes the next slot after the sessions with `asked`.
        left_s: remaining time of its window when its worker was lost; None: unknown.
        slot: its new slot, taken before it was stopped at its old worker.
        parting: its former lease, and the time at which it is ended there; set when it has just
            been moved.
        left: former leases; a worker that reports the session under one of them is ordered to end
            it.
        why: the reason why it was lost.
        has_ended: True if its worker reported its end, even if its last messages must still be
            fetched from the log.
    """

    session_id: str
    state: SessionState
    since_s: float
    lease: Lease | None = None
    lost: LostSession | None = None
    held: ExitStack = field(default_factory=ExitStack)
    rebuilding: asyncio.Task[None] | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    was_there: bool = False
    left_s: float | None = None
    slot: ReservedSlot | None = None
    parting: tuple[Lease, asyncio.TimerHandle] | None = None
    left: set[str] = field(default_factory=set)
    why: str = ""
    has_ended: bool = False

    @property
    def key_id(self) -> str | None:
        known = self.lost or self.lease
        return None if known is None else known.key_id

    @property
    def is_over(self) -> bool:
        return self.state in (SessionState.ENDED, SessionState.LOST)

    @property
    def shown(self) -> SessionState:
        """Its state as others see it: "away" while it has no worker and its client is not
        expected."""
        waits = self.rebuilding is not None and not self.asked.is_set()
        return SessionState.AWAY if waits else self.state


@dataclass(kw_only=True, eq=False, repr=False)
class Sessions:
    """See the module. Belongs to the gateway's event loop.

    Args:
        is_gone: True if no process listens at a worker's address any more.
        drop_log: removes a log.
        hold_s: see `HOLD_S`.
    """

    dispatcher: Dispatcher
    rebuilding: Rebuilding
    admission: Admission
    is_gone: Callable[[str], Awaitable[bool]]
    drop_log: Callable[[str], None]
    hold_s: float = HOLD_S

    def __post_init__(self) -> None:
        self.clock = self.dispatcher.clock
        self.worker_pool = self.dispatcher.worker_pool
        self._knows_all_at = self.clock.monotonic() + self.rebuilding.limits.resume_window_s
        """Until then a session that was not found may exist: on a busy machine the control socket
        of its worker can be late."""
        self._sessions: dict[str, GatewaySession] = {}
        self._seeking: dict[str, asyncio.Task[None]] = {}
        """Tasks that wait for workers of an earlier gateway, by worker id."""
        self._is_leaving = False
        self.doubled: Signal[Lease] = Signal()
        """Notified when a worker that was considered lost reports a session that continues
        elsewhere."""
        self.changed: Signal[()] = Signal()
        """Notified when a session has changed its state."""
        self.worker_pool.learned.listen(self._learned)
        self.worker_pool.joined.listen(self._joined)
        self.worker_pool.ended.listen(self._session_ended)

    # ---- what others ask -------------------------------------------------------------------

    def __iter__(self) -> Iterator[GatewaySession]:
        return iter(tuple(self._sessions.values()))

    def count(self) -> dict[str, int]:
        return dict(Counter(each.shown.value for each in self))

    @property
    def away(self) -> int:
        """Number of sessions that wait for a client whose connection broke."""
        return sum(each.state is SessionState.AWAY for each in self._sessions.values())

    @property
    def log_ids(self) -> set[str]:
        return {each.lost.log_id for each in self._moving() if each.lost is not None}

    def is_away(self, lease: Lease) -> bool:
        """True if no client is connected to the session of this lease."""
        found = self._sessions.get(lease.session_id)
        return found is not None and found.state is SessionState.AWAY and _is_of(found, lease)

    def moving(self, session_id: str) -> GatewaySession | None:
        """A session that another worker is about to continue."""
        found = self._sessions.get(session_id)
        return found if found is not None and found.rebuilding is not None else None

    def known_to(self, key_id: str | None, session_id: str) -> GatewaySession | None:
        """The session with this id; None if there is none or it belongs to another key."""
        found = self._sessions.get(session_id)
        return found if found is not None and found.key_id == key_id else None

    async def find(self, session_id: str, key_id: str | None = None) -> Lease | None:
        """The lease of a session that runs or has ended; None: there is none. Waits a moment for a
        session that is moving or whose worker may still connect.

        Args:
            key_id: the client's key. Sessions of other keys are left alone.

        Raises:
            NotYetKnown: it was not found in time, or the next gateway will have it.
        """
        lease: Lease | None = None
        holds_until = asyncio.get_running_loop().time() + self.hold_s

        def is_known() -> bool:
            nonlocal lease
            found = self._sessions.get(session_id)
            if found is not None and found.key_id == key_id:
                found.asked.set()
            lease = self.worker_pool.find_resumable(session_id)
            if lease is None and found is not None and found.state is SessionState.ENDED:
                lease = found.lease
            if lease is None and self._is_leaving:
                raise NotYetKnown
            if found is not None and found.state is SessionState.MOVING:
                return False
            is_over = found is not None and found.is_over
            return lease is not None or is_over or self._knows_all_in_s <= 0

        def left_s() -> float:
            found = self._sessions.get(session_id)
            held_s = holds_until - asyncio.get_running_loop().time()
            is_moving = found is not None and found.state is SessionState.MOVING
            return held_s if is_moving else min(held_s, self._knows_all_in_s)

        pool = self.worker_pool
        if not await wait_until(is_known, (pool.learned, pool.ended, self.changed), left_s):
            raise NotYetKnown
        return lease

    @property
    def _knows_all_in_s(self) -> float:
        return self._knows_all_at - self.clock.monotonic()

    # ---- what connections do ---------------------------------------------------------------

    def connect(self, lease: Lease) -> None:
        found = self._sessions.get(lease.session_id)
        if found is None or found.is_over or not _is_of(found, lease):
            found = self._add(lease.session_id, SessionState.CONNECTED)
        found.lease = lease
        self._enter(found, SessionState.CONNECTED)

    def disconnect(self, lease: Lease) -> None:
        """End a session that cannot be resumed, because its client left."""
        found = self._sessions.get(lease.session_id)
        # Another connection may have taken the lease over; then it is another object.
        if found is not None and found.state is SessionState.CONNECTED and found.lease is lease:
            del self._sessions[lease.session_id]

    def keep(self, lease: Lease, held: ExitStack) -> None:
        """Keep a session whose client was disconnected. If it has ended by now, release everything.

        Args:
            lease: is transferred; its former holder need not release it.
            held: what its client took at admission; released with the lease.
        """
        is_current = self._is_current(lease)
        found = self._sessions.get(lease.session_id)
        if lease.phase is Phase.ENDED or not is_current:
            lease.release()
            held.close()
            if is_current and found is not None and not found.is_over:
                found.lease, found.lost, found.has_ended = lease, None, True
                self._enter(found, SessionState.ENDED)
            return
        if found is None or found.is_over:
            found = self._add(lease.session_id, SessionState.AWAY)
        found.lease, found.held, found.lost = lease.transfer(), held, None
        found.asked.clear()
        self._enter(found, SessionState.AWAY)
        kept = found.lease
        kept.lost.listen(lambda: self._worker_lost(found, kept))
        log.info("session_kept", session_id=lease.session_id, worker=lease.worker.worker_id)
        if lease.is_lost:
            self._worker_lost(found, kept)

    def take(self, lease: Lease) -> Lease | None:
        """Transfer the lease to a returning client; None if the session has ended.

        Raises:
            NotYetKnown: another worker continues it.
        """
        found = self._sessions.get(lease.session_id)
        if found is not None and not found.is_over and lease.lease_id in found.left:
            raise NotYetKnown
        worker = lease.worker
        current = worker.leases.get(lease.lease_id) or worker.closing.get(lease.lease_id)
        taken = None if current is None else current.transfer()
        if found is not None and not found.is_over and _is_of(found, lease):
            found.held.close()
            if taken is not None:
                self.connect(taken)
        return taken

    def seek_last_words(self, lease: Lease) -> bool:
        """The worker of an ended session is lost: look for messages that its client has not
        received in the session's log. Returns False if the session has not ended."""
        found = self._sessions.get(lease.session_id)
        if found is None or found.state is not SessionState.ENDED or found.lease is None:
            return False
        self._move(found, LostSession.of(found.lease), ExitStack())
        return True

    def get(self, session_id: str) -> GatewaySession | None:
        return self._sessions.get(session_id)

    def abandon(self, session_id: str) -> None:
        """The client of a moving session will not return: stop rebuilding it."""
        found = self.moving(session_id)
        if found is not None and found.rebuilding is not None:
            found.rebuilding.cancel()

    # ---- what workers do -------------------------------------------------------------------

    def found(self, stored: StoredLog) -> None:
        """Add a session of an earlier gateway whose log was found."""
        try:
            lost = LostSession.of_log(stored, self.clock.monotonic())
        except msgspec.MsgspecError as error:
            log.warning("session_log_unreadable", why=str(error))
            self.drop_log(stored.session.log_id)
            return
        known = self._sessions.get(lost.session_id)
        is_over = known is not None and known.is_over
        if is_over or self.worker_pool.find_resumable(lost.session_id) is not None:
            return
        sought = self._add(lost.session_id, SessionState.MOVING)
        sought.lost, sought.was_there = lost, stored.age_s < RETURNS_S
        if sought.was_there:
            self.dispatcher.await_returns()
        worker = self.worker_pool.find(lost.worker_id)
        if worker is not None and worker.is_connected:
            self._joined(worker)
        elif lost.worker_id not in self._seeking:
            task = asyncio.create_task(self._seek(lost), name=f"seeking {lost.worker_id}")
            task.add_done_callback(logs.report_failure)
            self._seeking[lost.worker_id] = task

    def leave(self) -> None:
        """From now on, leave lost and moving sessions and their logs to the next gateway. Safe to
        repeat."""
        self._is_leaving = True
        for each in self._moving():
            if each.rebuilding is not None:
                log.info("session_left_to_next_gateway", session_id=each.session_id)
                each.rebuilding.cancel()
        self.changed.notify()

    async def close(self) -> None:
        tasks = list(self._seeking.values())
        tasks += [each.rebuilding for each in self._moving() if each.rebuilding is not None]
        await end_tasks(*tasks)

    def _moving(self) -> list[GatewaySession]:
        return [each for each in self._sessions.values() if each.state is SessionState.MOVING]

    def _add(self, session_id: str, state: SessionState) -> GatewaySession:
        """Add a session as the newest one."""
        self._sessions.pop(session_id, None)
        added = GatewaySession(session_id, state, self.clock.monotonic())
        self._sessions[session_id] = added
        return added

    def _enter(self, session: GatewaySession, state: SessionState) -> None:
        session.state, session.since_s = state, self.clock.monotonic()
        if session.is_over:
            session.held.close()
            # Those that ended first come first.
            self._sessions[session.session_id] = self._sessions.pop(session.session_id, session)
            over = [each for each in self._sessions.values() if each.is_over]
            for each in over[: max(0, len(over) - OVER_LIMIT)]:
                del self._sessions[each.session_id]
        self.changed.notify()

    def _worker_lost(self, session: GatewaySession, lease: Lease) -> None:
        if session.state is SessionState.AWAY and session.lease is lease:
            lease.release()
            now_s = self.clock.monotonic()
            if now_s - session.since_s < RETURNS_S:
                session.asked.set()
            ends_at_s = lease.resume_ends_at
            session.left_s = None if ends_at_s is None else ends_at_s - now_s
            self._move(session, LostSession.of(lease), session.held)

    def _move(self, session: GatewaySession, lost: LostSession, held: ExitStack) -> None:
        session.lease, session.lost, session.held = None, lost, held
        if self._is_leaving:
            held.close()
            self._sessions.pop(session.session_id, None)
            return
        if not lost.log_id:
            self._lose(session, NOTHING_KEPT)
            return
        session.left.add(lost.lease_id)
        self._enter(session, SessionState.MOVING)
        work = self._continue_elsewhere(session, lost)
        session.rebuilding = asyncio.create_task(work, name=f"{lost.session_id}:rebuild")

    async def _continue_elsewhere(self, session: GatewaySession, lost: LostSession) -> None:
        slot, session.slot = session.slot, None
        try:
            if slot is None and not session.asked.is_set():
                await self._until_asked_or_spare(session, lost)
            taken = await self.rebuilding.rebuild(lost, slot, session.left)
        except NotRebuilt as error:
            self._lose(session, str(error))
        except asyncio.CancelledError:
            if not self._is_leaving:
                self._lose(session, "Its client had left.")
            raise
        except Exception:
            # No other code awaits this task: without this its client would retry for ever.
            log.exception("session_not_rebuilt", session_id=lost.session_id)
            self._lose(session, "The server made a mistake; its log has more.")
        else:
            session.rebuilding = session.lost = None
            self.keep(taken, session.held)

    async def _until_asked_or_spare(self, session: GatewaySession, lost: LostSession) -> None:
        """Wait until the client asks for the session, or a slot is free that no client waits for.
        Slots and the places of an address are for sessions whose clients are connected; many of the
        others have ended, and only their last messages are left. A spare slot is taken, because a
        log can be lost, too.

        Raises:
            NotRebuilt: the client did not return within its window.
        """
        session.held.close()
        session.held = self._admitted(lost, is_counted=False)
        left_s = self.rebuilding.limits.resume_window_s
        if session.left_s is not None:
            left_s = max(RETURNS_S, session.left_s)
        try:
            async with asyncio.timeout(left_s):
                while not session.asked.is_set():
                    await wait_for_event(session.asked, SPARE_EVERY_S)
                    is_spare = self.dispatcher.has_spare_slot(lost.kind, lost.fingerprint)
                    if session.was_there or is_spare:
                        break
        except TimeoutError:
            raise NotRebuilt("Its client did not come back.") from None
        session.held.close()
        session.held = self._admitted(lost)

    def _lose(self, session: GatewaySession, why: str) -> None:
        session.rebuilding, session.why = None, why
        if session.lost is not None and session.lost.log_id:
            self.drop_log(session.lost.log_id)
        self._enter(session, SessionState.ENDED if session.has_ended else SessionState.LOST)

    def _learned(self, lease: Lease) -> None:
        """A worker reports a session of an earlier gateway, or one that was considered lost."""
        found = self._sessions.get(lease.session_id)
        if found is not None and lease.lease_id in found.left:
            self.doubled.notify(lease)
            lease.release()
        elif self._is_current(lease):
            self.keep(lease, self._admitted(lease))
        else:
            lease.release()

    def _is_current(self, lease: Lease) -> bool:
        """False if a newer session has the same id. Gateways that do not know all workers yet can
        give an id twice; the older session is ended."""
        known = self._sessions.get(lease.session_id)
        other = None if known is None or known.is_over else known.lease or known.lost
        if known is None or other is None or other.lease_id == lease.lease_id:
            return True
        log.warning("session_doubled", session_id=lease.session_id)
        if lease.phase is Phase.ENDED or _leased_time(lease) <= _leased_time(other):
            self.doubled.notify(lease)
            return False
        del self._sessions[lease.session_id]
        known.held.close()
        # If another worker is about to continue it, its lease is compared with this one later.
        known.lost = None
        if known.lease is not None:
            self.doubled.notify(known.lease)
            known.lease.release()
        return True

    def _joined(self, worker: Worker) -> None:
        """A worker has reported its sessions: decide about those that it was expected to report."""
        for session in self._sought_at(worker.worker_id):
            assert session.lost is not None
            if session.lost.worker_pid != worker.hello.pid:
                self._move(session, session.lost, self._admitted(session.lost))
            else:
                # The same process no longer knows it: it has ended.
                del self._sessions[session.session_id]
                self.drop_log(session.lost.log_id)
                self.changed.notify()

    def _sought_at(self, worker_id: str) -> list[GatewaySession]:
        """Sessions of an earlier gateway that this worker may report."""
        return [
            each
            for each in self._moving()
            if each.rebuilding is None and each.lost and each.lost.worker_id == worker_id
        ]

    async def _seek(self, one: LostSession) -> None:
        """Wait until the session's worker joins or is gone."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + COMES_S
        try:
            while self._sought_at(one.worker_id) and loop.time() < due_s:
                if await self.is_gone(one.worker_url):
                    break
                await asyncio.sleep(LOOK_EVERY_S)
            sought = self._sought_at(one.worker_id)
            if sought:
                log.warning(
                    "worker_of_earlier_gateway_gone", worker=one.worker_id, sessions=len(sought)
                )
            for session in sought:
                assert session.lost is not None
                self._move(session, session.lost, self._admitted(session.lost))
        finally:
            del self._seeking[one.worker_id]

    def _admitted(self, known: LostSession | Lease, *, is_counted: bool = True) -> ExitStack:
        """Admit a session again that was admitted before.

        Args:
            is_counted: True if it counts for its client's address and key.
        """
        held = ExitStack()
        with contextlib.suppress(Refused):
            held.enter_context(self.admission.claim(known.session_id))
        if is_counted:
            held.enter_context(self.admission.count(known.address, known.key_id))
        return held

    def _session_ended(self, lease: Lease, tokens: int) -> None:
        """A worker has ended a session and removed its log."""
        del tokens
        found = self._sessions.get(lease.session_id)
        if lease.resume is None or (found is not None and lease.lease_id in found.left):
            return
        if found is not None and found.lease is not None and not _is_of(found, lease):
            # It runs under another lease: it has moved away from this worker.
            return
        if found is None or found.is_over:
            found = self._add(lease.session_id, SessionState.ENDED)
        if found.state is SessionState.AWAY and found.lease is not None:
            found.lease.release()
        found.lease, found.lost, found.has_ended = lease, None, True
        self._enter(found, SessionState.ENDED)


def _leased_time(one: Lease | LostSession) -> float:
    """Unix time at which a session got its slot at its present worker."""
    return one.granted_time + one.ran_s


def _is_of(session: GatewaySession, lease: Lease) -> bool:
    return session.lease is not None and session.lease.lease_id == lease.lease_id
