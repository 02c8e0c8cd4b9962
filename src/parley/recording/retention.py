"""Deletes recordings by age, then by total size; never running or pinned ones.

Source: service.md 6.5.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from parley import logs
from parley.recording.layout import GB, Folder, RecordingFolders
from parley.recording.store import (
    BrokenRecording,
    StillRecording,
    created_s,
    delete,
    read_meta,
    read_owner,
)

DAY_S: Final = 86_400.0

Reason = Literal["expired", "capacity", "broken"]

_log = logs.get(__name__)


class RemovedRecording(msgspec.Struct, kw_only=True):
    """A deleted recording, and the reason: expired, capacity or broken."""

    session_id: Annotated[str, Meta(examples=["20251001_090000_omni_0123456789abcdef01234567"])]
    reason: Reason


class CleanReport(msgspec.Struct, kw_only=True):
    """Numbers of examined and deleted recordings; with `dry_run`, those that would be deleted.
    `victims`: the deleted ones, in order."""

    status: Literal["ok", "disabled", "dry_run", "errors"] = "ok"
    scanned: int = 0
    deleted: int = 0
    deleted_expired: int = 0
    deleted_capacity: int = 0
    deleted_broken: int = 0
    remaining: int = 0
    remaining_size_mb: float = 0.0
    errors: int = 0
    victims: list[RemovedRecording] = []


@dataclass(slots=True)
class _Kept:
    """The recordings of one session, which may have continued at other workers: they are kept or
    deleted together.

    Args:
        first_id: of its first recording.
        sizes: of each recording, in bytes.
        created_s: of the newest one.
        reason: "broken": none has usable metadata.
    """

    first_id: str
    sizes: dict[Folder, int]
    created_s: float
    is_safe: bool
    reason: Reason | None = None

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def add(self, part: _Kept) -> None:
        self.sizes |= part.sizes
        self.created_s = max(self.created_s, part.created_s)
        self.is_safe |= part.is_safe
        self.reason = self.reason and part.reason


def clean(
    folders: RecordingFolders,
    *,
    retention_days: float,
    max_gb: float,
    now_s: float,
    dry_run: bool = False,
) -> CleanReport:
    """Delete recordings beyond the limits of age and size. Negative limits do not apply.

    Folders without usable metadata are deleted when they are older than a day, regardless of the
    limits.
    """
    report = CleanReport()
    sessions: dict[str, _Kept] = {}
    for part in filter(None, map(_look, folders)):
        report.scanned += 1
        if (kept := sessions.setdefault(part.first_id, part)) is not part:
            kept.add(part)
    found = sorted(sessions.values(), key=lambda one: one.created_s)
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
        _make_room([one for one in found if one.reason is None], max_gb * GB)
    if retention_days < 0 and max_gb < 0:
        report.status = "disabled"
    if dry_run:
        report.status = "dry_run"
    for one in found:
        for folder, size in one.sizes.items():
            if one.reason is not None and (dry_run or _remove(folder)):
                victim = RemovedRecording(session_id=folder.recording_id, reason=one.reason)
                report.victims.append(victim)
                continue
            if one.reason is not None:
                report.errors += 1
                report.status = "errors"
            report.remaining += 1
            report.remaining_size_mb += size / 1e6
    reasons = Counter(victim.reason for victim in report.victims)
    report.deleted = reasons.total()
    report.deleted_expired, report.deleted_capacity = reasons["expired"], reasons["capacity"]
    report.deleted_broken = reasons["broken"]
    if not dry_run:
        _finish_interrupted(folders)
    report.remaining_size_mb = round(report.remaining_size_mb, 3)
    return report


def _make_room(found: list[_Kept], limit_bytes: float) -> None:
    """Choose what has to go for the rest to be within a limit: always the oldest of the key that
    has most, so that one key does not push out the recordings of others. `found`: oldest first."""
    excess = sum(one.size for one in found) - limit_bytes
    if excess <= 0:
        return
    held, newest_first = Counter[str](), defaultdict[str, list[_Kept]](list)
    for one in reversed(found):
        owner = read_owner(next(iter(one.sizes)))
        held[owner] += one.size
        if not one.is_safe:
            newest_first[owner].append(one)
    while excess > 0 and (owners := [each for each, rest in newest_first.items() if rest]):
        owner = max(owners, key=lambda each: held[each])
        one = newest_first[owner].pop()
        one.reason = "capacity"
        held[owner] -= one.size
        excess -= one.size


def _look(folder: Folder) -> _Kept | None:
    is_safe = folder.is_live() or folder.pin.exists()
    sizes = {folder: folder.size_bytes()}
    try:
        meta = read_meta(folder)
        config = meta.get("config")
        first = config.get("continues") if isinstance(config, dict) else None
        return _Kept(str(first or folder.recording_id), sizes, created_s(meta), is_safe)
    except (BrokenRecording, ValueError) as error:
        # What cannot be read now (too many open files, a disk's error) may be whole.
        why = error.__cause__
        is_safe |= isinstance(why, OSError) and not isinstance(why, FileNotFoundError)
        reason: Reason | None = None if is_safe else "broken"
        # None if it was deleted after it was listed.
        with suppress(FileNotFoundError):
            changed_s = folder.path.lstat().st_mtime
            return _Kept(folder.recording_id, sizes, changed_s, is_safe, reason)
        return None


def _remove(folder: Folder) -> bool:
    try:
        delete(folder)
    except StillRecording:
        return False
    except OSError as error:
        _log.warning("recording_delete_failed", recording_id=folder.recording_id, why=str(error))
        return False
    return True


def _finish_interrupted(folders: RecordingFolders) -> None:
    """Remove the remains of interrupted deletions."""
    for path in folders.root.glob(".*.deleted"):
        shutil.rmtree(path, ignore_errors=True)
