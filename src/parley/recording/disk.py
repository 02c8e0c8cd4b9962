"""Files that grow while a session runs, on a disk that may fill up at any moment.

What is appended is there as a whole or not at all: a write that fails half way is cut off again, so
that the next one, when there is room again, begins where the last good one ended. Nothing waits in
a buffer of ours, so nothing is lost later without a word.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

_WAV_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")


class AppendFile:
    """A new file. Every method may raise `OSError`; the file is as before then."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o640)
        self.size = 0

    @classmethod
    def reopen(cls, path: Path) -> AppendFile:
        """A file that is there, at its end."""
        file = cls.__new__(cls)
        file._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        file.size = os.fstat(file._file).st_size
        return file

    @property
    def descriptor(self) -> int:
        """For locks."""
        return self._file

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


class WavFile:
    """Mono 16 bit sound that grows; its header is right after every piece, so that it can be
    played whenever the process may die."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._file = AppendFile(path)
        try:
            self._file.append(self._header(0))
        except OSError:
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, samples: bytes) -> None:
        """Raw little-endian int16 samples: all or none."""
        self._file.append(samples)
        self._file.overwrite(self._header(self._file.size - _WAV_HEADER.size), 0)

    def close(self) -> None:
        """Safe to repeat."""
        self._file.close()

    def _header(self, size: int) -> bytes:
        rate = self._rate_hz
        return _WAV_HEADER.pack(
            *(b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16),
            *(b"data", size),
        )


def write_new(path: Path, data: bytes) -> None:
    """A small file as a whole; nothing is left of it when there is no room."""
    try:
        path.write_bytes(data)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
