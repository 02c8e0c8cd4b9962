import itertools

import numpy as np
import pytest

from parley.media.pcm import Pcm, join
from parley.media.resample import ResampleStream, resample


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
