"""Registered voices: any common format in, 16 kHz mono 16 bit kept, nothing else accepted."""

import errno
import io
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from tests.support.clips import make_clip
from tests.support.recordings import tone

from parley.errors import InvalidPayload, TooLarge
from parley.library import voices
from parley.library.voices import TooManyVoices, VoiceLibrary, VoiceUser
from parley.media.pcm import to_float32_bytes


@pytest.fixture
def shelf(tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path, limit_s=10)


def file(seconds: float = 1.0, rate_hz: int = 44_100, channels: int = 2, **how) -> bytes:
    samples = np.stack([tone(seconds, rate_hz).samples] * channels, axis=1)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, **{"format": "WAV", **how})
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000 + "b", "\ud800"])
def test_names_that_files_cannot_have_are_refused_as_assets(tmp_path: Path, name: str):
    assert voices.find_asset(tmp_path, f"{name}.wav", limit_s=10) is None


FORMATS: dict[str, Callable[[], bytes]] = {
    "wav": file,
    "24bit": partial(file, subtype="PCM_24", rate_hz=8000, channels=1),
    "8bit": partial(file, subtype="PCM_U8"),
    "float": partial(file, subtype="FLOAT"),
    "flac": partial(file, format="FLAC"),
    "ogg": partial(file, format="OGG"),
    "mp3": partial(file, format="MP3"),
    "mp4": partial(make_clip, seconds=1.0),
    "webm": partial(make_clip, seconds=1.0, container="webm", codec="libvpx"),
    "raw": lambda: to_float32_bytes(tone(1.0, 16_000)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_common_format_becomes_16_khz_mono(shelf, tmp_path, name):
    card = shelf.add("Anna", FORMATS[name]())

    info = soundfile.info(tmp_path / "voices" / card.filename)
    assert (info.samplerate, info.channels, info.subtype) == (16_000, 1, "PCM_16")
    assert abs(info.duration - 1.0) < 0.1
    found = shelf.find(card.id)
    assert found is not None
    # The encoder of the clip makes its tone of 0.5 louder.
    assert 0.15 < np.abs(found.samples[2000:-2000]).max() < 0.75


def test_voices_are_found_by_id_and_by_name_and_listed(shelf):
    first = shelf.add("Anna", file(1.0))
    second = shelf.add("Bert", file(2.0))

    assert {card.name for card in shelf.list()} == {"Anna", "Bert"}
    by_name = shelf.find("Bert")
    assert by_name is not None
    assert abs(by_name.duration_s - 2.0) < 0.01
    assert shelf.remove(first.id)
    assert not shelf.remove(first.id)
    assert [card.id for card in shelf.list()] == [second.id]
    assert shelf.find("Anna") is None


@pytest.mark.parametrize(
    "name", ["../state.db", "/etc/passwd", "..", "", "x" * 300, "a\0b", "%2e%2e", "*.wav"]
)
def test_names_never_become_paths(shelf, tmp_path, name):
    (tmp_path / "state.db.wav").write_bytes(file())
    (tmp_path / "voices").mkdir()

    assert shelf.find(name) is None
    assert shelf.card(name) is None
    assert not shelf.remove(name)
    assert (tmp_path / "state.db.wav").exists()


@pytest.mark.parametrize(
    "data", [b"", b"hello there", b"<html>" * 100, b"RIFF\0\0\0\0WAVE", file()[:60], b"\xff" * 4096]
)
def test_what_is_not_a_sound_is_refused_and_leaves_nothing(shelf, tmp_path, data):
    with pytest.raises(InvalidPayload):
        shelf.add("Anna", data)

    assert not list(tmp_path.rglob("*.wav"))


@pytest.mark.parametrize("name", ["", "  ", "x" * 81, "a\x07b"])
def test_names_are_printable(shelf, name):
    with pytest.raises(InvalidPayload, match="name must be"):
        shelf.add(name, file())


def test_long_and_large_voices_are_refused(shelf):
    with pytest.raises(TooLarge, match="10 s"):
        shelf.add("Anna", file(11.0, rate_hz=8000))
    with pytest.raises(TooLarge):
        shelf.add("Anna", b"RIFF" + bytes(voices.LIMIT_BYTES))


def test_a_small_file_of_endless_silence_is_refused_before_it_fills_the_memory(shelf):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(8_000 * 3600, np.int16), 8000, format="FLAC")
    assert len(buffer.getvalue()) < 200_000

    with pytest.raises(TooLarge):
        shelf.add("Anna", buffer.getvalue())


def test_the_library_is_bounded(shelf, monkeypatch):
    monkeypatch.setattr(voices, "LIMIT_VOICES", 1)
    shelf.add("Anna", file())

    with pytest.raises(TooManyVoices):
        shelf.add("Bert", file())


def test_a_card_that_points_elsewhere_is_ignored_and_a_broken_one_kept_aside(shelf, tmp_path):
    card = shelf.add("Anna", file())
    path = tmp_path / "voices" / f"{card.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "filename": "../x.wav"}))
    assert shelf.list() == []
    path.write_text("{")

    assert shelf.list() == []
    assert path.with_suffix(".json.corrupt").read_text() == "{"
    assert card.id in shelf.problems[-1]


def test_strangers_together_leave_room_for_keys(shelf, monkeypatch):
    monkeypatch.setattr(voices, "LIMIT_STRANGERS", 2)
    for client in ("a", "b"):
        shelf.add("Anna", file(), VoiceUser(client=client))

    with pytest.raises(TooManyVoices):
        shelf.add("Anna", file(), VoiceUser(client="c"))
    shelf.add("Anna", file(), VoiceUser(key_id="k"))


def test_looking_for_voices_reads_no_file_twice(shelf, tmp_path, monkeypatch):
    ids = [shelf.add(name, file()).id for name in ("Anna", "Bert")]
    long_ago_s = time.time() - 60
    os.utime(tmp_path / "voices", (long_ago_s, long_ago_s))
    for name in (*ids, "Anna", "stranger"):
        shelf.find(name)
    reads = []
    monkeypatch.setattr(voices, "read_voice", lambda *args, **more: reads.append(args))
    monkeypatch.setattr(json, "loads", lambda *args: reads.append(args))

    assert shelf.find("Anna") is shelf.find("Anna") is not None
    assert shelf.find("stranger") is None
    assert not reads
    monkeypatch.undo()
    assert shelf.remove(ids[0])
    assert shelf.find("Anna") is None
    assert shelf.find(ids[0]) is None
    assert [card.name for card in shelf.list()] == ["Bert"]


def test_a_session_finds_by_name_what_its_client_may_see(shelf):
    anna = shelf.add("Anna", file(), VoiceUser(key_id="anna"))
    stranger = shelf.add("Bo", file(), VoiceUser(client="x"))

    assert shelf.find("Anna", VoiceUser.named("key:anna")) is not None
    assert shelf.find("Anna", VoiceUser.named("admin")) is not None
    assert shelf.find("Anna", VoiceUser.named("key:other")) is None
    assert shelf.find(anna.id, VoiceUser.named("")) is None
    assert shelf.find("Bo", VoiceUser.named("")) is None
    assert shelf.find(stranger.id, VoiceUser.named("")) is not None


def test_a_voice_from_before_voices_had_owners_is_opened_by_its_id(shelf, tmp_path):
    card = shelf.add("Anna", file())
    path = tmp_path / "voices" / f"{card.id}.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in facts.items() if k not in ("owner", "published")}))

    assert shelf.list(VoiceUser()) == []
    assert shelf.find(card.id, VoiceUser()) is not None


@pytest.mark.parametrize("refused", [".wav.partial", ".json.partial"])
def test_a_full_disk_leaves_nothing_of_a_voice(shelf, tmp_path, monkeypatch, refused: str):
    write = Path.write_bytes

    def failing(path: Path, data: bytes) -> int:
        if path.name.endswith(refused):
            write(path, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", failing)
    with pytest.raises(OSError, match="No space left"):
        shelf.add("Anna", file())

    assert list((tmp_path / "voices").iterdir()) == []
