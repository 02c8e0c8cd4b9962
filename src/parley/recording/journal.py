"""The journal of one session.

Its public methods only queue work for the writer thread (`JournalWriter`) and may be called from
any thread; everything else runs in that thread. An entry that cannot be written is lost, which is
counted, logged, reported, and noted in the journal as soon as that can be written.

Order within a session: media first, then the journal line that names them, so that a crash leaves
no line without its file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from parley import logs
from parley.dialects.events import EndReason, SessionEnded
from parley.errors import InvalidPayload
from parley.media.pcm import Pcm, from_float32_bytes
from parley.media.wav import encode_wav
from parley.recording import layout, lines, timeline
from parley.recording.disk import AppendFile, WavFile, write_new
from parley.recording.finish import finish
from parley.recording.journal_writer import JournalWriter, reason_of
from parley.recording.layout import Folder
from parley.recording.lines import EntryLine, HeadLine, JournalLine, KeptSound, SamplePlace
from parley.session_log.entries import EntriesLost

JOB_BYTES: Final = 1024
"""Size of a job without media."""

SYNC_EVERY_S: Final = 5.0
"""A crash of the process loses nothing that was written; one of the machine, at most this much."""

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """Raw float32 samples as a client sent them; becomes a WAV file for listening."""

    data: bytes
    rate_hz: int


MediaFiles = dict[str, bytes | Pcm | Sent]
"""Content by path within the folder."""


@dataclass(frozen=True, slots=True)
class EntrySound:
    """Sound of an entry.

    Args:
        path: where it can be listened to; "" for nowhere.
        is_input: the model heard it: it is also kept sample by sample. Else it is hashed.
        is_piece: it continues the file at `path`.
    """

    pcm: Pcm
    path: str = ""
    is_input: bool = False
    is_piece: bool = False


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A journal line with the media that belong to it.

    Args:
        files: content by path, each written as a file of its own.
        sounds: in the order in which the line names them.
        must: written even when the queue is full.
    """

    line: EntryLine
    files: MediaFiles = field(default_factory=dict)
    sounds: Sequence[EntrySound] = ()
    must: bool = False

    @property
    def size(self) -> int:
        """Bytes that wait in memory until it is written."""
        size = JOB_BYTES + len(bytes(self.line.what))
        size += sum(_size(content) for content in self.files.values())
        return size + sum(sound.pcm.samples.nbytes for sound in self.sounds)


class Journal:
    """The journal and media files of one session. Nothing here blocks or raises.

    Args:
        keeps_inputs: keep audio exactly as the model receives it, in addition to the audible files.
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
        """Entries that were not written: the queue was full, or the disk was full or failed."""
        self._writer = writer
        self._keeps_inputs = keeps_inputs
        self._finished = finished
        self._has_started = False
        self._is_over = False
        # Both threads, under the lock.
        self._lock = threading.Lock()
        self._unreported = 0
        self._reason = ""
        # The writer thread's.
        self._exists = False
        self._file: AppendFile | None = None
        self._inputs: AppendFile | None = None
        self._newest: tuple[Pcm, SamplePlace] | None = None
        """The input that was kept last."""
        self._growing: tuple[str, WavFile] | None = None
        """The file of the answer in progress, and its path."""
        self._synced_s = 0.0

    # ---- any thread ------------------------------------------------------------------------

    def begin(
        self,
        head: HeadLine,
        *,
        owner: str = "",
        settled: Callable[[bool], None] = lambda exists: None,
    ) -> None:
        """Create the folder; once.

        A recording that cannot be created does not exist: nothing of it is left, and nothing more
        is written.

        Args:
            owner: id of the client's key; "" if it has none.
            settled: called in the writer thread with whether the recording exists.
        """
        if self._is_over:
            return
        self._has_started = True

        def failed(error: Exception) -> None:
            if not self._exists:
                _log.error(
                    "recording_not_created",
                    session_id=self.folder.recording_id,
                    why=str(error),
                )
            self._lose(error)
            settled(self._exists)

        self._queue(partial(self._begin, head, owner, settled), must=True, failed=failed)

    def put(self, entry: JournalEntry) -> None:
        """Write an entry."""
        self._queue(partial(self._write, entry), entry.size, must=entry.must)

    def end(self, reason: EndReason, at_ms: float) -> None:
        """Complete the recording: the session ended. Safe to repeat."""
        if self._is_over or not self._has_started:
            return
        complete = partial(self._end, lines.written(SessionEnded(reason), round(at_ms, 1)))

        def failed(error: Exception) -> None:
            # Readers build the timeline from the journal meanwhile.
            _log.warning(
                "recording_incomplete", session_id=self.folder.recording_id, why=str(error)
            )
            self._writer.try_again(complete)

        self._queue(complete, must=True, failed=failed)
        self._is_over = True

    def discard(self) -> None:
        """Delete the recording: the client declined, or the session never began."""
        if self._has_started and not self._is_over:
            self._queue(self._discard, must=True)
        self._is_over = True

    def _queue(
        self,
        job: Callable[[], None],
        size: int = JOB_BYTES,
        *,
        must: bool,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        if self._is_over:
            return
        is_taken = self._writer.put(
            job,
            size,
            session_id=self.folder.recording_id,
            must=must,
            failed=failed or self._lose,
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
        # 1, 2, 4, 8 …: a disk that does not respond must not fill the log as well.
        if lost & (lost - 1) == 0:
            _log.warning(
                "recording_entries_lost", session_id=self.folder.recording_id, lost=lost, why=why
            )

    # ---- writer thread only ----------------------------------------------------------------

    def _begin(self, head: HeadLine, owner: str, settled: Callable[[bool], None]) -> None:
        self._create(head)
        settled(self._exists)
        if owner:
            write_new(self.folder.owner, owner.encode())

    def _create(self, head: HeadLine) -> None:
        """Create the folder, or leave nothing of it.

        Raises:
            OSError: it cannot be created.
        """
        # Never in an existing folder: another recording's files must not be touched.
        self.folder.path.mkdir(parents=True, exist_ok=False, mode=0o750)
        try:
            self._file = AppendFile(self.folder.journal)
            fcntl.flock(self._file.descriptor, fcntl.LOCK_EX)
            meta = timeline.encode_file(timeline.open_meta(head))
            layout.write_atomically(self.folder.meta, meta)
            self._append(head)
        except BaseException:
            self.close()
            with contextlib.suppress(OSError):
                remove(self.folder.path)
            raise
        self._exists = True

    def _write(self, entry: JournalEntry) -> None:
        for path, content in entry.files.items():
            self._write_file(path, content)
        if entry.sounds:
            entry.line.sounds = [self._keep_sound(sound) for sound in entry.sounds]
        self._append(entry.line)

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
        self._writer.is_well()
        with self._lock:
            self._unreported -= unreported
        now_s = time.monotonic()
        if now_s - self._synced_s > SYNC_EVERY_S:
            self._synced_s = now_s
            self._file.sync()

    def _keep_sound(self, sound: EntrySound) -> KeptSound:
        kept = KeptSound(sound.path)
        if sound.is_piece:
            self._continue_file(sound.path, sound.pcm)
        elif sound.path:
            self._write_file(sound.path, sound.pcm)
        if sound.is_input:
            kept.samples = self._keep(sound.pcm)
        else:
            kept.ms, kept.sha256 = round(1000 * sound.pcm.duration_s, 2), fingerprint(sound.pcm)
        return kept

    def _write_file(self, path: str, content: bytes | Pcm | Sent) -> None:
        """Write a new file. Audio becomes 16 bit; files that a client sent stay as they are."""
        if isinstance(content, Sent):
            try:
                content = from_float32_bytes(content.data, content.rate_hz)
            except InvalidPayload:
                # The session rejects this audio, too, and reports it; there is nothing to hear.
                return
        target = self.folder.path / path
        target.parent.mkdir(exist_ok=True)
        write_new(target, encode_wav(content) if isinstance(content, Pcm) else content)

    def _keep(self, pcm: Pcm) -> SamplePlace:
        """Append samples as the model received them; returns where they are."""
        if not self._keeps_inputs:
            return (None, len(pcm), pcm.rate_hz)
        if self._newest is not None and self._newest[0] is pcm:
            # A turn and the item that it answers share their sound.
            return self._newest[1]
        if self._inputs is None:
            self._inputs = AppendFile(self.folder.inputs)
        first = self._inputs.size // 4
        self._inputs.append(np.ascontiguousarray(pcm.samples, "<f4").tobytes())
        place = (first, len(pcm), pcm.rate_hz)
        self._newest = (pcm, place)
        return place

    def _continue_file(self, path: str, pcm: Pcm) -> None:
        if self._growing is None or self._growing[0] != path:
            self._close_growing()
            target = self.folder.path / path
            target.parent.mkdir(exist_ok=True)
            self._growing = (path, WavFile(target, pcm.rate_hz))
        self._growing[1].append(to_int16(pcm).tobytes())

    def _close_growing(self) -> None:
        if self._growing is not None:
            self._growing[1].close()
            self._growing = None

    def _end(self, line: EntryLine) -> None:
        """Append the last line, close, and build `recording.json`. Repeated until it succeeds; the
        files are closed after the first attempt, so that the session does not look live."""
        if self._file is None and self._exists and self.folder.journal.exists():
            self._file = AppendFile.reopen(self.folder.journal)
        if self._file is not None:  # else it was never created, or has been deleted
            try:
                self._append(line)
                for file in (self._inputs, self._file):
                    if file is not None:
                        file.sync()
            finally:
                self.close()
        if self._exists and finish(self.folder, is_owner=True) is not None:
            self._finished(self.folder)

    def _discard(self) -> None:
        self.close()
        if self._exists:
            self._exists = False
            remove(self.folder.path)

    def close(self) -> None:
        """Close all files; the journal last, because its lock marks the session as live."""
        self._close_growing()
        for file in (self._inputs, self._file):
            if file is not None:
                file.close()
        self._inputs = self._file = None


def fingerprint(pcm: Pcm) -> str:
    """Of the samples as the model made them, before they became 16 bit."""
    return hashlib.sha256(np.ascontiguousarray(pcm.samples, "<f4").data).hexdigest()


def to_int16(pcm: Pcm) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Rounded; ±1 becomes ±32767."""
    return np.rint(np.clip(pcm.samples, -1.0, 1.0) * 32767).astype("<i2")


def remove(path: Path) -> None:
    """Remove a recording's folder. Renamed first, so that it is gone as a whole or not at all."""
    doomed = path.with_name(f".{path.name}.deleted")
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def _size(content: bytes | Pcm | Sent) -> int:
    match content:
        case Pcm():
            return content.samples.nbytes
        case Sent():
            return len(content.data)
        case bytes():
            return len(content)
