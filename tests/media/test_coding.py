"""Sound in the codings of the wire: what comes back, how large it is, what is refused.

The coding of telephones is compared with libsndfile."""

import io
import itertools

import numpy as np
import pytest
import soundfile
from tests.support.speech import say

from parley.errors import InvalidPayload
from parley.media import coding, g711
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join, level_dbfs
from parley.media.resample import resample
from parley.protocol.values import AudioCoding

SENTENCE = "My name is Anna, and I would like to know what the weather will be tomorrow."


@pytest.fixture(scope="module")
def spoken() -> Pcm:
    return say(SENTENCE)


def through(
    name: AudioCoding, pcm: Pcm, to_hz: int, chunk: int = 1600, *, ends: bool = True
) -> tuple[Pcm, int]:
    """A sound in chunks through coder and decoder; how many bytes that were."""
    encoder, decoder = coding.encoder(name, pcm.rate_hz), coding.decoder(name, to_hz)
    pieces, size = [], 0
    for start in range(0, len(pcm), chunk):
        is_last = ends and start + chunk >= len(pcm)
        data = encoder.encode(pcm.slice(start, start + chunk), ends=is_last)
        size += len(data)
        pieces.append(decoder.decode(data))
    return join(pieces, to_hz), size


def bands_db(pcm: Pcm) -> np.ndarray:
    """Level in third octaves from 200 Hz to 6 kHz."""
    power = np.abs(np.fft.rfft(pcm.samples)) ** 2
    hz = np.fft.rfftfreq(len(pcm), 1 / pcm.rate_hz)
    edges = 200 * 2 ** (np.arange(16) / 3)
    sums = [
        power[(hz >= low) & (hz < high)].sum() / len(pcm) for low, high in itertools.pairwise(edges)
    ]
    return 10 * np.log10(np.array(sums) + 1e-12)


@pytest.mark.parametrize(("rate_hz", "chunk"), [(INPUT_RATE_HZ, 1600), (OUTPUT_RATE_HZ, 24_000)])
def test_opus_keeps_level_and_spectrum_of_speech_at_three_and_a_half_kilobytes(
    spoken, rate_hz, chunk
):
    pcm = resample(spoken, rate_hz)

    back, size = through("opus", pcm, rate_hz, chunk)

    assert size / pcm.duration_s < 3500
    assert back.duration_s == pytest.approx(pcm.duration_s, abs=0.08)
    assert level_dbfs(back.slice(0, len(pcm))) == pytest.approx(level_dbfs(pcm), abs=0.5)
    off_db = np.abs(bands_db(back) - bands_db(pcm))
    # Twelve bands end at 3.2 kHz; above them are the noises of consonants.
    assert off_db[:12].max() < 1.0
    assert off_db.max() < 4.0


def test_every_sample_of_speech_comes_back_through_16_bits(spoken):
    back, size = through("pcm16", spoken, INPUT_RATE_HZ)

    assert size == 2 * len(spoken)
    assert np.abs(back.samples - spoken.samples).max() < 1e-4


def test_chunks_of_any_length_give_the_same_opus_packets(spoken):
    _, whole = through("opus", spoken, INPUT_RATE_HZ, len(spoken))
    _, parts = through("opus", spoken, INPUT_RATE_HZ, 330)

    assert parts == whole


@pytest.mark.parametrize("rate_hz", [INPUT_RATE_HZ, OUTPUT_RATE_HZ])
def test_opus_is_decoded_within_two_milliseconds_of_its_packet(spoken, rate_hz):
    encoder, decoder = coding.encoder("opus", INPUT_RATE_HZ), coding.decoder("opus", rate_hz)
    decoded_s = 0.0

    for packet in range(1, 11):
        start = (packet - 1) * 320
        decoded_s += decoder.decode(encoder.encode(spoken.slice(start, start + 320))).duration_s

        assert 0 <= 0.02 * packet - decoded_s < 0.002


def test_what_fills_no_packet_is_kept_until_the_answer_ends_or_forgotten():
    encoder = coding.encoder("opus", OUTPUT_RATE_HZ)

    assert encoder.encode(Pcm.silence(300, OUTPUT_RATE_HZ)) == b""
    encoder.forget()
    assert encoder.encode(Pcm.empty(OUTPUT_RATE_HZ), ends=True) == b""
    assert encoder.encode(Pcm.silence(300, OUTPUT_RATE_HZ), ends=True) != b""
    assert encoder.encode(Pcm.empty(OUTPUT_RATE_HZ), ends=True) == b""


@pytest.mark.parametrize(
    "data",
    [b"\0", b"\0\0", b"\0\x09abc", b"\x00\x14" + b"\xff" * 20, b"\0\x01\x03\0\x05\xff\xff"],
    ids=["half a length", "nothing", "too short", "no packet", "the second is cut"],
)
def test_what_is_not_opus_is_refused(data):
    with pytest.raises(InvalidPayload):
        coding.decoder("opus", INPUT_RATE_HZ).decode(data)


def test_a_message_of_more_than_ten_seconds_of_opus_is_refused():
    packets = coding.encoder("opus", INPUT_RATE_HZ).encode(Pcm.silence(11 * 16_000, INPUT_RATE_HZ))

    with pytest.raises(InvalidPayload, match="10 s"):
        coding.decoder("opus", INPUT_RATE_HZ).decode(packets)


def test_half_a_16_bit_sample_is_refused():
    with pytest.raises(InvalidPayload, match="16-bit"):
        coding.decoder("pcm16", INPUT_RATE_HZ).decode(b"\0")


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
