"""Session logs as files of one folder, for processes of one host.

    <log>.<epoch>.<generation>.entries   entries; each whole update starts a generation
    <log>.<epoch>.tail                   frames: session, state, messages, length of the entries

An update is stored when `write` has returned, because the page cache outlives the process. The
writer of a log locks its tail, so a tail without a lock has no living writer. A worker that takes
over a log creates the tail of the next epoch and renames the old one, which fences the old writer.
Files are readable by this user only.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from parley import logs
from parley.private import keep_private
from parley.session_log.append_file import AppendFile, is_locked
from parley.session_log.contract import (
    AppendResult,
    LogContents,
    LoggedSession,
    LogTail,
    LogUnreadable,
    LogUpdate,
    SessionLogs,
    SessionLogWriter,
    StoredLog,
    StoredOutput,
)

FOLDER_ID: Final = "folder_id"
"""File with the folder's name."""
GATEWAY: Final = "gateway"
"""File that the gateway of this folder locks."""
TAIL: Final = ".tail"
CLOSED: Final = ".closed"
"""Suffix of a tail whose epoch is over."""
ENTRIES: Final = ".entries"
NEW: Final = ".new"
HEAD_BYTES: Final = 8
"""Header of a frame of a tail: length and CRC-32 of its body, 4 bytes each."""
GROWN_BYTES: Final = 1 << 20
GROWN_SHARE: Final = 3.0
"""A tail is rewritten when it has grown by this size and by this multiple of its first frame."""

STRAY_S: Final = 60.0
"""Age at which files without a first update are removed."""

_log = logs.get(__name__)


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a tail. The first one of a file has `session` and everything else.

    Args:
        generation, entries_bytes: number and valid length of the file of entries that belongs to
            this frame.
    """

    generation: int
    entries_bytes: int
    state: dict[str, bytes] | None
    outputs: tuple[StoredOutput, ...]
    settled: int
    session: LoggedSession | None = None


_frame_decoder = msgspec.msgpack.Decoder(_Frame)


class FileSessionLogs(SessionLogs):
    """The logs in one folder; see `SessionLogs`.

    Args:
        removes: True: the last process that closes the folder removes it, unless it has logs.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, removes: bool = False) -> None:
        keep_private(folder)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{folder} does not belong to this user")
        os.utime(folder)  # `remove_abandoned` of another server leaves it alone.
        self.folder = folder
        self._id = _folder_id(folder, secrets.token_hex(8))
        self.name, self.place = f"file:{self._id}", str(folder)
        self.space_bytes = size_of_disk(folder)
        self._claimed: int | None = None
        self._used: int | None = None
        """The open name of the folder, which every process that uses it locks."""
        if removes:
            self._used = os.open(folder / FOLDER_ID, os.O_RDONLY)
            fcntl.flock(self._used, fcntl.LOCK_SH)

    def inode(self) -> int:
        """Identifies the folder. It is made again if it was removed: when a user logs out, systemd
        removes their files in memory."""
        if not (self.folder / FOLDER_ID).exists():
            _log.warning(
                "session_log_folder_removed",
                folder=self.place,
                hint="If this happens when you log out, set RemoveIPC=no in logind.conf.",
            )
            keep_private(self.folder)
            _folder_id(self.folder, self._id)
        return self.folder.stat().st_ino

    def create(self, session: LoggedSession) -> SessionLogWriter:
        return _FileWriter(self, session, epoch=1)

    async def peek(self, log_id: str) -> LogContents:
        return await asyncio.to_thread(self._peek, log_id)

    async def take_over(
        self, log_id: str, session: LoggedSession
    ) -> tuple[LogContents, SessionLogWriter]:
        return await asyncio.to_thread(self._take_over, log_id, session)

    async def stored(self) -> list[StoredLog]:
        return await asyncio.to_thread(self._stored)

    async def drop(self, log_id: str) -> None:
        await asyncio.to_thread(_remove, self._files(log_id))

    def claim(self) -> bool:
        """See `SessionLogs`. Holds until this process ends or closes, or the folder is removed."""
        self.inode()
        if self._claimed is not None and os.fstat(self._claimed).st_nlink:
            return True
        self._release()
        descriptor = os.open(self.folder / GATEWAY, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._claimed = descriptor
        return True

    async def close(self) -> None:
        self._release()
        if self._used is None:
            return
        with contextlib.suppress(OSError):  # Others use it, or it is gone.
            fcntl.flock(self._used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if {path.name for path in self.folder.iterdir()} <= {FOLDER_ID, GATEWAY}:
                shutil.rmtree(self.folder)
        os.close(self._used)
        self._used = None

    def _release(self) -> None:
        if self._claimed is not None:
            os.close(self._claimed)
            self._claimed = None

    def _files(self, log_id: str) -> list[Path]:
        return list(self.folder.glob(f"{_stem(log_id)}.*"))

    def _peek(self, log_id: str) -> LogContents:
        try:
            return self._newest(path for _, path in _tails(self._files(log_id)))
        except FileNotFoundError:
            # Its writer has just replaced it.
            raise LogUnreadable("The log of the session is being written.") from None

    def _take_over(
        self, log_id: str, session: LoggedSession
    ) -> tuple[LogContents, SessionLogWriter]:
        tails = _tails(self._files(log_id))
        if not tails:
            raise LogUnreadable("Nothing of the session was kept.")
        epoch = tails[0][0] + 1
        tail = self.folder / f"{_stem(log_id)}.{epoch}{TAIL}"
        try:
            os.close(os.open(tail, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise LogUnreadable("Another worker continues the session.") from None
        for _, path in tails:
            if path.suffix == TAIL:
                path.rename(path.with_suffix(CLOSED))
        contents = self._newest(path.with_suffix(CLOSED) for _, path in tails)
        return contents, _FileWriter(self, session, epoch=epoch, inode=self.inode())

    def _newest(self, tails: Iterable[Path]) -> LogContents:
        """The content of the first of these tails that is not empty.

        Raises:
            LogUnreadable: all are empty, or it is damaged.
        """
        found = next(filter(None, map(self._read, tails)), None)
        if found is None:
            raise LogUnreadable("Nothing of the session was kept.")
        return found

    def _read(self, tail: Path) -> LogContents | None:
        """Content of one epoch's files; None if it ended before its first update."""
        kept, session, last = LogTail(), None, None
        for frame in _frames(tail.read_bytes()):
            session = frame.session or session
            kept.apply(_update(frame))
            last = frame
        if last is None or session is None:
            return None
        path = _entries_path(tail, last.generation)
        data = path.read_bytes()[: last.entries_bytes]
        if len(data) < last.entries_bytes:
            raise LogUnreadable("The log of the session is damaged.")
        return LogContents(session, data, kept.state, tuple(kept.outputs))

    def _stored(self) -> list[StoredLog]:
        by_log: dict[str, list[Path]] = {}
        for path in self.folder.glob("*.*"):
            by_log.setdefault(path.name.partition(".")[0], []).append(path)
        found = []
        for files in by_log.values():
            with contextlib.suppress(FileNotFoundError):
                stored = _describe(files)
                if stored is not None:
                    found.append(stored)
        return found


class _FileWriter:
    """See `SessionLogWriter`. `inode`: of the folder, if the log is there already."""

    def __init__(
        self,
        stored: FileSessionLogs,
        session: LoggedSession,
        *,
        epoch: int,
        inode: int | None = None,
    ) -> None:
        self._stored = stored
        self._folder = stored.folder
        self._inode = inode
        self._session = session
        self._stem = _stem(session.log_id)
        self._path = self._folder / f"{self._stem}.{epoch}{TAIL}"
        self._generation = 0
        self._entries: AppendFile | None = None
        self._tail: AppendFile | None = None
        self._tail_bytes = 0
        """Size of the tail's first frame, which contains everything."""
        self.wants_tail = False
        self._over: AppendResult | None = None
        """Result of every later update, once nothing can be stored any more."""
        self.on_forgotten: Callable[[], None] = lambda: None

    def append(self, update: LogUpdate, done: Callable[[AppendResult], None]) -> None:
        result = self._over
        if result is None:
            try:
                if self._inode is None:
                    self._inode = self._stored.inode()
                elif not self._is_ours():
                    result = self._why_not()
                if result is None:
                    self._store(update)
                    result = "stored"
            except OSError as error:
                log_id = self._session.log_id
                _log.warning("session_log_write_failed", why=str(error), log_id=log_id)
                self.drop()
                result = "full"
            self._over = None if result in ("stored", "unavailable") else result
        done(result)

    def _why_not(self) -> AppendResult:
        """Result of an update if the log is no longer ours, which is closed."""
        is_taken = any(self._folder.glob(f"{self._stem}.*"))
        self._close()
        if is_taken:
            return "fenced"
        if self._stored.inode() == self._inode:
            return "dropped"
        self._inode = None
        return "unavailable"

    def drop(self) -> None:
        # Before its first update a writer owns nothing: existing files belong to the lost worker.
        is_ours = self._tail is not None and self._is_ours()
        self._close()
        if is_ours:
            _remove(self._folder.glob(f"{self._stem}.*"))

    def leave(self) -> None:
        self._over = self._over or "dropped"
        self._close()

    def _store(self, update: LogUpdate) -> None:
        if update.is_whole:
            self._replace(update)
            return
        entries, tail = self._entries, self._tail
        assert entries is not None, "the first update is whole"
        assert tail is not None
        if update.entries:
            entries.append(update.entries)
        if update.is_tail_whole:
            self._write_tail(update)
        else:
            tail.append(self._framed(update))
            grown = tail.size - self._tail_bytes
            self.wants_tail = grown > GROWN_BYTES and grown > GROWN_SHARE * self._tail_bytes

    def _replace(self, update: LogUpdate) -> None:
        """Start a generation, and remove the one that it replaces."""
        self._generation += 1
        path = _entries_path(self._path, self._generation)
        before, self._entries = self._entries, _written(path, update.entries)
        if before is not None:
            before.close()
        self._write_tail(update)
        kept = {path.name, self._path.name}
        _remove(each for each in self._folder.glob(f"{self._stem}.*") if each.name not in kept)

    def _write_tail(self, update: LogUpdate) -> None:
        """Replace the current tail by a new one; it is kept if there is no space."""
        path = self._path.with_name(self._path.name + NEW)
        path.unlink(missing_ok=True)
        before, self._tail = self._tail, _written(path, self._framed(update))
        self._tail_bytes, self.wants_tail = self._tail.size, False
        path.rename(self._path)
        if before is not None:
            before.close()

    def _framed(self, update: LogUpdate) -> bytes:
        assert self._entries is not None
        frame = _Frame(
            self._generation,
            self._entries.size,
            None if update.state is None else dict(update.state),
            update.outputs,
            update.settled,
            self._session if update.is_tail_whole else None,
        )
        body = msgspec.msgpack.encode(frame)
        return len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body

    def _is_ours(self) -> bool:
        """True if no other worker has taken over the log and the gateway has not dropped it."""
        if self._tail is None:
            return self._path.exists()
        try:
            return self._path.stat().st_ino == self._tail.inode
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        for opened in (self._entries, self._tail):
            if opened is not None:
                opened.close()
        self._entries = self._tail = None


def _describe(files: list[Path]) -> StoredLog | None:
    """The log that these files contain; None if there was no first update."""
    tails = _tails(files)
    session = next(filter(None, (_session_of(path) for _, path in tails)), None)
    states = [path.stat() for path in files]
    age_s = time.time() - max((state.st_mtime for state in states), default=0.0)
    if session is None:
        if age_s > STRAY_S:
            _remove(files)
        return None
    return StoredLog(
        session,
        size_bytes=sum(state.st_size for state in states),
        age_s=max(0.0, age_s),
        has_writer=any(is_locked(path) for _, path in tails if path.suffix == TAIL),
    )


def size_of_disk(folder: Path) -> int:
    """Size of a folder's file system in bytes."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


def _folder_id(folder: Path, fresh: str) -> str:
    """The name of a folder; `fresh`, if it has none."""
    path = folder / FOLDER_ID
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(fresh)
    return path.read_text().strip()


def _stem(log_id: str) -> str:
    """Prefix of the names of a log's files; safe for any id."""
    return hashlib.sha256(log_id.encode()).hexdigest()[:32]


def _tails(files: Iterable[Path]) -> list[tuple[int, Path]]:
    """Tails with their epochs, newest first."""
    named = (path for path in files if path.suffix in (TAIL, CLOSED))
    return sorted(((_epoch(path), path) for path in named), reverse=True)


def _epoch(path: Path) -> int:
    return int(path.name.split(".")[1])


def _entries_path(tail: Path, generation: int) -> Path:
    return tail.with_name(f"{tail.name.rsplit('.', 1)[0]}.{generation}{ENTRIES}")


def _frames(data: bytes) -> Iterator[_Frame]:
    """The frames of a tail up to the first incomplete one."""
    at = 0
    while at + HEAD_BYTES <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        body = data[at + HEAD_BYTES : at + HEAD_BYTES + length]
        if len(body) < length or zlib.crc32(body) != int.from_bytes(data[at + 4 : at + 8], "big"):
            return
        try:
            yield _frame_decoder.decode(body)
        except msgspec.MsgspecError:
            return
        at += HEAD_BYTES + length


def _session_of(tail: Path) -> LoggedSession | None:
    """The session in the first frame of a tail; reads only that frame."""
    with tail.open("rb") as file:
        head = file.read(HEAD_BYTES)
        data = head + file.read(int.from_bytes(head[:4], "big"))
    return next((frame.session for frame in _frames(data)), None)


def _update(frame: _Frame) -> LogUpdate:
    is_first = frame.session is not None
    return LogUpdate(is_first, is_first, b"", frame.state, frame.outputs, frame.settled)


def _written(path: Path, data: bytes) -> AppendFile:
    """Create a locked file with this content."""
    file = AppendFile(path, 0o600)
    try:
        file.lock()
        file.append(data)
    except OSError:
        file.close()
        raise
    return file


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
