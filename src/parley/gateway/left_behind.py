"""Sessions that an earlier gateway had, and of which the copy store has copies.

Most come with their workers: then there is nothing to do. Of a worker that comes without one it has
ended. One whose worker has died, too, is lost and can be rebuilt, and nobody else knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from parley import logs
from parley.gateway.copies import Copies
from parley.gateway.lost_session import LostSession
from parley.gateway.signals import Signal
from parley.gateway.worker_pool import Lease, Worker, WorkerPool
from parley.protocol.control import SILENCE_LIMIT_S

COMES_S: Final = 2 * SILENCE_LIMIT_S
"""How long a worker may take to come to the gateway although its process runs."""
LOOK_EVERY_S: Final = 0.25

log = logs.get(__name__)


class LeftBehind:
    """See the module's text. Belongs to the gateway's event loop.

    Args:
        is_gone: whether nobody listens at a worker's address any more.
    """

    def __init__(
        self, *, worker_pool: WorkerPool, copies: Copies, is_gone: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._worker_pool = worker_pool
        self._copies = copies
        self._is_gone = is_gone
        self._sessions: dict[str, LostSession] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        """By worker."""
        self.lost: Signal[LostSession] = Signal()
        """The worker of a session is gone."""
        self.decided: Signal[()] = Signal()
        """What became of one or more is known now."""
        copies.left_behind.listen(self._found)
        worker_pool.learned.listen(self._learned)
        worker_pool.joined.listen(self._joined)
        worker_pool.ended.listen(lambda lease, tokens: self._learned(lease))

    def find(self, session_id: str) -> LostSession | None:
        """One of which it is not known yet what became of it."""
        return self._sessions.get(session_id)

    def find_lease(self, lease_id: str) -> LostSession | None:
        """The same by its lease."""
        return next((one for one in self._sessions.values() if one.lease_id == lease_id), None)

    async def close(self) -> None:
        """Look for none any more."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _found(self, about: bytes) -> None:
        try:
            session = LostSession.read(about)
        except msgspec.MsgspecError as error:
            # Nobody asks for its copy, which is swept.
            log.warning("session of an earlier gateway not understood", why=str(error))
            return
        known = self._worker_pool.find_resumable(session.session_id)
        if known is not None:
            self._keep_only(known, session)
            return
        self._sessions[session.session_id] = session
        worker = self._worker_pool.find(session.worker_id)
        if worker is not None and worker.is_connected:
            self._joined(worker)
        elif session.worker_id not in self._looking:
            task = asyncio.create_task(
                self._look_for(session), name=f"looking for {session.worker_id}"
            )
            task.add_done_callback(logs.report_failure)
            self._looking[session.worker_id] = task

    def _learned(self, lease: Lease) -> None:
        session = self._sessions.pop(lease.session_id, None)
        if session is not None:
            self._keep_only(lease, session)
            self.decided.notify()

    def _keep_only(self, lease: Lease, session: LostSession) -> None:
        """A copy under an earlier lease is of no use: the session went on from it."""
        if lease.lease_id != session.lease_id:
            self._copies.drop(session.lease_id)

    def _joined(self, worker: Worker) -> None:
        """A worker has said which sessions it has."""
        for session in self._of(worker.worker_id):
            if session.worker_pid != worker.hello.pid:
                self._give_up(session)
            elif self._sessions.pop(session.session_id, None) is not None:
                self._copies.drop(session.lease_id)
                self.decided.notify()

    def _of(self, worker_id: str) -> list[LostSession]:
        return [one for one in self._sessions.values() if one.worker_id == worker_id]

    async def _look_for(self, one: LostSession) -> None:
        """Wait for a worker until it comes, or is gone."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + COMES_S
        try:
            while self._of(one.worker_id) and loop.time() < due_s:
                if await self._is_gone(one.worker_url):
                    break
                await asyncio.sleep(LOOK_EVERY_S)
            for session in self._of(one.worker_id):
                log.warning(
                    "worker of an earlier gateway gone",
                    worker=session.worker_id,
                    session_id=session.session_id,
                )
                self._give_up(session)
        finally:
            del self._looking[one.worker_id]

    def _give_up(self, session: LostSession) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self.lost.notify(session)
            self.decided.notify()
