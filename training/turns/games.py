"""Lines that actors speak in two adventure games, in the archives that Debian has of them."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parley.media.pcm import Samples
from training.turns.end_of_turn import decoded, trimmed

GAMES = "usr/share/scummvm"
SHORT_S, LONG_S = (0.1625, 0.9), 1.25
LONG_LINES = 240
"""Of each game; of the short ones all."""


def lines(root: Path) -> Iterator[tuple[str, str, Samples]]:
    """Game and scene, name, sound."""
    for game in (queen, sky):
        said = dict(game(root))
        long_lines = 0
        for name in sorted(said, key=lambda name: hashlib.md5(name.encode()).hexdigest()):
            seconds = len(said[name]) / 16_000
            is_long = seconds >= LONG_S and long_lines < LONG_LINES
            long_lines += is_long
            if is_long or SHORT_S[0] < seconds < SHORT_S[1]:
                yield f"{game.__name__} {name[:3]}", name, said[name]


def queen(root: Path) -> Iterator[tuple[str, Samples]]:
    """Flight of the Amazon Queen: a table of names, places and lengths."""
    (path,) = (root / GAMES).rglob("queen.1*")
    data = path.read_bytes()
    (count,) = struct.unpack_from(">H", data, 13)
    for number in range(count):
        name, place, length = struct.unpack_from(">12sxII", data, 15 + 21 * number)
        name = name.partition(b"\0")[0].decode("latin1")
        if name.upper().endswith(".SB") and length:
            yield name, decoded(io.BytesIO(data[place : place + length]))


def sky(root: Path) -> Iterator[tuple[str, Samples]]:
    """Beneath a Steel Sky: bytes at 11 kHz; speech is numbered from 50,000 on."""
    import soxr

    (index,), (disk,) = ((root / GAMES).rglob(f"sky.{end}") for end in ("dnr", "dsk"))
    table, data = index.read_bytes(), disk.read_bytes()
    (count,) = struct.unpack_from("<I", table)
    for first in range(4, 4 + 8 * count, 8):
        (number,) = struct.unpack_from("<H", table, first)
        place = int.from_bytes(table[first + 2 : first + 5], "little")
        length = int.from_bytes(table[first + 5 : first + 8], "little") & 0x3FFFFF
        if place >> 23:
            place = (place & 0x7FFFFF) << 4
        samples = (
            np.frombuffer(data[place + 22 : place + length], np.uint8) - np.float32(128)
        ) / 128
        if number >= 50_000 and len(samples) >= 2500 and np.abs(samples).max() > 0.01:
            yield (
                str(number),
                trimmed(np.asarray(soxr.resample(samples, 11_025, 16_000), np.float32)),
            )
