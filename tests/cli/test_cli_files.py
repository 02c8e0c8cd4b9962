"""A wrong file is told by its name, before anybody is asked for anything."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.command import run

from parley.cli import files
from parley.media import wav
from parley.media.pcm import Pcm


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wav.save("good.wav", Pcm(np.full(16_000, 0.1, np.float32), 16_000))
    wav.save("nothing.wav", Pcm.empty(16_000))
    wav.save("long.wav", Pcm.silence(61 * 8000, 8000))
    Path("words.txt").write_text("no sound, no picture")
    Path("empty").touch()
    for name in ("huge.jpg", "huge.mp4"):
        with open(name, "wb") as file:
            file.truncate(200 * 1024 * 1024)  # sparse: it takes no room


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["chat", "x", "--image", "words.txt"], "words.txt: The file is not a JPEG"),
        (["chat", "x", "--image", "good.wav"], "good.wav: The file is not a JPEG"),
        (["chat", "x", "--image", "huge.jpg"], "huge.jpg: The file has 200 MiB. A picture may"),
        (["chat", "x", "--video", "huge.mp4"], "huge.mp4: The file has 200 MiB. A clip may"),
        (["chat", "x", "--video", "empty"], "empty: The file is empty."),
        (["chat", "x", "--audio", "words.txt"], "words.txt: The audio has an unknown format."),
        (["chat", "x", "--audio", "nothing.wav"], "nothing.wav: The file contains no sound."),
        (["chat", "x", "--voice", "words.txt"], "words.txt: The audio is not a WAV file."),
        (["chat", "x", "--voice", "long.wav"], "limit is 60 s.\nhint: Use a shorter part"),
        (["chat", "x", "--save", "no/where.wav"], "does not exist."),
        (["talk", "--file", "empty"], "empty: The file is empty."),
        (["talk", "--file", "nothing.wav"], "nothing.wav: The file contains no sound."),
        (["talk", "--file", "good.wav", "--voice", "words.txt"], "words.txt: The audio is not"),
        (
            ["talk", "--duplex", "--file", "good.wav", "--frame", "empty"],
            "empty: The file is empty.",
        ),
        (["talk", "--file", "good.wav", "--voice", "empty"], "empty: The file is empty."),
        (["talk", "--file", "good.wav", "--save", "no/where.wav"], "does not exist."),
    ],
)
def test_a_wrong_file_is_told_by_its_name_before_connecting(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, "--url", "http://127.0.0.1:1") == 2

    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert sentence in told
    assert "connect" not in told.lower()


@pytest.mark.parametrize("name", ["memo.m4a", "memo.mp3", "memo.flac", "memo.webm"])
def test_a_memo_of_a_telephone_is_spoken_as_it_is(name: str) -> None:
    import av

    with av.open("good.wav") as source, av.open(name, "w") as memo:
        codec = {"m4a": "aac", "mp3": "mp3", "flac": "flac", "webm": "libopus"}
        track: Any = memo.add_stream(codec[name.partition(".")[2]], rate=48_000, layout="stereo")
        resampler = av.AudioResampler(track.format, "stereo", 48_000, track.frame_size or None)
        for frame in [*source.decode(audio=0), None]:
            for piece in resampler.resample(frame):
                memo.mux(track.encode(piece))
        memo.mux(track.encode(None))

    assert files.sound(Path(name)).duration_s == pytest.approx(1.0, abs=0.1)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_an_answer_that_could_not_be_saved_is_not_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("locked").mkdir(mode=0o500)
    assert run("chat", "x", "--save", "locked/a.wav", "--url", "http://127.0.0.1:1") == 2
    assert "cannot be written" in capsys.readouterr().err
