import contextlib
import io
import subprocess
import sys
import wave
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.support.cpu_time import takes_less_than
from tests.support.patience import PROCESS_S

from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import Pcm
from parley.media.sound import decode_sound
from parley.media.wav import decode_wav, encode_wav, load, save, with_length
from parley.protocol.codec import is_wav


def tone(rate_hz=16_000, seconds=0.5):
    t = np.arange(int(rate_hz * seconds)) / rate_hz
    return Pcm((0.5 * np.sin(2 * np.pi * 440 * t)).astype(np.float32), rate_hz)


@pytest.mark.parametrize(("bits", "tolerance"), [(16, 1e-4), (24, 1e-6), (32, 0.0)])
def test_a_file_brings_back_what_was_written(bits, tolerance, tmp_path):
    save(tmp_path / "a.wav", tone(44_100), bits)

    back = load(tmp_path / "a.wav")

    assert back.rate_hz == 44_100
    np.testing.assert_allclose(back.samples, tone(44_100).samples, atol=tolerance)


class Pipe(bytearray):
    """Can be written to, and has no places to go back to."""

    write = bytearray.extend

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF])
def test_a_file_that_was_written_to_a_pipe_lasts_to_its_end(size):
    pipe: Any = Pipe()
    with contextlib.suppress(AttributeError), wave.open(pipe, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframesraw(np.full(8000, 9000, "<i2").tobytes())
    data = bytearray(pipe)
    if size is not None:
        data[4:8] = data[40:44] = size.to_bytes(4, "little")

    found = [decode_wav(bytes(data)), decode_sound(bytes(data), limit_s=9.0)]

    assert [each.samples.tolist() for each in found] == 2 * [8000 * [9000 / 32768]]


def test_a_million_empty_parts_are_not_looked_at_one_by_one():
    parts = b"RIFF\0\0\0\0WAVE" + b"part\0\0\0\0" * 1_000_000

    assert takes_less_than(0.05, lambda: with_length(parts))


def test_an_empty_file_that_has_a_note_stays_empty():
    data = encode_wav(Pcm(np.zeros(0, np.float32), 16_000))
    note = b"LIST\x04\0\0\0INFO"
    more = data[:4] + (len(data) - 8 + len(note)).to_bytes(4, "little") + data[8:] + note

    assert [len(decode_wav(each).samples) for each in (data, more)] == [0, 0]


def test_only_riff_wave_is_wav():
    assert is_wav(encode_wav(tone()))
    assert not is_wav(b"RIFF\x00\x00\x00\x00AVI ")
    assert not is_wav(b"")


@pytest.mark.parametrize("data", [b"", b"RIFF\x00\x00\x00\x00WAVE", b"RIFF" + bytes(90), b"no"])
def test_what_is_not_a_wav_file_is_refused(data):
    with pytest.raises(InvalidPayload, match="WAV file"):
        decode_wav(data)


def test_a_file_longer_than_the_limit_is_refused_before_decoding():
    with pytest.raises(TooLarge, match=r"0\.5 s, the limit is 0\.25 s"):
        decode_wav(encode_wav(tone()), limit_s=0.25)


def test_a_damaged_header_prints_nothing(tmp_path):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((3000, 2), np.float32), 16_000, format="AIFF")
    data = bytearray(buffer.getvalue())
    data[41] = 0x7F  # of the size of the samples
    (tmp_path / "odd.aiff").write_bytes(data)
    program = (
        "import pathlib, sys; from parley.media.sound import decode_sound; "
        "decode_sound(pathlib.Path(sys.argv[1]).read_bytes(), limit_s=60.0)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "odd.aiff"], capture_output=True, check=True
    )

    assert ran.stderr == b""


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_samples_that_are_not_numbers_are_refused_without_a_warning(value):
    buffer = io.BytesIO()
    samples = np.array([[np.inf, value], [0.0, 0.0]], np.float32)
    soundfile.write(buffer, samples, 16_000, format="WAV", subtype="FLOAT")

    with pytest.raises(InvalidPayload, match="not finite"):
        decode_wav(buffer.getvalue())


def test_importing_does_not_load_the_sound_library():
    code = "import parley.media.wav, sys; sys.exit('soundfile' in sys.modules)"

    assert (
        subprocess.run([sys.executable, "-c", code], check=False, timeout=PROCESS_S).returncode == 0
    )
