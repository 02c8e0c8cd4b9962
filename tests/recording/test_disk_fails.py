"""A disk that is full or fails loses entries of recordings, never without a word."""

import contextlib
import errno
import json
import os
import wave
from pathlib import Path

import pytest
from tests.support.recordings import a_unit, begun, head, recordings, tone
from tests.support.sessions import loud, quiet, worker_harness

from parley.dialects.events import SessionPaused, SessionReady
from parley.recording import finish, journal_writer, layout, lines, store
from parley.recording.entry_media import WavFile, write_new
from parley.recording.finish import recover
from parley.recording.journal import Journal
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import Folder, RecordingFolders
from parley.session_log.append_file import AppendFile


class FailingDisk:
    """Makes writes of recordings fail while `error` is set; after `half` bytes of a write when that
    is set, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        self.half = 0
        pwrite, write_bytes, write_atomically = os.pwrite, Path.write_bytes, layout.write_atomically

        def failing_pwrite(file, data, at):
            if self.error and not self.half:
                raise OSError(self.error, os.strerror(self.error))
            if self.error:
                taken, self.half = min(self.half, len(data)), 0
                return pwrite(file, data[:taken], at)
            return pwrite(file, data, at)

        def failing(write):
            def write_unless_full(path, data):
                if self.error:
                    if write is write_bytes:
                        path.touch()
                    raise OSError(self.error, os.strerror(self.error))
                return write(path, data)

            return write_unless_full

        monkeypatch.setattr("parley.session_log.append_file.os.pwrite", failing_pwrite)
        monkeypatch.setattr(Path, "write_bytes", failing(write_bytes))
        for module in (layout, finish):
            monkeypatch.setattr(module, "write_atomically", failing(write_atomically))

    @contextlib.contextmanager
    def full(self):
        self.error = errno.ENOSPC
        try:
            yield
        finally:
            self.error = 0


@pytest.fixture
def failing(monkeypatch):
    return FailingDisk(monkeypatch)


@pytest.fixture
def writer():
    writer = JournalWriter()
    yield writer
    writer.close()


def new(tmp_path, writer, name: str = "one", **more) -> Journal:
    journal = begun(RecordingFolders(tmp_path).folder(name), writer, **more)
    assert writer.flush()
    return journal


def read(folder: Folder):
    recording = store.read_recording(folder)
    assert recording is not None
    return recording


def test_a_small_file_without_room_is_removed(tmp_path, failing):
    with failing.full(), pytest.raises(OSError, match="No space left"):
        write_new(tmp_path / "picture.jpg", b"picture")

    assert list(tmp_path.iterdir()) == []


def test_units_lost_on_a_full_disk_are_counted_and_told_where_they_are_missing(
    tmp_path, writer, failing
):
    journal = new(tmp_path, writer)
    journal.put(*a_unit(0))
    assert writer.flush()
    with failing.full():
        for index in (1, 2, 3):
            journal.put(*a_unit(index))
        assert writer.flush()
    assert (journal.lost, writer.lost, writer.problem) == (3, 3, "No space left on device")
    journal.put(*a_unit(4))
    journal.end("stopped", 6000.0)
    assert writer.flush()

    recording = json.loads(journal.folder.recording.read_bytes())
    assert [chunk["index"] for chunk in recording["chunks"]] == [0, 4]
    assert recording["lost_entries"] == 3
    (hole,) = recording["events"]
    assert (hole["count"], hole["why"]) == (3, "No space left on device")
    assert json.loads(journal.folder.meta.read_bytes())["lost_entries"] == 3
    assert writer.problem == ""


def test_sound_kept_for_doing_it_again_stays_in_step_with_the_journal(tmp_path, writer, failing):
    journal = new(tmp_path, writer)
    journal.put(*a_unit(0))
    assert writer.flush()
    with failing.full():
        journal.put(*a_unit(1))
        assert writer.flush()
    journal.put(*a_unit(2))
    journal.end("stopped", 6000.0)
    assert writer.flush()

    sounds = [each.heard for each in lines.read(journal.folder.journal)]
    places = [sound.samples for sound in sounds if sound is not None]
    assert places == [(0, 16_000, 16_000), (16_000, 16_000, 16_000)]
    assert journal.folder.inputs.stat().st_size == 2 * 16_000 * 4


def test_a_recording_that_cannot_be_started_does_not_exist(tmp_path, writer, failing):
    journal = Journal(RecordingFolders(tmp_path).folder("one"), writer)
    with failing.full():
        journal.begin(head("one"))
        assert writer.flush()
    journal.put(SessionReady(), 0.0)
    journal.put(*a_unit(0))
    journal.end("stopped", 1000.0)
    assert writer.flush()

    assert journal.exists.result(0) is False
    assert list(RecordingFolders(tmp_path)) == []
    assert writer.lost >= 1


def test_a_recording_whose_owner_cannot_be_written_does_not_exist(tmp_path, writer, monkeypatch):
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("parley.recording.journal.write_new", full)
    journal = Journal(RecordingFolders(tmp_path).folder("one"), writer)
    journal.begin(head("one"), owner="k_1")
    assert writer.flush()

    assert journal.exists.result(0) is False
    assert list(RecordingFolders(tmp_path)) == []


def test_a_session_that_ends_on_a_full_disk_can_be_looked_at_and_is_completed_later(
    tmp_path, writer, failing, monkeypatch
):
    monkeypatch.setattr(journal_writer, "RETRY_S", 0.01)
    finished: list[Folder] = []
    journal = new(tmp_path, writer, finished=finished.append)
    journal.put(*a_unit(0))
    assert writer.flush()
    with failing.full():
        journal.end("stopped", 2000.0)
        assert writer.flush()
        assert not journal.folder.is_live()
        assert finished == []
        now = read(journal.folder)
        assert (len(now.chunks), len(now.said)) == (1, 1)
        assert store.describe(journal.folder)["ended_at"] is not None
    writer.close()

    assert json.loads(journal.folder.meta.read_bytes())["end_reason"] == "stopped"
    assert journal.folder.recording.exists()
    assert finished == [journal.folder]


def test_the_recording_of_a_crashed_session_is_completed_when_a_full_disk_has_space(
    tmp_path, writer, failing
):
    journal = new(tmp_path, writer)
    journal.put(*a_unit(0))
    assert writer.flush()
    journal.close()
    hopeless: set[str] = set()

    with failing.full():
        assert recover(RecordingFolders(tmp_path), hopeless) == []

    assert recover(RecordingFolders(tmp_path), hopeless) == [journal.folder]


def test_a_recording_that_can_never_be_completed_does_not_stop_the_others(
    tmp_path, writer, monkeypatch
):
    monkeypatch.setattr(journal_writer, "RETRY_S", 0.01)
    journal = new(tmp_path, writer)
    damaged = bytearray(journal.folder.journal.read_bytes())
    damaged[0] = 0
    journal.folder.journal.write_bytes(damaged)
    journal.end("stopped", 2000.0)
    assert writer.flush()

    other = new(tmp_path, writer, "two")
    other.put(*a_unit(0))
    other.end("stopped", 2000.0)
    assert writer.flush(5.0)

    assert not journal.folder.recording.exists()
    assert other.folder.recording.exists()


def test_a_recording_deleted_while_it_waits_for_its_end_is_not_waited_for(
    tmp_path, writer, failing
):
    journal = new(tmp_path, writer)
    with failing.full():
        journal.end("stopped", 2000.0)
        assert writer.flush()
    store.delete(journal.folder)
    writer.close()

    assert list(RecordingFolders(tmp_path)) == []


async def test_clients_learn_no_id_of_a_recording_that_does_not_exist(tmp_path, failing):
    kept = recordings(tmp_path)
    async with worker_harness(recordings=kept) as harness:
        with failing.full():
            talk = await harness.ready("duplex", "omni_1")
            told = await talk.until("prepared")
        talk.say({"type": "audio_chunk", "audio_base64": loud()})
        await talk.until("result", 1)
        assert kept.state == "failing"
    kept.close()

    assert "recording_session_id" not in told
    assert list(RecordingFolders(tmp_path)) == []


async def test_a_conversation_continues_while_its_recording_loses_units(tmp_path, failing):
    kept = recordings(tmp_path)
    async with worker_harness(recordings=kept) as harness:
        talk = await harness.ready("duplex", "omni_1")
        told = await talk.until("prepared")
        assert kept.writer.flush()
        with failing.full():
            for count in range(1, 4):
                talk.say({"type": "audio_chunk", "audio_base64": quiet()})
                await talk.until("result", count)
            assert kept.writer.flush()
        talk.say({"type": "stop"})
        await talk.over()
        beat = harness.host.heartbeat()
    kept.close()

    folder = RecordingFolders(tmp_path).folder(told["recording_session_id"])
    assert read(folder).lost_entries == 3
    assert beat.recording_lost == 3


@pytest.mark.parametrize("half", [0, 3])
def test_an_append_that_fails_leaves_the_file_as_it_was(tmp_path, failing, half):
    file = AppendFile(tmp_path / "file")
    file.append(b"whole")
    failing.half = half
    with failing.full(), pytest.raises(OSError, match="No space left"):
        file.append(b"not this")
    file.append(b"!")
    file.close()

    assert (tmp_path / "file").read_bytes() == b"whole!"


def test_a_growing_wav_file_can_be_played_at_any_moment(tmp_path, failing):
    sound = WavFile(tmp_path / "x.wav", 24_000)
    for seconds in (1, 2):
        sound.append(tone(1.0, 24_000))
        with failing.full(), pytest.raises(OSError, match="No space left"):
            sound.append(tone(0.1, 24_000))
        with wave.open(str(tmp_path / "x.wav"), "rb") as played:
            assert played.getnframes() == 24_000 * seconds
            assert played.getframerate() == 24_000
    sound.close()


def test_the_journal_reaches_the_disk_itself_every_five_seconds(tmp_path, writer, monkeypatch):
    """A crash of the machine loses at most five seconds: that is what fdatasync is for."""
    now = [1000.0]
    synced: list[float] = []
    monkeypatch.setattr("parley.recording.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "parley.session_log.append_file.os.fdatasync", lambda file: synced.append(now[0])
    )
    journal = Journal(RecordingFolders(tmp_path).folder("one"), writer)
    journal.begin(head("one"))
    for second in range(12):
        now[0] = 1000.0 + second
        journal.put(SessionPaused(1.0), 1000.0 * second)
        assert writer.flush()

    assert synced == [1000.0, 1006.0]
    journal.end("stopped", 12_000.0)
    assert writer.flush()
    assert synced[2:] == [1011.0]
