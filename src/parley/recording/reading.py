"""Reads journals: the entries of a session, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from parley.errors import InvalidPayload, InvalidRequest
from parley.recording import layout, lines
from parley.recording.lines import EntryLine, HeadLine, JournalLine, KeptSound
from parley.session_log.entries import EntriesLost, Recorded

_decoder = msgspec.json.Decoder(JournalLine)


class OtherJournal(InvalidRequest):
    """A journal of another format."""

    code = "other_journal_format"

    def __init__(self, version: int) -> None:
        super().__init__(
            f"Another version of parley made this recording: its journal has format {version}, and "
            f"this version reads format {lines.VERSION}."
        )


class NoHead(InvalidRequest):
    """A journal that does not say whose it is."""

    sentence = "The journal has no head line."


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """An entry of a journal. In place of bytes it has the path of their file, and no sound."""

    line: EntryLine
    entry: Recorded

    @property
    def at_ms(self) -> float:
        return float(self.line.at_ms)

    @property
    def heard(self) -> KeptSound | None:
        """The user's sound, if it can be listened to."""
        return self.line.sound(layout.USER_AUDIO)

    @property
    def said(self) -> KeptSound | None:
        """The model's sound."""
        return self.line.sound(layout.AI_AUDIO)


@dataclass(slots=True)
class JournalEntries:
    """The readable part of a journal.

    Args:
        damaged: number of lines that could not be read.
    """

    head: HeadLine
    entries: list[RecordedEntry]
    damaged: int = 0

    def __iter__(self) -> Iterator[RecordedEntry]:
        return iter(self.entries)

    @property
    def lost(self) -> int:
        """Number of entries that were not written."""
        return sum(each.entry.count for each in self if isinstance(each.entry, EntriesLost))

    @property
    def lasted_ms(self) -> float:
        """Time of the last entry."""
        return max((each.at_ms for each in self), default=0.0)

    @property
    def began_s(self) -> float:
        """Unix seconds at which the session was ready, or requested."""
        times = [each.line.time_s for each in self if each.line.time_s is not msgspec.UNSET]
        return float(times[-1] if times else self.head.created_s)


def read(path: Path) -> JournalEntries:
    """Read a journal. A line that a crash cut off counts as damaged.

    Raises:
        OSError: there is no journal.
        OtherJournal: it is of another format.
        NoHead: it is empty, or damaged from its first line on.
    """
    head: HeadLine | None = None
    entries: list[RecordedEntry] = []
    damaged = 0
    with open(path, "rb") as file:
        for raw in file:
            try:
                line = _decoder.decode(raw)
                if isinstance(line, EntryLine):
                    entry = lines.load(line, lines.by_name)
                    entries.append(RecordedEntry(line, entry))
                    continue
            except (InvalidPayload, msgspec.DecodeError, UnicodeDecodeError):
                damaged += 1
                continue
            if line.version != lines.VERSION:
                raise OtherJournal(line.version)
            head = line
    if head is None:
        raise NoHead
    return JournalEntries(head, entries, damaged)
