"""Journal format: one JSON object per line, a head and then the entries of the session.

    head    whose session it is, and how it was requested, for people (`config`)
    entry   one entry or event (`session_log.entries.Recorded`), as `state_codec` writes it

Lines are appended while the session is running; `timeline` folds them into `recording.json` and
`meta.json`, `placing` into a plan for rendering, and `parley rerun` repeats them. Audio and bytes
are in files: `["kept", 0]` is the line's first audio, `["kept", "x.jpg"]` the file with that name.

Source: service.md 6.2, 6.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.errors import InvalidPayload, InvalidRequest
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.protocol.kinds import Kind
from parley.recording import layout
from parley.session_log import state_codec
from parley.session_log.entries import EntriesLost, Recorded

VERSION: Final = 3

Number = int | float
SamplePlace = tuple[int | None, int, int]
"""Position of samples in `inputs.f32`: first sample (None: not stored), count, rate in hertz."""


class HeadLine(msgspec.Struct, tag_field="kind", tag="head", kw_only=True):
    """Whose session it is.

    Args:
        created_s: Unix time of its request.
        config: a JSON object that is displayed to people.
        seed: of the session's sampling.
        continues: id of the session's previous recording, from the worker that was lost.
        continues_after: number of entries, without the setup, that had been logged until then.
    """

    recording_id: str
    app_type: Kind
    dialect: str
    created_s: Number
    worker_id: str
    model: str
    title: str = ""
    config: msgspec.Raw = msgspec.Raw(b"{}")
    seed: int
    version: int = VERSION
    continues: str | UnsetType = UNSET
    continues_after: int | UnsetType = UNSET


class KeptSound(msgspec.Struct, omit_defaults=True):
    """Audio of an entry.

    Args:
        path: its file, or the file that contains it; "" for none.
        samples: position of the samples that the model heard.
        sha256: of the model's samples, before conversion to 16 bits.
    """

    path: str = ""
    ms: Number = 0
    samples: SamplePlace | None = None
    sha256: str = ""

    @property
    def duration_s(self) -> float:
        if self.samples is None:
            return self.ms / 1000
        _, count, rate_hz = self.samples
        return count / rate_hz


class EntryLine(msgspec.Struct, tag_field="kind", tag="entry"):
    """One entry.

    Args:
        at_ms: since the session was ready.
        time_s: Unix time at which it was ready; only in the entry that reports it.
        sounds: audio of the entry, in the order in which `what` refers to it.
        spoken_ago_ms: start and end of the user's words in this entry, if known, counted back from
            the end of the newest audio.
    """

    at_ms: Number
    what: msgspec.Raw
    time_s: Number | UnsetType = UNSET
    sounds: list[KeptSound] | UnsetType = UNSET
    spoken_ago_ms: tuple[Number, Number] | UnsetType = UNSET

    def sound(self, folder: str) -> KeptSound | None:
        """The audio whose file is in this subfolder of the recording."""
        return next((each for each in self.sounds or () if each.path.startswith(folder)), None)


JournalLine = HeadLine | EntryLine


def encode(line: JournalLine) -> bytes:
    """One line of a journal, with its line feed."""
    return msgspec.json.encode(line) + b"\n"


def written(
    entry: Recorded, at_ms: Number = 0.0, keep: state_codec.KeepMedia | None = None
) -> EntryLine:
    plain = state_codec.to_plain(entry, keep)
    return EntryLine(at_ms, msgspec.Raw(msgspec.json.encode(plain)))


def load(line: EntryLine, sound_or_bytes: state_codec.LoadMedia) -> Any:
    """The entry of a line.

    Raises:
        InvalidPayload: it cannot be read.
    """
    return state_codec.from_plain(msgspec.json.decode(line.what), sound_or_bytes)


def by_name(kept: int | str) -> Pcm | bytes:
    """Replaces audio and bytes by nothing and by the path of the file."""
    return kept.encode() if isinstance(kept, str) else Pcm.empty(INPUT_RATE_HZ)


_head_decoder = msgspec.json.Decoder(HeadLine)
_decoder = msgspec.json.Decoder(JournalLine)


class OtherJournal(InvalidRequest):
    """The journal has another format."""

    code = "other_journal_format"

    def __init__(self, version: int) -> None:
        super().__init__(
            f"Another version of parley made this recording: its journal has format {version}, and "
            f"this version reads format {VERSION}."
        )


class NoHead(InvalidRequest):
    """The journal has no head."""

    sentence = "The journal has no head line."


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """An entry of a journal, with paths of files instead of bytes, and without audio."""

    line: EntryLine
    entry: Recorded

    @property
    def at_ms(self) -> float:
        return float(self.line.at_ms)

    @property
    def heard(self) -> KeptSound | None:
        """The user's audio, if it can be played."""
        return self.line.sound(layout.USER_AUDIO)

    @property
    def said(self) -> KeptSound | None:
        """The model's audio."""
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
        return sum(each.entry.count for each in self if isinstance(each.entry, EntriesLost))

    @property
    def began_s(self) -> float:
        """Unix time at which the session was ready or, if unknown, requested."""
        times = [each.line.time_s for each in self if each.line.time_s is not msgspec.UNSET]
        return float(times[-1] if times else self.head.created_s)


def read(path: Path) -> JournalEntries:
    """Read a journal. A line that was truncated by a crash counts as damaged.

    Raises:
        OSError: there is no journal.
        OtherJournal: it is of another format.
        NoHead: it is empty, or its first line is damaged.
    """
    head: HeadLine | None = None
    entries: list[RecordedEntry] = []
    damaged = 0
    with open(path, "rb") as file:
        for raw in file:
            try:
                line = _decoder.decode(raw)
                if isinstance(line, EntryLine):
                    entry = load(line, by_name)
                    entries.append(RecordedEntry(line, entry))
                    continue
            except (InvalidPayload, msgspec.DecodeError, UnicodeDecodeError):
                damaged += 1
                continue
            if line.version != VERSION:
                raise OtherJournal(line.version)
            head = line
    if head is None:
        raise NoHead
    return JournalEntries(head, entries, damaged)


def read_head(path: Path) -> HeadLine | None:
    """The first line of a journal; None if there is none, or it cannot be read."""
    try:
        with open(path, "rb") as file:
            return _head_decoder.decode(file.readline())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
