"""Completion of a recording: builds `recording.json` and `meta.json` from the journal.

At the end of a session, or later for one whose process died.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import UNSET

from parley import logs
from parley.protocol.kinds import Kind
from parley.recording import lines, placing, timeline
from parley.recording.layout import Folder, write_atomically
from parley.recording.lines import JournalEntries
from parley.recording.timeline import MetaJson, RecordingJson

log = logs.get(__name__)


def finish(folder: Folder, *, recovered: bool = False, is_owner: bool = False) -> MetaJson | None:
    """Complete one recording; returns its metadata, or None if it is live or empty.

    Safe to repeat, also in several processes: the journal's lock decides which one does the work.

    Args:
        is_owner: True if this process recorded it and has closed it: it then waits for the lock,
            which other processes hold only briefly, to check it.

    Raises:
        OtherJournal: the journal is of another format.
        NoHead: its first line is damaged.
    """
    try:
        file = open(folder.journal, "rb")  # noqa: SIM115  closed by the `with` below
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if is_owner else fcntl.LOCK_NB))
        except BlockingIOError:
            return None
        if not os.fstat(file.fileno()).st_size:
            return None
        meta, recording = fold(lines.read(folder.journal), recovered=recovered)
        _keep_aside(folder.meta)
        # Last: its existence marks the recording as complete.
        write_atomically(folder.meta, timeline.encode_file(meta))
        write_atomically(folder.recording, timeline.encode_file(recording))
        return meta


def fold(journal: JournalEntries, *, recovered: bool = False) -> tuple[MetaJson, RecordingJson]:
    """`meta.json` and `recording.json` of a session that has ended. If its request has no text, its
    title is the user's first words."""
    plan = placing.place(journal)
    words = [one.text for one in plan.said if one.who == "user"]
    words += [turn.input.text for turn in plan.turns if turn.input.text]
    meta = timeline.build_meta(journal, recovered=recovered)
    if words and not meta.title:
        meta.title = " ".join(words[0].strip(' \n"“”').split())[: timeline.TITLE_CHARS]
    recording = timeline.build_recording(journal, plan.turns)
    for chunk, (start_s, _) in zip(recording.chunks or (), plan.units, strict=True):
        chunk.start_ms = round(1000 * start_s)
    if journal.head.app_type is not Kind.CHAT:
        recording.said = [
            timeline.RecordedSaid(
                one.who,
                one.text.strip(),
                round(1000 * one.start_s),
                round(1000 * one.end_s),
                one.is_interrupted or UNSET,
            )
            for one in plan.said
        ]
    return meta, recording


def _keep_aside(meta: Path) -> None:
    """Keep a copy of an unreadable `meta.json` before it is replaced."""
    try:
        json.loads(meta.read_bytes())
    except FileNotFoundError:
        return
    except ValueError as error:
        aside = meta.with_name(f"{meta.name}.corrupt")
        os.replace(meta, aside)
        log.error("unreadable_file_set_aside", file=str(meta), kept_as=aside.name, why=str(error))


def recover(folders: Iterable[Folder], hopeless: set[str] | None = None) -> list[Folder]:
    """Complete the recordings of crashed sessions; returns their folders.

    Args:
        hopeless: ids of recordings that could not be completed; they are skipped, and new ones are
            added.
    """
    found = []
    hopeless = set() if hopeless is None else hopeless
    for folder in folders:
        try:
            if folder.recording_id in hopeless or folder.recording.exists():
                continue
            if not folder.journal.exists() or folder.is_live():
                continue
            meta = finish(folder, recovered=True)
        except Exception as error:
            # One journal of another format, or a damaged one, must not stop the others.
            log.error(
                "recording_not_recovered",
                recording_id=folder.recording_id,
                why=f"{type(error).__name__}: {error}",
            )
            # A disk that is full now may have space later.
            if not isinstance(error, OSError):
                hopeless.add(folder.recording_id)
            continue
        if meta is not None:
            log.warning(
                "recording_recovered",
                recording_id=folder.recording_id,
                duration_s=meta.duration_s,
            )
            found.append(folder)
    return found
