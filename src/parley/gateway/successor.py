"""Another worker that continues a session, as the gateway sees it.

A worker that is drained or asked to stop still runs its sessions. Another worker follows their logs
meanwhile, so that in the end only the last entries have to be replayed, however long the
conversation is.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from parley.gateway.queue import Ticket
from parley.gateway.upstream import UpstreamConnection
from parley.gateway.worker_pool import Lease
from parley.protocol.control import LeaseNote, RebuildReady, RebuildResult, TakeOver
from parley.session_log.contract import LoggedSession, StoredLog
from parley.tasks import end_tasks, wait_for_event
from parley.transport import Connection

ANSWER_S: Final = 150.0
"""Time limit for a worker to rebuild a session."""

_answer = msgspec.json.Decoder(RebuildReady | RebuildResult)
_note = msgspec.json.Decoder(LeaseNote)


class LostSession(LoggedSession, frozen=True, kw_only=True):
    """The facts about a session whose worker is lost that another worker needs to continue it.

    Args:
        address, key_id: of its client.
        granted_time: Unix time at which it got its first slot.
        ran_s: time after that at which it got its last slot.
        granted_at: the same in monotonic time of this gateway; None: unknown.
    """

    address: str = ""
    key_id: str | None = None
    granted_time: float = 0.0
    ran_s: float = 0.0
    granted_at: float | None = None

    @classmethod
    def of(cls, lease: Lease) -> LostSession:
        """The session of a lease."""
        hello = lease.worker.hello
        return cls(
            log_id=lease.log_id,
            lease_id=lease.lease_id,
            session_id=lease.session_id,
            kind=lease.kind,
            dialect=lease.dialect,
            worker_id=hello.worker_id,
            worker_url=hello.url,
            worker_pid=hello.pid,
            fingerprint=hello.fingerprint,
            address=lease.address,
            key_id=lease.key_id,
            granted_time=lease.granted_time,
            ran_s=lease.ran_s,
            granted_at=lease.granted_at,
        )

    @classmethod
    def of_log(cls, stored: StoredLog, now_s: float) -> LostSession:
        """The session of a log of an earlier gateway. `now_s`: monotonic time.

        Raises:
            msgspec.MsgspecError: the note was not written by a gateway.
        """
        note = _note.decode(stored.session.note or "{}")
        return cls(
            **msgspec.structs.asdict(stored.session),
            **msgspec.structs.asdict(note),
            granted_at=None if stored.ran_s is None else now_s - stored.ran_s,
        )


class ReservedSlot:
    """A slot for a session at another worker: its ticket, and the successor once its worker was
    asked.

    Attributes:
        follows: True if the session still runs at its old worker, and the new one follows its log.
    """

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.follows = False
        self._upstream: UpstreamConnection | None = None
        self._ready = asyncio.Event()
        """Set when the worker has nearly caught up, or cannot continue the session."""

    @property
    def has_successor(self) -> bool:
        return self._upstream is not None

    @property
    def is_behind(self) -> bool:
        """True if its worker was asked and has not caught up."""
        return self.has_successor and not self._ready.is_set()

    def hold(self, upstream: UpstreamConnection, *, follows: bool) -> None:
        """The connection over which its worker was asked to continue the session."""
        self._upstream, self.follows = upstream, follows
        self._ready.clear()
        self._answer = asyncio.create_task(self._read(upstream.connection), name="successor")

    async def wait(self, limit_s: float) -> None:
        """Wait until the worker has caught up or failed, but not longer than `limit_s`."""
        await wait_for_event(self._ready, limit_s)

    async def take_over(self) -> RebuildResult:
        """The old worker has stopped the session: wait for the result of continuing it.

        Raises:
            ConnectionClosed: the worker is gone.
            TimeoutError: the worker does not answer in time. msgspec.MsgspecError, ParleyError: its
            answer is invalid.
        """
        assert self._upstream is not None
        if self.follows:
            self._upstream.connection.send_text(msgspec.json.encode(TakeOver()))
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.shield(self._answer)

    async def _read(self, connection: Connection) -> RebuildResult:
        try:
            while True:
                answer = _answer.decode((await connection.receive()).payload())
                if isinstance(answer, RebuildResult):
                    return answer
                self._ready.set()
        finally:
            self._ready.set()

    async def close(self) -> None:
        """Disconnect from its worker; the ticket stays. A session that the worker has already
        continued waits there for its client. Safe to repeat."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await end_tasks(self._answer)
            upstream.close()
