"""Sessions whose client was cut off, and which of them a client may go on with.

Somebody has to hold the lease, the session id and the client's place in the counts while nobody is
connected: until the client is back, the worker has ended the session, or the worker is gone. Also
holds what a worker brings along that an earlier gateway leased.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from parley import logs
from parley.clock import Clock
from parley.errors import Refused
from parley.gateway.admission import Admission
from parley.gateway.worker_pool import Lease, WorkerPool

LEARNING_S: Final = 10.0
"""A gateway that began so short a time ago does not know yet what its workers keep: a worker that
lost its gateway dials again at least every second or two while it keeps a session."""
ENDED_LIMIT: Final = 256
"""Ended sessions whose clients may still ask; their workers know what to say."""

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    lease: Lease
    held: ExitStack


class KeptSessions:
    """See the module's text. Belongs to the gateway's event loop."""

    def __init__(
        self,
        *,
        worker_pool: WorkerPool,
        admission: Admission,
        clock: Clock,
        learning_s: float = LEARNING_S,
    ) -> None:
        self._worker_pool = worker_pool
        self._admission = admission
        self._clock = clock
        self._knows_all_at = clock.monotonic() + learning_s
        self._kept: dict[str, _Kept] = {}
        self._ended: dict[str, Lease] = {}
        worker_pool.learned.listen(self._learned)
        worker_pool.ended.listen(self._session_ended)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, lease: Lease, held: ExitStack) -> None:
        """Hold a session without a client.

        Args:
            lease: whoever held it has nothing to release any more.
            held: what its client took at admission; given back with the lease.
        """
        kept = _Kept(lease.transfer(), held)
        self._kept[lease.lease_id] = kept
        kept.lease.lost.listen(lambda: self._drop(kept.lease))
        log.info("session kept", session_id=lease.session_id, worker=lease.worker.worker_id)

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
        """The lease of a session that runs or has ended; None: nobody knows it. Waits a moment for
        workers that may bring it along when this gateway has only just begun."""
        while True:
            found = self._worker_pool.find_resumable(session_id) or self._ended.get(session_id)
            left_s = self._knows_all_at - self._clock.monotonic()
            if found is not None or left_s <= 0:
                return found
            await self._next_learned(left_s)

    async def _next_learned(self, limit_s: float) -> None:
        came = asyncio.Event()
        stop = self._worker_pool.learned.listen(lambda lease: came.set())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await came.wait()
        finally:
            stop()

    def _learned(self, lease: Lease) -> None:
        held = ExitStack()
        with contextlib.suppress(Refused):
            # It was admitted once.
            held.enter_context(self._admission.claim(lease.session_id))
            held.enter_context(self._admission.visit(lease.address))
        self.keep(lease, held)

    def _session_ended(self, lease: Lease, tokens: int) -> None:
        del tokens
        if lease.resume is None:
            return
        self._ended.pop(lease.session_id, None)
        self._ended[lease.session_id] = lease
        while len(self._ended) > ENDED_LIMIT:
            self._ended.pop(next(iter(self._ended)))
        self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        kept = self._kept.pop(lease.lease_id, None)
        if kept is not None:
            kept.lease.release()
            kept.held.close()
