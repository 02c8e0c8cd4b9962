"""Sessions whose client was cut off, and which of them a client may go on with.

Somebody has to hold the lease, the session id and the client's place in the counts while nobody is
connected: until the client is back, the worker has ended the session, or the worker is gone and no
other one could continue from its log. Also holds what a worker brings along that an earlier gateway
leased, and what such a gateway left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from parley import logs
from parley.clock import Clock
from parley.errors import Refused
from parley.gateway.admission import Admission
from parley.gateway.left_behind import LeftBehind
from parley.gateway.lost_session import LostSession
from parley.gateway.signals import Signal
from parley.gateway.worker_pool import Lease, WorkerPool
from parley.protocol.kinds import Phase

HOLD_S: Final = 4.0
"""How long a client waits for its session to be found or rebuilt before it is told to ask again:
with dialling its worker less than clients wait for an answer."""
ENDED_LIMIT: Final = 256
"""Ended sessions whose clients may still ask; their workers know what to say."""
MOVED_LIMIT: Final = 1 << 14
"""Sessions that went on elsewhere: as many as workers that were thought lost may bring again."""

NOTHING_KEPT: Final = "Nothing of it was kept."

T = TypeVar("T")

log = logs.get(__name__)


class NotRebuilt(Exception):
    """No other worker can go on with a session; `args[0]` says why."""


class NotYetKnown(Exception):
    """A session may be found later: its client is to ask again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    lease: Lease
    held: ExitStack


class KeptSessions:
    """See the module's text. Belongs to the gateway's event loop.

    Args:
        window_s: how long sessions wait for their clients. For so long after its start a gateway
            does not know of a session that it cannot find whether it exists: whatever delays the
            control socket of its worker, as a busy machine does.
        hold_s: see `HOLD_S`.
    """

    def __init__(
        self,
        *,
        worker_pool: WorkerPool,
        admission: Admission,
        clock: Clock,
        left_behind: LeftBehind,
        drop_log: Callable[[str], None],
        window_s: float,
        hold_s: float = HOLD_S,
    ) -> None:
        self._drop_log = drop_log
        self._left_behind = left_behind
        self.rebuild: Callable[[LostSession], Awaitable[Lease]] | None = None
        """Goes on with a session of a lost worker at another one; raises `NotRebuilt`."""
        self.doubled: Signal[Lease] = Signal()
        """A worker that was thought lost brings a session with it that goes on elsewhere."""
        self._rebuilding: dict[str, tuple[LostSession, asyncio.Task[None]]] = {}
        """By session."""
        self._lost_at: dict[str, float] = {}
        """Since when those wait."""
        self._moved: dict[str, None] = {}
        """Leases whose sessions went on elsewhere, newest last."""
        self._is_leaving = False
        self._lost: dict[str, tuple[LostSession, str]] = {}
        """Sessions that were lost with their workers, and why, newest last."""
        self._worker_pool = worker_pool
        self._admission = admission
        self._clock = clock
        self._hold_s = hold_s
        self._knows_all_at = clock.monotonic() + window_s
        self._kept: dict[str, _Kept] = {}
        self._ended: dict[str, Lease] = {}
        worker_pool.learned.listen(self._learned)
        worker_pool.ended.listen(self._session_ended)
        left_behind.lost.listen(self._found_lost)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, lease: Lease, held: ExitStack) -> None:
        """Hold a session without a client; of one that has ended meanwhile nothing is left to hold.

        Args:
            lease: whoever held it has nothing to release any more.
            held: what its client took at admission; given back with the lease.
        """
        if lease.phase is Phase.ENDED:
            lease.release()
            held.close()
            return
        kept = _Kept(lease.transfer(), held)
        self._kept[lease.lease_id] = kept
        kept.lease.lost.listen(lambda: self._worker_lost(kept))
        log.info("session_kept", session_id=lease.session_id, worker=lease.worker.worker_id)
        if lease.is_lost:
            self._worker_lost(kept)

    def is_kept(self, lease: Lease) -> bool:
        """Whether nobody is connected to a session, and it waits here."""
        return lease.lease_id in self._kept

    def can_be_rebuilt(self, lease: Lease) -> bool:
        """True if another worker could continue a session, should its worker be lost."""
        return self.rebuild is not None and bool(lease.log_id)

    def moved(self, lease_id: str) -> None:
        """What was under this lease goes on under another one; a worker that brings it ends it."""
        _remember(self._moved, lease_id, None, limit=MOVED_LIMIT)

    @property
    def log_ids(self) -> set[str]:
        """Logs of sessions that are being rebuilt, or may have to be."""
        return {lost.log_id for lost, _ in self._rebuilding.values()} | self._left_behind.log_ids

    def take(self, lease: Lease) -> Lease | None:
        """The lease for a client that has come back, whoever held it; None: the session has
        ended."""
        found = self._kept.pop(lease.lease_id, None)
        worker = lease.worker
        current = worker.leases.get(lease.lease_id) or worker.closing.get(lease.lease_id)
        taken = None if current is None else current.transfer()
        if found is not None:
            found.held.close()
        return taken

    async def find(self, session_id: str) -> Lease | None:
        """The lease of a session that runs or has ended; None: there is none. Waits a moment where
        it is being rebuilt, or may come with a worker.

        Raises:
            NotYetKnown: a moment was not enough, or the next gateway will know.
        """
        try:
            async with asyncio.timeout(self._hold_s):
                while True:
                    _, rebuilding = self._rebuilding.get(session_id, (None, None))
                    found = self._worker_pool.find_resumable(session_id)
                    found = found or self._ended.get(session_id)
                    if found is None and self._is_leaving:
                        raise NotYetKnown
                    left_s = self._knows_all_at - self._clock.monotonic()
                    is_known = found is not None or session_id in self._lost or left_s <= 0
                    is_known &= self._left_behind.find(session_id) is None
                    if rebuilding is None and is_known:
                        return found
                    await self._next_change(rebuilding, left_s if left_s > 0 else None)
        except TimeoutError:
            raise NotYetKnown from None

    def why_lost(self, session_id: str, key_id: str | None) -> str | None:
        """Why a session was lost with its worker, to who showed this key; None: it was not."""
        lost, why = self._lost.get(session_id, (None, ""))
        return why if lost is not None and lost.key_id == key_id else None

    def waits_since(self, session_id: str, key_id: str | None) -> float | None:
        """When the session of a client with this key was lost, if it is being rebuilt; monotonic
        seconds."""
        lost, _ = self._rebuilding.get(session_id, (None, None))
        return self._lost_at.get(session_id) if lost is not None and lost.key_id == key_id else None

    def being_rebuilt(self, session_id: str) -> LostSession | None:
        """One that is about to go on at another worker."""
        lost, _ = self._rebuilding.get(session_id, (None, None))
        return lost

    def abandon(self, session_id: str) -> None:
        """The client of such a session will not come back."""
        _, task = self._rebuilding[session_id]
        task.cancel()

    def leave(self) -> None:
        """The next gateway rebuilds what is lost from here on, and what was being rebuilt: logs
        stay where they are. Safe to repeat."""
        self._is_leaving = True
        for lost, task in self._rebuilding.values():
            log.info("session_left_to_next_gateway", session_id=lost.session_id)
            task.cancel()
        self._left_behind.decided.notify()

    async def close(self) -> None:
        """Rebuild nothing any more."""
        tasks = [task for _, task in self._rebuilding.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _worker_lost(self, kept: _Kept) -> None:
        lease = kept.lease
        if self._kept.pop(lease.lease_id, None) is None:
            return
        lease.release()
        self._go_on_elsewhere(LostSession.of(lease), kept.held)

    def _found_lost(self, lost: LostSession) -> None:
        """One that an earlier gateway left behind, and whose worker is gone."""
        self._go_on_elsewhere(lost, self._admitted(lost))

    def _go_on_elsewhere(self, lost: LostSession, held: ExitStack) -> None:
        if self._is_leaving:
            held.close()
            return
        if self.rebuild is None or not lost.log_id:
            self._lose(lost, held, NOTHING_KEPT)
            return
        self.moved(lost.lease_id)
        task = asyncio.create_task(
            self._go_on(self.rebuild, lost, held), name=f"{lost.session_id}:rebuild"
        )
        self._rebuilding[lost.session_id] = lost, task
        self._lost_at[lost.session_id] = self._clock.monotonic()

    async def _go_on(
        self,
        rebuild: Callable[[LostSession], Awaitable[Lease]],
        lost: LostSession,
        held: ExitStack,
    ) -> None:
        try:
            taken = await rebuild(lost)
        except NotRebuilt as error:
            self._lose(lost, held, str(error))
        except asyncio.CancelledError:
            if not self._is_leaving:
                self._lose(lost, held, "Its client had left.")
            raise
        except Exception:
            # Nobody waits for this task: its client would be told to try again for ever.
            log.exception("session_not_rebuilt", session_id=lost.session_id)
            self._lose(lost, held, "The server made a mistake; its log has more.")
        else:
            self.keep(taken, held)
        finally:
            del self._rebuilding[lost.session_id]
            self._lost_at.pop(lost.session_id, None)

    def _lose(self, lost: LostSession, held: ExitStack, why: str) -> None:
        """It cannot go on anywhere."""
        if lost.log_id:
            self._drop_log(lost.log_id)
        _remember(self._lost, lost.session_id, (lost, why))
        held.close()

    async def _next_change(
        self, rebuilding: asyncio.Task[None] | None, limit_s: float | None
    ) -> None:
        """Until a session has been rebuilt or a worker has brought or ended one."""
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def notice(*what: object) -> None:
            if not came.done():
                came.set_result(None)

        pool = self._worker_pool
        stops = (
            pool.learned.listen(notice),
            pool.ended.listen(notice),
            self._left_behind.decided.listen(notice),
        )
        first: set[asyncio.Future[None]] = {came} if rebuilding is None else {came, rebuilding}
        try:
            await asyncio.wait(first, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for stop in stops:
                stop()

    def _learned(self, lease: Lease) -> None:
        if lease.lease_id in self._moved:
            self.doubled.notify(lease)
            lease.release()
            return
        self.keep(lease, self._admitted(lease))

    def _admitted(self, session: Lease | LostSession) -> ExitStack:
        """What a session of an earlier gateway holds here. It was admitted once."""
        held = ExitStack()
        with contextlib.suppress(Refused):
            held.enter_context(self._admission.claim(session.session_id))
            held.enter_context(self._admission.visit(session.address))
        return held

    def _session_ended(self, lease: Lease, tokens: int) -> None:
        del tokens
        if lease.resume is None or lease.lease_id in self._moved:
            return
        if lease.log_id:
            self._drop_log(lease.log_id)
        _remember(self._ended, lease.session_id, lease)
        self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        kept = self._kept.pop(lease.lease_id, None)
        if kept is not None:
            kept.lease.release()
            kept.held.close()


def _remember(among: dict[str, T], name: str, value: T, *, limit: int = ENDED_LIMIT) -> None:
    """Add it as the newest of at most `limit`."""
    among.pop(name, None)
    among[name] = value
    while len(among) > limit:
        among.pop(next(iter(among)))
