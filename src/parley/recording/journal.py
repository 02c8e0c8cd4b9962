"""The journal of one session.

Its public methods only queue work for the writer thread (`JournalWriter`) and may be called in any
thread; everything else runs in that thread. Entries that cannot be written are lost; they are
counted, logged, reported, and noted in the journal as soon as it can be written again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import UNSET, UnsetType

from parley import logs
from parley.dialects.events import (
    AnswerDone,
    DuplexSetup,
    EndReason,
    HalfDuplexSetup,
    SessionEnded,
    SessionReady,
    TurnCompleted,
    TurnStarted,
)
from parley.recording import layout, lines, timeline
from parley.recording.entry_media import EntryMedia, write_new
from parley.recording.finish import finish
from parley.recording.journal_writer import JournalWriter, reason_of
from parley.recording.layout import Folder
from parley.recording.lines import EntryLine, HeadLine, JournalLine, Number
from parley.session_log.append_file import AppendFile
from parley.session_log.entries import EntriesLost, Recorded
from parley.session_log.items import size_of

JOB_BYTES: Final = 1024
"""Size of a job without media."""

SYNC_EVERY_S: Final = 5.0
"""Interval between flushes to the disk: a crash of the process loses no written data, a crash of
the machine at most this much."""

_log = logs.get(__name__)


MUST: Final = (
    DuplexSetup | HalfDuplexSetup | SessionReady | TurnStarted | TurnCompleted | AnswerDone
)
"""Entries without which the rest is useless: they are written even if the queue is full. Chat
requests are not among them, because they may be large, and the queue must be bounded."""


class Journal:
    """The journal and media files of one session. Nothing here blocks or raises.

    Args:
        keeps_inputs: True to also store audio exactly as the model receives it, in addition to the
            playable files.
        finished: called in the writer thread when `recording.json` exists.
    """

    def __init__(
        self,
        folder: Folder,
        writer: JournalWriter,
        *,
        keeps_inputs: bool = True,
        finished: Callable[[Folder], None] = lambda folder: None,
    ) -> None:
        self.folder = folder
        self.lost = 0
        """Number of entries that were not written, because the queue was full, or the disk was full
        or failed."""
        self._writer = writer
        self._keeps_inputs = keeps_inputs
        self._finished = finished
        self.has_started = False
        self.exists: Future[bool] = Future()
        """Result: True if the recording could be created; completes once the writer thread has
        tried."""
        self._is_over = False
        # Used by both threads, under the lock.
        self._lock = threading.Lock()
        self._unreported = 0
        self._reason = ""
        # Used by the writer thread.
        self._file: AppendFile | None = None
        self._media: EntryMedia | None = None
        """None: the recording does not exist."""
        self._synced_s = 0.0

    # ---- any thread ------------------------------------------------------------------------

    def begin(self, head: HeadLine, *, owner: str = "") -> None:
        """Create the folder; call once. If that fails, the recording does not exist: nothing of it
        is left, and nothing more is written.

        Args:
            owner: id of the client's key; "" if it has none.
        """
        if self._is_over:
            return
        self.has_started = True
        self._queue(partial(self._begin, head, owner), must=True, failed=self._not_started)

    def put(self, entry: Recorded, at_ms: Number, *, ready_s: Number | UnsetType = UNSET) -> None:
        """Write an entry with its audio and files.

        Args:
            at_ms: milliseconds since the session was ready.
            ready_s: Unix time of that moment; only for the entry that reports it.
        """
        write = partial(self._write, entry, at_ms, ready_s)
        self._queue(write, JOB_BYTES + size_of(entry), must=isinstance(entry, MUST))

    def end(self, reason: EndReason, at_ms: float) -> None:
        """Complete the recording: the session ended. Safe to repeat."""
        if self._is_over or not self.has_started:
            return
        line = lines.written(SessionEnded(reason), round(at_ms, 1))
        self._queue(partial(self._end, line), must=True, failed=self._incomplete, is_retried=True)
        self._is_over = True

    def discard(self) -> None:
        """Delete the recording: the client declined it, or the session never started."""
        if self.has_started and not self._is_over:
            self._queue(self._discard, must=True)
        self._is_over = True

    def _queue(
        self,
        job: Callable[[], None],
        size: int = JOB_BYTES,
        *,
        must: bool,
        failed: Callable[[Exception], None] | None = None,
        is_retried: bool = False,
    ) -> None:
        if self._is_over:
            return
        is_taken = self._writer.put(
            job,
            size,
            session_id=self.folder.recording_id,
            must=must,
            failed=failed or self._lose,
            is_retried=is_retried,
        )
        if not is_taken:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """Count an entry that was not written, because of an error or (None) a full queue."""
        with self._lock:
            self.lost += 1
            self._unreported += 1
            self._reason = "queue full" if error is None else reason_of(error)
            lost, why = self.lost, self._reason
        self._writer.count_lost()
        # 1, 2, 4, 8 …: a disk that does not respond must not flood the log.
        if lost & (lost - 1) == 0:
            _log.warning(
                "recording_entries_lost", session_id=self.folder.recording_id, lost=lost, why=why
            )

    # ---- writer thread only ----------------------------------------------------------------

    def _begin(self, head: HeadLine, owner: str) -> None:
        """Create the folder, or leave nothing behind.

        Raises:
            OSError: it cannot be created.
        """
        # Never in an existing folder: another recording's files must not be touched.
        self.folder.path.mkdir(parents=True, exist_ok=False, mode=0o750)
        try:
            self._file = AppendFile(self.folder.journal)
            self._file.lock()
            if owner:
                # Without it, erasing a key's data would not find the recording.
                write_new(self.folder.owner, owner.encode())
            meta = timeline.encode_file(timeline.open_meta(head))
            layout.write_atomically(self.folder.meta, meta)
            self._append(head)
            self._media = EntryMedia(self.folder, keeps_inputs=self._keeps_inputs)
        except BaseException:
            self.close()
            with contextlib.suppress(OSError):
                remove(self.folder.path)
            raise
        self.exists.set_result(True)

    def _not_started(self, error: Exception) -> None:
        self._lose(error)
        self.exists.set_result(False)
        recording_id = self.folder.recording_id
        _log.error("recording_not_created", session_id=recording_id, why=str(error))

    def _write(self, entry: Recorded, at_ms: Number, ready_s: Number | UnsetType) -> None:
        if self._media is None or (line := self._media.line(entry, at_ms)) is None:
            return
        line.time_s = ready_s
        self._append(line)

    def _append(self, line: JournalLine) -> None:
        """Append a line, preceded by the number of entries lost since the last one written."""
        if self._file is None:
            return
        data, unreported = lines.encode(line), 0
        # The head stays the first line.
        if isinstance(line, EntryLine):
            with self._lock:
                unreported, reason = self._unreported, self._reason
            if unreported:
                lost = lines.written(EntriesLost(unreported, reason), line.at_ms)
                data = lines.encode(lost) + data
        self._file.append(data)
        self._writer.problem = ""
        with self._lock:
            self._unreported -= unreported
        now_s = time.monotonic()
        if now_s - self._synced_s > SYNC_EVERY_S:
            self._synced_s = now_s
            self._file.sync()

    def _end(self, line: EntryLine) -> None:
        """Append the last line, close, and build `recording.json`. This is repeated until it
        succeeds; the files are closed after the first attempt, so that the session does not look
        live."""
        if self._media is None:
            return
        if self._file is None and self.folder.journal.exists():
            self._file = AppendFile(self.folder.journal, is_new=False)
        if self._file is not None:  # else it has been deleted
            try:
                self._append(line)
                self._media.sync()
                self._file.sync()
            finally:
                self.close()
        if finish(self.folder, is_owner=True) is not None:
            self._finished(self.folder)

    def _incomplete(self, error: Exception) -> None:
        # Readers build the timeline from the journal.
        _log.warning("recording_incomplete", session_id=self.folder.recording_id, why=str(error))

    def _discard(self) -> None:
        self.close()
        if self._media is not None:
            remove(self.folder.path)

    def close(self) -> None:
        """Close all files; the journal last, because its lock marks the session as live."""
        if self._media is not None:
            self._media.close()
        if self._file is not None:
            self._file.close()
        self._file = None


def remove(path: Path) -> None:
    """Remove a recording's folder. It is renamed first, so that it disappears completely or not at
    all."""
    doomed = path.with_name(f".{path.name}.deleted")
    os.replace(path, doomed)
    shutil.rmtree(doomed)
