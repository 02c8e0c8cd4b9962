"""What stays of whole sessions: a worker's host on a parrot, with its files in a scratch folder."""

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.recordings import a_unit, begun, head, recordings, started, tone
from tests.support.sessions import worker_harness

from parley.dialects.events import AnswerDone, InputCommitted, OutputDelta
from parley.protocol.kinds import Kind
from parley.recording import lines, recorder
from parley.recording.finish import recover
from parley.recording.journal import Journal
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import Folder, RecordingFolders, make_id
from parley.recording.lines import written


def only(tmp_path: Path) -> Folder:
    (folder,) = RecordingFolders(tmp_path)
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


@pytest.mark.parametrize("dialect", ["half_duplex", "duplex", "realtime"])
async def test_anyone_who_declines_is_not_recorded_and_gets_no_id(tmp_path, dialect):
    kept = recordings(tmp_path)
    async with worker_harness(recordings=kept) as harness:
        talk = await harness.ready(dialect, record=False)
        name = "session.created" if dialect == "realtime" else "prepared"
        told = await talk.until(name)
    kept.close()

    assert "recording_session_id" not in told
    assert list(RecordingFolders(tmp_path)) == []


@pytest.mark.parametrize(("free_gb", "is_recorded"), [(0.99, False), (1.01, True)])
async def test_a_full_disk_means_no_recording(tmp_path, monkeypatch, free_gb, is_recorded):
    # As much as the admin page, which counts in 10^9, calls enough.
    monkeypatch.setattr("parley.recording.recorder.free_bytes", lambda path: round(free_gb * 1e9))
    kept = recordings(tmp_path, min_free_gb=1)
    async with worker_harness(recordings=kept) as harness:
        talk = await harness.ready("duplex")
        told = await talk.until("prepared")
    kept.close()

    assert ("recording_session_id" in told) == is_recorded


def test_ids_cannot_be_guessed_and_are_never_used_twice(tmp_path):
    ids = {make_id(Kind.HALF_DUPLEX, "hdx", 0.0) for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one.removeprefix("hdx_")) >= 16 for one in ids)

    folder = RecordingFolders(tmp_path).folder("twice")
    folder.path.mkdir(parents=True)
    (folder.path / "recording.json").write_text("{}")
    writer = JournalWriter()
    journal = Journal(folder, writer)
    journal.begin(head("twice"))
    journal.end("done", 0.0)
    writer.close()
    assert (folder.path / "recording.json").read_text() == "{}"


def test_what_waits_for_the_disk_is_bounded_and_loss_is_written_down(tmp_path):
    gate = threading.Event()
    writer = JournalWriter(limit_bytes=500_000)

    def stall() -> None:
        gate.wait(20)

    writer.put(stall, 0, session_id="", must=True)
    journal = Journal(RecordingFolders(tmp_path).folder("slow"), writer)
    journal.begin(head("slow"))
    for index in range(20):
        journal.put(*a_unit(index))
    waiting = writer._waiting_bytes
    # Small, and the rest is useless without it.
    journal.put(AnswerDone("x", 1, 2), 20_000.0)
    journal.end("done", 20_000.0)
    gate.set()
    assert writer.flush()
    assert writer._waiting_bytes == 0
    writer.close()

    folder = only(tmp_path)
    written = len(read(folder.recording)["chunks"])
    assert waiting <= 500_000
    assert 0 < written < 20
    assert AnswerDone in {type(each.entry) for each in lines.read(folder.journal)}
    assert journal.lost == 20 - written
    assert read(folder.meta)["lost_entries"] == journal.lost


def _record_and_hang(data_dir: str, ready: Any) -> None:
    writer = JournalWriter()
    journal = begun(RecordingFolders(Path(data_dir)).folder("crash"), writer)
    for index in range(5):
        journal.put(*a_unit(index))
    writer.flush()
    ready.set()
    threading.Event().wait(60)


def test_a_killed_process_loses_nothing_that_was_said(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_record_and_hang, args=(str(tmp_path), ready))
    process.start()
    assert ready.wait(60)
    folder = only(tmp_path)
    assert folder.is_live()
    assert recover(RecordingFolders(tmp_path)) == []

    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    recovered = recover(RecordingFolders(tmp_path))

    assert [one.recording_id for one in recovered] == ["crash"]
    assert len(read(folder.recording)["chunks"]) == 5
    meta = read(folder.meta)
    assert meta["recovered"]
    assert meta["end_reason"] == "crashed"
    assert meta["duration_s"] == 5.1
    assert recover(RecordingFolders(tmp_path)) == []


def test_sessions_do_not_wait_until_all_old_recordings_were_examined(tmp_path, monkeypatch):
    for number in range(3 * recorder.RECOVERED_AT_ONCE):
        (tmp_path / "sessions" / f"old-{number}").mkdir(parents=True)
    kept, done, hold = recordings(tmp_path), list[str](), threading.Event()

    def some(folders: list[Folder]) -> list[Folder]:
        hold.wait(30)
        done.append("some")
        return []

    monkeypatch.setattr(recorder, "recover", some)
    kept.recover()
    kept.writer.put(lambda: done.append("session"), 0, session_id="", must=True)
    hold.set()
    for _ in range(4):
        assert kept.writer.flush()
    kept.close()

    assert done[:3] == ["some", "session", "some"]


def test_files_cut_off_by_a_crash_are_counted_or_kept_aside_and_not_fatal(tmp_path):
    folder = RecordingFolders(tmp_path).folder("torn")
    folder.path.mkdir(parents=True)
    asked = InputCommitted("i1", tone(0.1, 16_000))
    kept: list[lines.JournalLine] = [
        head("torn", app_type=Kind.HALF_DUPLEX),
        written(asked, 5.0, lambda content: 0),
        written(started("i1"), 5.0),
        written(OutputDelta(0, "half an "), 9.0),
    ]
    folder.journal.write_bytes(b"".join(map(lines.encode, kept)) + b'{"kind":"entry","at')
    folder.meta.write_text('{"session_id": "to')

    recover(RecordingFolders(tmp_path))

    (turn,) = read(folder.recording)["turns"]
    assert turn["output"] == {"text": "half an ", "incomplete": True}
    assert read(folder.meta)["damaged_entries"] == 1
    assert folder.meta.with_name("meta.json.corrupt").read_text() == '{"session_id": "to'


async def test_what_never_became_a_conversation_leaves_nothing(tmp_path):
    kept = recordings(tmp_path)
    async with worker_harness(recordings=kept) as harness:
        talk = harness.begin("duplex", "s")
        talk.say({"type": "prepare", "ref_audio_path": "nobody"})
        told = await talk.until("error")
        talk.socket.hang_up()
        await talk.over()
    kept.close()

    assert "nobody" in told["error"]
    assert list(RecordingFolders(tmp_path)) == []


def test_anyone_who_looks_at_a_session_that_ends_does_not_spoil_it(tmp_path):
    writer = JournalWriter()
    journal = begun(RecordingFolders(tmp_path).folder("watched"), writer)
    assert writer.flush()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            journal.folder.is_live()

    watchers = [threading.Thread(target=look) for _ in range(4)]
    for watcher in watchers:
        watcher.start()
    journal.end("done", 1000.0)
    writer.close()
    stop.set()
    for watcher in watchers:
        watcher.join()

    assert journal.folder.recording.exists()
