"""The thread that writes all journals of a worker.

Its queue is bounded in bytes, and the disk may be full or fail: a recording may then have a gap,
which it records, but inference never waits for a disk.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from parley import logs

QUEUE_BYTES: Final = 64 * 1024 * 1024
"""About fifteen minutes of one duplex session's audio."""

RETRY_S: Final = 5.0
"""Time between two attempts to complete a recording on a failing disk."""

_log = logs.get(__name__)


class JournalWriter:
    """The thread. `put` never blocks; `close` waits until everything is written.

    Args:
        limit_bytes: limit for waiting media; a job beyond it is refused.
    """

    def __init__(self, *, limit_bytes: int = QUEUE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._again: list[_Job] = []
        self.lost = 0
        """Number of entries that were not written, of all recordings."""
        self.problem = ""
        """Reason why the last entry was not written; "" once one has been written again. Changed in
        the writer thread only."""
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def put(
        self,
        job: Callable[[], None],
        size: int,
        *,
        session_id: str,
        must: bool = False,
        failed: Callable[[Exception], None] = lambda error: None,
        is_retried: bool = False,
    ) -> bool:
        """Queue a job; returns False if it was refused because too much is waiting.

        Args:
            must: True for small jobs without which the rest is useless; they are never refused.
            failed: called in the writer thread if the job raises.
            is_retried: True to repeat the job every few seconds while the disk is full or fails.
        """
        with self._lock:
            if not must and self._waiting_bytes + size > self._limit_bytes:
                return False
            self._waiting_bytes += size
        self._jobs.put(_Job(job, size, session_id, failed, is_retried))
        return True

    def count_lost(self) -> None:
        """An entry was not written. From any thread."""
        with self._lock:
            self.lost += 1

    def flush(self, limit_s: float = 30.0) -> bool:
        """Wait until all jobs queued so far are done; returns False after the timeout."""
        done = threading.Event()
        self.put(done.set, 0, session_id="", must=True)
        return done.wait(limit_s)

    def close(self, limit_s: float = 30.0) -> None:
        """Finish the waiting jobs and end the thread. Safe to repeat."""
        self._jobs.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        due_s = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=RETRY_S if self._again else None)
                if job is None:
                    self._retry()
                    return
                self._do(job)
                with self._lock:
                    self._waiting_bytes -= job.size
            if self._again and time.monotonic() > due_s:
                self._retry()
                due_s = time.monotonic() + RETRY_S

    def _do(self, job: _Job) -> None:
        try:
            job.act()
        except Exception as error:
            # One entry is lost; the thread and the other recordings continue.
            self.problem = reason_of(error)
            job.failed(error)
            if not isinstance(error, OSError):
                # Another attempt would fail, too.
                _log.exception("recording_failed", session_id=job.session_id)
            elif job.is_retried:
                self._again.append(replace(job, failed=lambda error: None))

    def _retry(self) -> None:
        waiting, self._again = self._again, []
        for job in waiting:
            self._do(job)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    act: Callable[[], None]
    size: int
    session_id: str
    failed: Callable[[Exception], None]
    is_retried: bool


def reason_of(error: Exception) -> str:
    """A short reason for operators and journals, without paths."""
    return (error.strerror or "disk error") if isinstance(error, OSError) else type(error).__name__
