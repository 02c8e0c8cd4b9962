"""Files that grow while a session runs, on a disk that may fill up at any moment.

What is appended is there as a whole or not at all: a write that fails half way is cut off again, so
that the next one, when there is room again, begins where the last good one ended. Nothing waits in
a buffer of ours, so nothing is lost later without a word. The writer of a file locks it, and the
lock goes with the process, however that ends: a file that is not locked has no writer any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class AppendFile:
    """A file at its end. Every method may raise `OSError`; the file is as before then.

    Args:
        is_new: there must be no such file; else there must be one.
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
        """All of it, or none."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._file, view[done:], self.size + done)
        except OSError:
            # Cutting off needs no room. Should it fail as well, the next append writes over it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += len(view)

    def overwrite(self, data: bytes, at: int) -> None:
        """Replace bytes that are there."""
        os.pwrite(self._file, data, at)

    def sync(self) -> None:
        """Until it is on the disk itself."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Safe to repeat."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def is_locked(path: Path) -> bool:
    """True if a living process writes a file.

    Raises:
        OSError: it is not there.
    """
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
