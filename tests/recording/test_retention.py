"""What goes by age and size, and what never goes."""

import os
import time
from typing import Any

import pytest
from tests.support.recordings import Running, recorded

from parley.recording import store
from parley.recording.layout import RecordingFolders
from parley.recording.retention import DAY_S, CleanReport, clean

NOW = 1_700_000_000.0


def tidy(tmp_path, days: float = -1, gb: float = -1) -> CleanReport:
    return clean(RecordingFolders(tmp_path), retention_days=days, max_gb=gb, now_s=NOW + 1)


def left(tmp_path) -> list[str]:
    return [folder.recording_id for folder in RecordingFolders(tmp_path)]


def aged(tmp_path, name: str, days: float, **more: Any):
    return recorded(tmp_path, name, units=1, created_s=NOW - days * DAY_S, **more)


def test_by_age_if_there_is_a_limit(tmp_path):
    aged(tmp_path, "old", 31)
    aged(tmp_path, "young", 29)

    without = tidy(tmp_path)
    report = tidy(tmp_path, days=30)

    assert (without.status, without.scanned, without.deleted) == ("disabled", 2, 0)
    assert left(tmp_path) == ["young"]
    assert (report.deleted, report.deleted_expired, report.remaining) == (1, 1, 1)
    assert 0 < report.remaining_size_mb < 1
    assert tidy(tmp_path, days=0).deleted == 1


def test_by_size_the_oldest_of_the_key_that_has_most(tmp_path):
    for days in (0, 1, 2, 3, 4, 9, 40):
        owner = "bert" if days in (0, 9) else "anna"
        aged(tmp_path, f"day_{days}", days).owner.write_text(owner)
    size = next(iter(RecordingFolders(tmp_path))).size_bytes()

    report = tidy(tmp_path, days=30, gb=4.5 * size / 1e9)

    assert left(tmp_path) == ["day_0", "day_1", "day_2", "day_9"]
    assert (report.deleted_capacity, report.deleted_expired) == (2, 1)


def test_the_parts_of_a_session_go_together(tmp_path):
    first = aged(tmp_path, "first", 31)
    later = aged(tmp_path, "later", 29, config={"continues": "first"})
    size = later.size_bytes()

    assert tidy(tmp_path, days=30).deleted == 0
    for part in (first, later):
        part.pin.touch()
        assert tidy(tmp_path, days=1).deleted == 0
        part.pin.unlink()
    first.meta.write_text("{")
    assert tidy(tmp_path, days=30).deleted == 0
    assert tidy(tmp_path, gb=1.5 * size / 1e9).deleted_capacity == 2


def test_what_cannot_be_deleted_is_counted_and_remains(tmp_path, monkeypatch):
    aged(tmp_path, "old", 31)
    monkeypatch.setattr("parley.recording.retention._remove", lambda folder: False)

    report = tidy(tmp_path, days=30)

    assert (report.status, report.errors, report.deleted) == ("errors", 1, 0)
    assert report.remaining == 1


def test_running_pinned_and_unreadable_ones_stay_whatever_the_limits(tmp_path):
    aged(tmp_path, "pinned", 500).pin.touch()
    damaged, unreadable = (aged(tmp_path, name, 500) for name in ("damaged", "unreadable"))
    damaged.pin.touch()
    damaged.meta.write_text("{")
    unreadable.meta.unlink()
    unreadable.meta.mkdir()  # An error when it is read, as with too many open files.
    for one in (damaged, unreadable):
        os.utime(one.path, (0, 0))
    with Running(tmp_path, "live"):
        report = tidy(tmp_path, days=0, gb=0)
        assert left(tmp_path) == ["damaged", "live", "pinned", "unreadable"]

    assert report.deleted == 0


def test_folders_without_metadata_go_after_a_day(tmp_path):
    for name in ("fresh", "stale"):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    os.utime(tmp_path / "sessions" / "fresh", (NOW, NOW))
    os.utime(tmp_path / "sessions" / "stale", (NOW - 2 * DAY_S, NOW - 2 * DAY_S))

    report = tidy(tmp_path)

    assert left(tmp_path) == ["fresh"]
    assert report.deleted_broken == 1


def test_what_was_deleted_meanwhile_hinders_nothing(tmp_path, monkeypatch):
    aged(tmp_path, "old", 31)
    listed = [RecordingFolders(tmp_path).folder(name) for name in ("gone", "old")]
    monkeypatch.setattr(RecordingFolders, "__iter__", lambda self: iter(listed))

    (victim,) = tidy(tmp_path, days=30).victims
    assert (victim.session_id, victim.reason) == ("old", "expired")


def test_a_deletion_that_was_cut_off_is_finished(tmp_path):
    doomed = tmp_path / "sessions" / ".half.deleted"
    doomed.mkdir(parents=True)
    (doomed / "rest.wav").write_bytes(b"x")

    tidy(tmp_path, days=30)

    assert not doomed.exists()


def test_links_and_folders_with_other_names_are_neither_followed_nor_deleted(tmp_path):
    for name in (".hidden", "with space", "x" * 161):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "meta.json").write_text("{}")
    (tmp_path / "sessions" / "link").symlink_to(outside)

    report = clean(RecordingFolders(tmp_path), retention_days=0, max_gb=0, now_s=time.time() + 1e9)

    assert report.scanned == 0
    assert (outside / "meta.json").exists()
    # A file that is replaced by a link after it was listed.
    (tmp_path / "link.json").symlink_to(outside / "meta.json")
    with pytest.raises(OSError, match="symbolic links"):
        store.open_plain(tmp_path / "link.json")
