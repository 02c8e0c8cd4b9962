"""Where a running copy store is found: a file in the gateway's data folder, and who listens there.

The file is written by the copy store, as a whole, readable for its user only. What is in it may be
old, of another release, or of another program altogether, so it is believed only after a greeting.
Imports little, because the copy store does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from parley.files import replace_whole
from parley.protocol.copies import (
    GREETING_LIMIT_BYTES,
    LENGTH_BYTES,
    MessageTooLarge,
    NotOurStore,
    StoreAt,
    StoreGreeting,
)

FILE: Final = "copy-store.json"
LOOPBACK: Final = "127.0.0.1"
PRIVATE: Final = 0o600
LIMIT_BYTES: Final = 4096
LOOK_S: Final = 5.0
"""How long another copy store may take to show that it is one."""

decoder: Final = msgspec.json.Decoder(StoreAt)


def read(path: Path) -> StoreAt | None:
    """What a copy store has written; it may have ended since. None: nothing that can be read."""
    try:
        return decoder.decode(_content(path))
    except (OSError, ValueError):
        return None


async def write(path: Path, at: StoreAt) -> str:
    """Put it there, unless it is there; why not, or "".

    The file of another copy store that runs stays: two servers share a folder.
    """
    before = read(path)
    if before == at:
        return ""
    if before is not None and await is_running(before):
        return "Another server uses this data folder."
    try:
        replace_whole(path, msgspec.json.encode(at), mode=PRIVATE)
    except OSError as error:
        return str(error)
    return ""


def remove(path: Path, at: StoreAt) -> None:
    """Remove it, unless another copy store has taken its place."""
    if read(path) == at:
        with contextlib.suppress(OSError):
            path.unlink()


async def is_running(at: StoreAt) -> bool:
    """Whether what listens there is the copy store that has written it. Not by the number of its
    process: one that was killed keeps it until somebody waits for it; nor by its port, which
    another program may have now."""
    greeting = StoreGreeting(at.secret, is_gateway=True)
    with contextlib.suppress(OSError, EOFError, ValueError, MessageTooLarge, NotOurStore):
        async with asyncio.timeout(LOOK_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, at.port)
            with contextlib.closing(writer):
                writer.write(greeting.hello)
                greeting.answer(await read_message(reader))
                return True
    return False


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """One message of a greeting.

    Raises:
        MessageTooLarge: it is none.
        EOFError, OSError: the other end is gone.
    """
    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if size > GREETING_LIMIT_BYTES:
        raise MessageTooLarge(f"{size} bytes of {GREETING_LIMIT_BYTES}")
    return await reader.readexactly(size)


def _content(path: Path) -> bytes:
    # Nobody waits for the writer of a pipe, and nobody reads a device to its end.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        return file.read(LIMIT_BYTES)
