"""Files that grow while a session runs, on a disk that may fill up at any moment.

An append is stored completely or not at all: a partial write is truncated, so that the next one,
when there is room again, starts where the last good one ended. Nothing is buffered in this process,
so nothing is lost silently later. The writer of a file locks it, and the lock is released when its
process ends for any reason: a file that is not locked has no writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class AppendFile:
    """A file that is only appended to. Every method may raise `OSError`; the file is then
    unchanged.

    Args:
        is_new: True: create the file, which must not exist; False: it must exist.
    """

    def __init__(self, path: Path, mode: int = 0o640, *, is_new: bool = True) -> None:
        how = os.O_CREAT | os.O_EXCL if is_new else 0
        self._file = os.open(path, how | os.O_RDWR | os.O_CLOEXEC, mode)
        state = os.fstat(self._file)
        self.size, self.inode = state.st_size, state.st_ino

    def lock(self) -> None:
        """Mark it as being written (`is_locked`), until it is closed or this process ends."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def append(self, data: bytes | memoryview) -> None:
        """Append all of `data`, or nothing."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._file, view[done:], self.size + done)
        except OSError:
            # Truncating needs no space. If it fails too, the next append overwrites the partial
            # data.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += len(view)

    def overwrite(self, data: bytes) -> None:
        """Replace the first bytes."""
        os.pwrite(self._file, data, 0)

    def sync(self) -> None:
        """Wait until the data is on the disk."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Safe to repeat."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def is_locked(path: Path) -> bool:
    """True if a living process writes a file.

    Raises:
        OSError: it does not exist.
    """
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
