"""Moves sessions off a worker that is drained or cannot be reached: each continues on another
worker, as if its own had been lost.

A slot is taken first, and the worker of that slot follows the session's log. When it has nearly
caught up, the session is stopped between two turns or units. If there is no slot, it stays where it
is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from parley import logs
from parley.gateway.sessions import GatewaySession, Sessions
from parley.gateway.successor import LostSession, ReservedSlot
from parley.gateway.worker_control import WorkerControl
from parley.gateway.worker_pool import Lease, Worker
from parley.tasks import end_tasks

LOOK_EVERY_S: Final = 0.5
MOVES_AT_ONCE: Final = 16
TAKE_S: Final = 2.0
"""Time limit for a session to take its new slot."""

log = logs.get(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class Moving:
    sessions: Sessions
    worker_control: WorkerControl

    def __post_init__(self) -> None:
        self.rebuilding = self.sessions.rebuilding
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
        worker, pool = lease.worker, self.sessions.worker_pool
        worker.is_unreachable = True
        current = worker.leases.get(lease.lease_id)
        if current is None or not self.sessions.is_away(current):
            return
        if current.log_id and pool.with_room(current.kind, worker.hello.fingerprint):
            log.info("session_moving", session_id=current.session_id, worker=worker.worker_id)
            self._part(current)

    def leave(self) -> None:
        """Stop moving without ending sessions in transit: the next gateway finds them at their old
        worker. Safe to repeat."""
        for session in self.sessions:
            if session.parting is None:
                continue
            lease, timer = session.parting
            session.parting = None
            timer.cancel()
            if self.sessions.moving(session.session_id) is None:
                self.worker_control.end_doubled(lease)

    async def close(self) -> None:
        await end_tasks(*self._tasks.values())

    async def _empty(self, worker: Worker) -> None:
        limit = asyncio.Semaphore(MOVES_AT_ONCE)

        async def move(lease_id: str) -> None:
            async with limit:
                lease = worker.leases.get(lease_id)
                if lease is not None and lease.log_id:
                    await self._move(lease)

        await asyncio.gather(*(move(lease_id) for lease_id in list(worker.leases)))

    async def _move(self, lease: Lease) -> None:
        worker, session = lease.worker, self.sessions.get(lease.session_id)
        if session is None:
            return
        lost = LostSession.of(lease)
        slot = ReservedSlot(self.rebuilding.ask(lost))
        is_offered = False

        # Each wait ends with the session's end and with the end of the request, too.
        def is_open() -> bool:
            return worker.is_draining and lease.lease_id in worker.leases

        try:
            while not slot.has_successor and is_open():
                if slot.ticket.state == "leased":
                    await self.rebuilding.open(lost, slot, follows=True)
                elif slot.ticket.state == "waiting":
                    await asyncio.sleep(LOOK_EVERY_S)
                else:
                    return
            if not is_open():
                return
            # From now on it continues in this slot if its worker is lost.
            session.slot, is_offered = slot, True
            while slot.is_behind and session.slot is slot and is_open():
                await slot.wait(LOOK_EVERY_S)
            if not is_open():
                # Its worker may have been lost: the session then takes the slot in a moment.
                await asyncio.sleep(LOOK_EVERY_S)
            elif session.slot is slot:
                await self._part_at_rest(session, lease)
        finally:
            if session.slot is slot or not is_offered:
                session.slot = None
                await slot.close()
                self.rebuilding.dispatcher.cancel(slot.ticket)

    async def _part_at_rest(self, session: GatewaySession, lease: Lease) -> None:
        """Stop a session between two turns or units, and reserve its new slot for a while."""
        worker, slot = lease.worker, session.slot
        current = worker.leases.get(lease.lease_id)
        if current is None or not await self.worker_control.hand_over(current):
            log.info("session_not_moved", session_id=lease.session_id)
            return
        log.info("session_moving", session_id=lease.session_id, worker=worker.worker_id)
        self._part(worker.leases.get(lease.lease_id, current))
        due_s = asyncio.get_running_loop().time() + TAKE_S
        while session.slot is slot and asyncio.get_running_loop().time() < due_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)

    def _part(self, lease: Lease) -> None:
        """Mark the session as lost at its old worker, with its new slot reserved."""
        lease.is_lost = True
        lease.lost.notify()
        session = self.sessions.get(lease.session_id)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LOOK_EVERY_S, self._end_there, session, lease)
        if session is not None:
            session.parting = lease, timer

    def _end_there(self, session: GatewaySession | None, lease: Lease) -> None:
        if session is not None:
            session.parting = None
        self.worker_control.end_doubled(lease)
