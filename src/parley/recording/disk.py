"""Sound files that grow while a session runs, and small files that are written whole."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Final

from parley.session_log.append_file import AppendFile

_WAV_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")


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
