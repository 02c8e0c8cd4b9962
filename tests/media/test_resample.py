import itertools
import tracemalloc

import numpy as np
import pytest

from parley.media.pcm import Pcm, join, peak
from parley.media.resample import RateStream, ResampleStream, resample
from parley.session_log import state_codec


def tone(rate_hz, seconds=1.0, hz=440.0):
    t = np.arange(int(rate_hz * seconds)) / rate_hz
    return Pcm((0.5 * np.sin(2 * np.pi * hz * t)).astype(np.float32), rate_hz)


def test_a_tone_stays_the_same_tone():
    up = resample(tone(16_000), 24_000)

    assert len(up) == 24_000
    middle = slice(1000, -1000)
    np.testing.assert_allclose(up.samples[middle], tone(24_000).samples[middle], atol=2e-3)


def test_the_same_rate_is_the_same_sound():
    pcm = tone(16_000)

    assert resample(pcm, 16_000) is pcm


def test_no_sound_stays_no_sound():
    assert len(resample(Pcm.empty(16_000), 24_000)) == 0


def test_pieces_of_a_stream_join_to_the_whole():
    pcm = tone(16_000)
    stream = ResampleStream(16_000, 24_000)

    cuts = [0, 100, 4000, 4001, 16_000]
    pieces = [
        stream.feed(pcm.slice(start, stop), last=stop == 16_000)
        for start, stop in itertools.pairwise(cuts)
    ]

    whole = resample(pcm, 24_000)
    np.testing.assert_allclose(join(pieces, 24_000).samples, whole.samples, atol=1e-5)


def test_a_stream_refuses_another_rate():
    with pytest.raises(ValueError, match="takes 16000 Hz, got 8000 Hz"):
        ResampleStream(16_000, 24_000).feed(tone(8_000))


@pytest.mark.parametrize(
    ("from_hz", "to_hz", "tones", "error"),
    [
        (24_000, 16_000, (100, 440, 3000, 7000), 2e-3),
        (24_000, 8_000, (100, 1000, 3000), 5e-3),
        (8_000, 16_000, (100, 1000, 3000), 5e-3),
        (48_000, 16_000, (100, 440, 3000, 6500), 5e-3),
        (48_000, 24_000, (100, 440, 3000, 10_000), 5e-3),
    ],
)
def test_a_tone_in_a_stream_stays_the_same_tone(from_hz, to_hz, tones, error):
    for hz in tones:
        found = RateStream(from_hz, to_hz).feed(tone(from_hz, hz=hz))

        assert 0 <= to_hz - len(found) < 0.01 * to_hz
        middle = slice(200, -200)
        expected = tone(to_hz, hz=hz).samples[: len(found)]
        np.testing.assert_allclose(found.samples[middle], expected[middle], atol=error)


@pytest.mark.parametrize(
    ("from_hz", "hz"), [(24_000, 8600), (24_000, 10_000), (48_000, 9000), (48_000, 15_000)]
)
def test_what_16_khz_cannot_hold_is_left_out(from_hz, hz):
    found = RateStream(from_hz, 16_000).feed(tone(from_hz, hz=hz))

    assert np.abs(found.samples[200:-200]).max() < 1e-3


def test_clipped_sound_stays_within_full_scale():
    square = Pcm(np.sign(tone(24_000).samples), 24_000)

    assert peak(resample(square, 16_000)) == 1.0
    assert peak(RateStream(24_000, 16_000).feed(square)) == 1.0


def test_a_downsampling_continues_from_what_was_remembered():
    pcm = Pcm(np.random.default_rng(1).uniform(-0.5, 0.5, 24_000).astype(np.float32), 24_000)
    cuts = [0, 1, 100, 2500, 2501, 9000, 24_000]
    pieces = [pcm.slice(start, stop) for start, stop in itertools.pairwise(cuts)]
    stream, whole = RateStream(24_000, 16_000), RateStream(24_000, 16_000).feed(pcm)
    found = []

    for piece in pieces:
        other = state_codec.decode(state_codec.encode(stream))
        found.append(stream.feed(piece))
        assert np.array_equal(other.feed(piece).samples, found[-1].samples)

    np.testing.assert_allclose(join(found, 16_000).samples, whole.samples, atol=1e-5)


def test_a_long_message_takes_little_more_memory_than_its_sound():
    pcm = Pcm.silence(60 * 24_000, 24_000)
    tracemalloc.start()

    RateStream(24_000, 16_000).feed(pcm)

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * pcm.samples.nbytes
