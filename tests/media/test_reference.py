import numpy as np
import pytest
import soundfile
from tests.media.test_resample import tone

from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import Pcm
from parley.media.reference import read_voice, require_length


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT"])
@pytest.mark.parametrize(("rate_hz", "channels"), [(16_000, 1), (44_100, 2)])
def test_every_form_of_a_voice_is_the_same_voice(tmp_path, subtype, rate_hz, channels):
    samples = np.stack([tone(rate_hz, seconds=1.0).samples] * channels, axis=1)
    soundfile.write(tmp_path / "v.wav", samples, rate_hz, subtype=subtype)

    voice = read_voice(tmp_path / "v.wav", limit_s=1.0)

    assert (voice.rate_hz, len(voice)) == (16_000, 16_000)
    middle = slice(400, -400)
    tolerance = 1e-2 if subtype == "PCM_U8" else 2e-3
    np.testing.assert_allclose(voice.samples[middle], tone(16_000).samples[middle], atol=tolerance)
    with pytest.raises(TooLarge, match=r"1 s, the limit is 0\.5 s"):
        read_voice(tmp_path / "v.wav", limit_s=0.5)


def test_too_little_to_be_a_voice_is_refused():
    with pytest.raises(InvalidPayload, match=r"too short: 0\.025 s, at least 0\.1 s"):
        require_length(Pcm.silence(400, 16_000))
