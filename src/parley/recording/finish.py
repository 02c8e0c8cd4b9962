"""Turns a journal into `recording.json` and a complete `meta.json`: at the end of a session, or
later for one whose process died."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from parley import logs
from parley.recording import timeline
from parley.recording.layout import Folder, Shelf, write_atomically

_log = logs.get(__name__)


def finish(
    folder: Folder, *, recovered: bool = False, is_owner: bool = False
) -> dict[str, Any] | None:
    """Complete one recording; gives its meta data, None when it is running or holds nothing.

    Safe to repeat, and from several processes: whoever gets the journal's lock does it.

    Args:
        is_owner: it was recorded here and is over, so the lock is free but for the moments in
            which others look at it; wait for it.
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
        journal = timeline.read(folder.journal)
        head = journal.last("head")
        if head is None:
            return None
        meta = timeline.build_meta(head, journal, recovered=recovered)
        recording = timeline.build_recording(head, journal)
        _keep_aside(folder.meta)
        # The timeline comes last: where it is, nothing is left to do.
        write_atomically(folder.meta, _json(meta))
        write_atomically(folder.recording, _json(recording))
        return meta


def _keep_aside(meta: Path) -> None:
    """A `meta.json` that cannot be read is about to be made anew: keep what there is of it."""
    try:
        json.loads(meta.read_bytes())
    except FileNotFoundError:
        return
    except ValueError as error:
        aside = meta.with_name(f"{meta.name}.corrupt")
        os.replace(meta, aside)
        _log.error("broken file put aside", file=str(meta), kept_as=aside.name, why=str(error))


def recover(shelf: Shelf) -> list[Folder]:
    """Complete what crashed sessions left; gives the folders that were completed."""
    found = []
    for folder in shelf:
        if folder.recording.exists():
            continue
        if not folder.journal.exists() or folder.is_live():
            continue
        meta = finish(folder, recovered=True)
        if meta is not None:
            _log.warning(
                "recording recovered",
                recording_id=folder.recording_id,
                duration_s=meta["duration_s"],
            )
            found.append(folder)
    return found


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
