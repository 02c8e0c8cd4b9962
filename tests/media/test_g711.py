"""The coding of telephones, against libsndfile."""

import io

import numpy as np
import pytest
import soundfile

from parley.media import g711
from parley.media.pcm import Pcm

LAWS = [("mu", "ULAW"), ("a", "ALAW")]


@pytest.mark.parametrize(("law", "subtype"), LAWS)
def test_every_code_is_the_value_that_libsndfile_reads(law, subtype):
    codes = bytes(range(256))
    form = {"samplerate": 8000, "channels": 1, "format": "RAW", "subtype": subtype}
    expected, _ = soundfile.read(io.BytesIO(codes), dtype="float32", **form)

    np.testing.assert_array_equal(g711.decoded(codes, law).samples, expected)


@pytest.mark.parametrize(("law", "subtype"), LAWS)
def test_a_sound_is_coded_as_libsndfile_codes_it(law, subtype):
    samples = np.random.default_rng(1).normal(0, 0.2, 8000).clip(-1, 1).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, samples, 8000, format="RAW", subtype=subtype)
    there = g711.decoded(file.getvalue(), law).samples

    here = g711.decoded(g711.encoded(Pcm(samples, 8000), law), law).samples

    # Where two values are as near, one may take the one and the other the other.
    assert np.mean(here != there) < 0.1
    assert np.abs(here - samples).mean() <= np.abs(there - samples).mean()


def test_another_rate_is_refused():
    with pytest.raises(ValueError, match=r"G\.711 has 8000 Hz, got 16000 Hz"):
        g711.encoded(Pcm.silence(10, 16_000), "mu")
