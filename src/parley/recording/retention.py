"""Deletes recordings by age, then by total size, oldest first; never running or pinned ones.

Source: service.md 6.5.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from parley import logs
from parley.recording.journal import remove
from parley.recording.layout import GB, Folder, RecordingFolders
from parley.recording.store import BrokenRecording, read_meta

DAY_S: Final = 86_400.0

Reason = Literal["expired", "capacity", "broken"]

_log = logs.get(__name__)


@dataclass(slots=True)
class RetentionReport:
    """Numbers of examined and deleted recordings. `victims`: ids of the deleted ones with reasons,
    in order."""

    status: Literal["ok", "disabled", "dry_run", "errors"] = "ok"
    scanned: int = 0
    deleted: int = 0
    deleted_expired: int = 0
    deleted_capacity: int = 0
    deleted_broken: int = 0
    remaining: int = 0
    remaining_size_mb: float = 0.0
    errors: int = 0
    victims: list[tuple[str, Reason]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Kept:
    folder: Folder
    created_s: float
    size: int
    is_safe: bool
    reason: Reason | None = None


def clean(
    folders: RecordingFolders,
    *,
    retention_days: float,
    max_gb: float,
    now_s: float,
    dry_run: bool = False,
) -> RetentionReport:
    """Delete recordings beyond the limits of age and size. Negative limits do not apply.

    Folders without usable metadata are deleted when they are older than a day, regardless of the
    limits.
    """
    report = RetentionReport()
    found = [one for folder in folders if (one := _look(folder)) is not None]
    report.scanned = len(found)
    for one in found:
        if one.is_safe:
            continue
        age_s = now_s - one.created_s
        if one.reason == "broken":
            if age_s <= DAY_S:
                one.reason = None
        elif retention_days >= 0 and age_s > retention_days * DAY_S:
            one.reason = "expired"
    if max_gb >= 0:
        size = sum(one.size for one in found if one.reason is None)
        for one in sorted(found, key=lambda one: one.created_s):
            if size <= max_gb * GB:
                break
            if one.reason is None and not one.is_safe:
                one.reason = "capacity"
                size -= one.size
    if retention_days < 0 and max_gb < 0:
        report.status = "disabled"
    if dry_run:
        report.status = "dry_run"
    for one in found:
        if one.reason is not None:
            report.victims.append((one.folder.recording_id, one.reason))
            if dry_run or _remove(one.folder):
                report.deleted += 1
                report.deleted_expired += one.reason == "expired"
                report.deleted_capacity += one.reason == "capacity"
                report.deleted_broken += one.reason == "broken"
                continue
            report.errors += 1
            report.status = "errors"
        report.remaining += 1
        report.remaining_size_mb += one.size / 1e6
    if not dry_run:
        _finish_interrupted(folders)
    report.remaining_size_mb = round(report.remaining_size_mb, 3)
    return report


def _look(folder: Folder) -> _Kept | None:
    is_safe = folder.is_live() or folder.pin.exists()
    size = folder.size_bytes()
    try:
        created = datetime.fromisoformat(read_meta(folder)["created_at"])
        if created.tzinfo is None:
            created = created.replace(tzinfo=UTC)
        return _Kept(folder, created.timestamp(), size, is_safe)
    except (BrokenRecording, ValueError) as error:
        # What cannot be read now (too many open files, a disk's error) may be whole.
        why = error.__cause__
        is_safe |= isinstance(why, OSError) and not isinstance(why, FileNotFoundError)
        # None if it was deleted after it was listed.
        with suppress(FileNotFoundError):
            changed_s = folder.path.lstat().st_mtime
            return _Kept(folder, changed_s, size, is_safe, None if is_safe else "broken")
        return None


def _remove(folder: Folder) -> bool:
    if folder.is_live():
        return False
    try:
        remove(folder.path)
    except OSError as error:
        _log.warning("recording_delete_failed", recording_id=folder.recording_id, why=str(error))
        return False
    return True


def _finish_interrupted(folders: RecordingFolders) -> None:
    """Remove the remains of interrupted deletions."""
    for path in folders.root.glob(".*.deleted"):
        shutil.rmtree(path, ignore_errors=True)
