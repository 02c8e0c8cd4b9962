"""Sessions leave a worker that is drained, or that cannot be reached: each continues at
another one, as if its worker had been lost.

Of a worker that is drained a session leaves at a moment that suits it: a slot is taken first; only
then is it stopped between two turns or units. Where there is no slot it stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from parley import logs
from parley.gateway.dispatcher import Dispatcher
from parley.gateway.rebuilding import Rebuilding
from parley.gateway.sessions import GatewaySession, Sessions
from parley.gateway.worker_pool import Lease, Worker

LOOK_EVERY_S: Final = 0.5
MOVES_AT_ONCE: Final = 16
TAKE_S: Final = 2.0
"""Time for a session to take its new slot."""

log = logs.get(__name__)


class Moving:
    """See the module's text.

    Args:
        hand_over: stops a session at its worker, with everything in its log; True if it did.
        end: ends a session that continues elsewhere.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        rebuilding: Rebuilding,
        dispatcher: Dispatcher,
        hand_over: Callable[[Lease], Awaitable[bool]],
        end: Callable[[Lease], None],
    ) -> None:
        self._sessions = sessions
        self._rebuilding = rebuilding
        self._dispatcher = dispatcher
        self._hand_over = hand_over
        self._end = end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By worker."""

    def begin(self, worker: Worker) -> asyncio.Task[None]:
        """Move sessions away for as long as the worker is drained."""
        running = self._tasks.get(worker.worker_id)
        if running is not None and not running.done():
            return running
        task = asyncio.create_task(self._empty(worker), name=f"empty {worker.worker_id}")
        task.add_done_callback(logs.report_failure)
        self._tasks[worker.worker_id] = task
        return task

    def move_unreachable(self, lease: Lease) -> None:
        """Move a session whose worker is alive but cannot be reached. A session without a
        connection continues at another worker that has room and its log; otherwise it stays."""
        worker, pool = lease.worker, self._dispatcher.worker_pool
        pool.unreachable(worker)
        current = worker.leases.get(lease.lease_id)
        if current is None or not self._sessions.is_away(current):
            return
        if current.log_id and pool.with_room(current.kind, worker.hello.fingerprint):
            log.info("session_moving", session_id=current.session_id, worker=worker.worker_id)
            self._part(current)

    def leave(self) -> None:
        """Stop moving without ending sessions in transit: the next gateway finds them at their old
        worker. Safe to repeat."""
        for session in self._sessions:
            if session.parting is None:
                continue
            lease, timer = session.parting
            session.parting = None
            timer.cancel()
            if self._sessions.moving(session.session_id) is None:
                self._end(lease)

    async def close(self) -> None:
        """Stop moving sessions."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _empty(self, worker: Worker) -> None:
        limit = asyncio.Semaphore(MOVES_AT_ONCE)

        async def move(lease_id: str) -> None:
            async with limit:
                lease = worker.leases.get(lease_id)
                if lease is not None and self._sessions.can_move(lease):
                    await self._move(lease_id, lease)

        await asyncio.gather(*(move(lease_id) for lease_id in list(worker.leases)))

    async def _move(self, lease_id: str, lease: Lease) -> None:
        worker, fingerprint = lease.worker, lease.worker.hello.fingerprint
        session_id, session = lease.session_id, self._sessions.get(lease.session_id)
        if session is None:
            return
        ticket = self._rebuilding.ask(lease, fingerprint)
        is_taken = False
        try:
            # The first of: a slot, the session's end, the end of the request.
            def is_open() -> bool:
                return worker.is_draining and lease_id in worker.leases

            while ticket.state == "waiting" and is_open():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)
            if ticket.state != "leased" or not worker.is_draining:
                return
            current = worker.leases.get(lease_id)
            if current is None or not await self._hand_over(current):
                log.info("session_not_moved", session_id=session_id)
                return
            session.slot = ticket
            log.info("session_moving", session_id=session_id, worker=worker.worker_id)
            self._part(worker.leases.get(lease_id, current))
            await asyncio.sleep(TAKE_S)
            is_taken = session.slot is None
        finally:
            if not is_taken:
                session.slot = None
                self._dispatcher.cancel(ticket)

    def _part(self, lease: Lease) -> None:
        """Mark the session as lost at its old worker, with its new slot reserved."""
        lease.is_lost = True
        lease.lost.notify()
        session = self._sessions.get(lease.session_id)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LOOK_EVERY_S, self._end_there, session, lease)
        if session is not None:
            session.parting = lease, timer

    def _end_there(self, session: GatewaySession | None, lease: Lease) -> None:
        if session is not None:
            session.parting = None
        self._end(lease)
