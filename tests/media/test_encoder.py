"""Sound as bytes of a file, whole and while it is being made."""

import importlib.util
import io

import av
import numpy as np
import pytest
import soundfile

from parley.errors import InvalidRequest
from parley.media.encoder import encode_whole, open_encoder
from parley.media.pcm import Pcm

RATE_HZ = 24_000
FORMATS = ["wav", "mp3", "opus", "flac"]


def tone(seconds: float) -> Pcm:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return Pcm((0.4 * np.sin(2 * np.pi * 440 * t)).astype(np.float32), RATE_HZ)


def streamed(form, pcm: Pcm, step: int = 5_000) -> list[bytes]:
    encoder = open_encoder(form)
    parts = [
        encoder.add(pcm.slice(start, min(start + step, len(pcm))))
        for start in range(0, len(pcm), step)
    ]
    return [*parts, encoder.finish()]


def seconds_of(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


@pytest.mark.parametrize("form", FORMATS)
def test_a_whole_file_is_read_by_everybody_and_sounds_the_same(form):
    pcm = tone(1.0)

    read, rate_hz = soundfile.read(io.BytesIO(encode_whole(form, pcm)))

    assert rate_hz == RATE_HZ
    assert len(read) == pytest.approx(len(pcm), abs=2 * 1152)
    assert np.sqrt(np.mean(np.square(read))) == pytest.approx(0.4 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_comes_in_pieces_and_joins_to_the_same_sound(form):
    parts = streamed(form, tone(2.0))

    assert sum(map(bool, parts[:-1])) >= 3
    assert seconds_of(b"".join(parts)) == pytest.approx(2.0, abs=0.12)


def test_pcm_is_sixteen_bit_little_endian():
    data = b"".join(streamed("pcm", Pcm(np.array([0.0, 1.0, -1.0], np.float32), RATE_HZ)))

    assert np.frombuffer(data, "<i2").tolist() == [0, 32767, -32767]


def test_without_pyav_compressed_formats_are_refused_by_name(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "parley.media.encoder.importlib.util.find_spec",
        lambda name: None if name == "av" else find(name),
    )

    with pytest.raises(InvalidRequest, match="mp3"):
        open_encoder("mp3")
    assert encode_whole("wav", tone(0.1))[:4] == b"RIFF"


def test_no_sound_is_an_empty_file_that_can_be_read():
    read, _ = soundfile.read(io.BytesIO(encode_whole("wav", Pcm.empty(RATE_HZ))))

    assert len(read) == 0
