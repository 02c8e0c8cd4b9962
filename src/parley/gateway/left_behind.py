"""Sessions that an earlier gateway had, found by their logs.

Most come with their workers: then there is nothing to do. Of a worker that comes without one it has
ended. One whose worker has died, too, is lost and can be rebuilt, and nobody else knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from parley import logs
from parley.gateway.lost_session import LostSession
from parley.gateway.signals import Signal
from parley.gateway.worker_pool import Lease, Worker, WorkerPool
from parley.protocol.control import SILENCE_LIMIT_S
from parley.session_log.contract import LoggedSession

COMES_S: Final = 2 * SILENCE_LIMIT_S
"""How long a worker may take to come to the gateway although its process runs."""
LOOK_EVERY_S: Final = 0.25

log = logs.get(__name__)


class LeftBehind:
    """See the module's text. Belongs to the gateway's event loop.

    Args:
        is_gone: True if no process listens at a worker's address any more.
        drop_log: removes a log.
    """

    def __init__(
        self,
        *,
        worker_pool: WorkerPool,
        is_gone: Callable[[str], Awaitable[bool]],
        drop_log: Callable[[str], None],
    ) -> None:
        self._worker_pool = worker_pool
        self._drop_log = drop_log
        self._is_gone = is_gone
        self._sessions: dict[str, LostSession] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        """By worker."""
        self.lost: Signal[LostSession] = Signal()
        """The worker of a session is gone."""
        self.decided: Signal[()] = Signal()
        """What became of one or more is known now."""
        worker_pool.learned.listen(self._learned)
        worker_pool.joined.listen(self._joined)
        worker_pool.ended.listen(lambda lease, tokens: self._learned(lease))

    def find(self, session_id: str) -> LostSession | None:
        """One of which it is not known yet what became of it."""
        return self._sessions.get(session_id)

    @property
    def log_ids(self) -> set[str]:
        """Of all of them."""
        return {one.log_id for one in self._sessions.values()}

    async def close(self) -> None:
        """Look for none any more."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def found(self, logged: LoggedSession) -> None:
        """There is a log of this session."""
        try:
            session = LostSession.of_log(logged)
        except msgspec.MsgspecError as error:
            log.warning("earlier_session_unreadable", why=str(error))
            self._drop_log(logged.log_id)
            return
        if self._worker_pool.find_resumable(session.session_id) is not None:
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
        if self._sessions.pop(lease.session_id, None) is not None:
            self.decided.notify()

    def _joined(self, worker: Worker) -> None:
        """A worker has said which sessions it has."""
        for session in self._of(worker.worker_id):
            if session.worker_pid != worker.hello.pid:
                self._give_up(session)
            elif self._sessions.pop(session.session_id, None) is not None:
                self._drop_log(session.log_id)
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
                    "earlier_worker_gone",
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
