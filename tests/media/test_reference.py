import io

import numpy as np
import pytest
import soundfile
from tests.media.test_resample import tone

from parley.errors import InvalidPayload, TooLarge
from parley.media.pcm import to_float32_bytes
from parley.media.reference import decode_reference


def wav_bytes(rate_hz, channels, subtype):
    mono = tone(rate_hz, seconds=1.0).samples
    buffer = io.BytesIO()
    samples = np.stack([mono] * channels, axis=1)
    soundfile.write(buffer, samples, rate_hz, format="WAV", subtype=subtype)
    return buffer.getvalue()


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT"])
@pytest.mark.parametrize(("rate_hz", "channels"), [(16_000, 1), (44_100, 2)])
def test_every_form_of_a_voice_is_the_same_voice(subtype, rate_hz, channels):
    raw = decode_reference(to_float32_bytes(tone(16_000)))

    voice = decode_reference(wav_bytes(rate_hz, channels, subtype))

    assert voice.rate_hz == raw.rate_hz == 16_000
    assert len(voice) == len(raw)
    middle = slice(400, -400)
    tolerance = 1e-2 if subtype == "PCM_U8" else 2e-3
    np.testing.assert_allclose(voice.samples[middle], raw.samples[middle], atol=tolerance)


def test_a_voice_beyond_the_limit_is_refused():
    with pytest.raises(TooLarge, match=r"1 s, the limit is 0\.5 s"):
        decode_reference(to_float32_bytes(tone(16_000)), limit_s=0.5)
    with pytest.raises(TooLarge, match=r"1 s, the limit is 0\.5 s"):
        decode_reference(wav_bytes(44_100, 2, "PCM_16"), limit_s=0.5)


@pytest.mark.parametrize("data", [b"", b"1234" * 100])
def test_too_little_to_be_a_voice_is_refused(data):
    with pytest.raises(InvalidPayload, match="too short"):
        decode_reference(data)
