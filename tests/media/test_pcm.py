import math

import numpy as np
import pytest
from tests.support.timeline import silence, sound, speak

from parley.errors import InvalidPayload
from parley.media.pcm import Pcm, from_float32_bytes, join, level_dbfs, peak
from parley.media.segments import pieces_of, segments_of


def test_part_of_a_sample_is_refused():
    with pytest.raises(InvalidPayload, match="float32 samples of 4 bytes each, got 7 bytes"):
        from_float32_bytes(b"1234567", 16_000)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_numbers_are_refused(bad):
    with pytest.raises(InvalidPayload, match="not finite"):
        from_float32_bytes(np.array([0, bad], "<f4").tobytes(), 16_000)


def test_samples_beyond_full_scale_are_clipped():
    pcm = from_float32_bytes(np.array([-3, 0.5, 1.5], "<f4").tobytes(), 16_000)

    assert pcm.samples.tolist() == [-1.0, 0.5, 1.0]


SPEECH = (np.sin(np.arange(16_000) / 9) * np.linspace(0, 9000, 16_000)).astype("<i2")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (SPEECH.tobytes(), "16-bit samples sent as they are"),
        (SPEECH.astype("<f4").tobytes(), "scale of 16-bit samples .largest value 89.."),
        ((SPEECH // 1000).astype("<f4").tobytes(), "divide by 32768"),
        (np.full(100, np.nan, "<f4").tobytes(), "not finite"),
    ],
    ids=["integers", "not divided", "quiet, not divided", "no numbers"],
)
def test_sixteen_bit_samples_are_recognised_and_told(data, told):
    with pytest.raises(InvalidPayload, match=told):
        from_float32_bytes(data)


@pytest.mark.parametrize(
    "samples",
    [
        SPEECH / 32768,
        SPEECH / 1000,
        np.sign(SPEECH),
        np.zeros(100),
        np.linspace(0, 1, 500) * 1e-39,
    ],
    ids=["speech", "overdriven", "square", "silence", "denormal"],
)
def test_float_samples_are_never_taken_for_integers(samples):
    sent = samples.astype("<f4")

    assert np.array_equal(from_float32_bytes(sent.tobytes()).samples, np.clip(sent, -1, 1))


def test_level_of_a_full_scale_sine_is_minus_three_decibels():
    sine = np.sin(2 * np.pi * 100 * np.arange(16_000) / 16_000).astype(np.float32)

    assert level_dbfs(Pcm(sine, 16_000)) == pytest.approx(-3.01, abs=0.01)
    assert peak(Pcm(sine, 16_000)) == pytest.approx(1.0, abs=1e-4)


def test_silence_and_nothing_have_no_level():
    assert level_dbfs(Pcm.silence(10, 16_000)) == -math.inf
    assert level_dbfs(Pcm.empty(16_000)) == -math.inf
    assert peak(Pcm.empty(16_000)) == 0.0


def test_two_rates_cannot_meet():
    with pytest.raises(ValueError, match="cannot join 24000 Hz to 16000 Hz"):
        join([Pcm.silence(1, 24_000)], 16_000)


@pytest.mark.parametrize("constant", [0.0, 0.2])
@pytest.mark.parametrize("of_the_voice", [0.0, 0.05])
def test_speech_is_found_between_pauses_also_over_a_constant(constant, of_the_voice):
    heard = sound(silence(1), speak(2), silence(1), speak(1), silence(1)).samples
    heard = heard + np.float32(of_the_voice) * (heard != 0) + np.float32(constant)

    found = segments_of(Pcm(heard, 16_000))

    assert np.ravel(found) == pytest.approx([0.85, 3.15, 3.85, 5.15], abs=0.02)


def test_more_audio_changes_only_the_last_piece():
    chance = np.random.default_rng(1)
    speech, pause = 0.2 * chance.standard_normal(9 * 16_000), np.zeros(8_000)
    heard = np.concatenate([speech, pause] * 3 + [np.zeros(32_000)]).astype(np.float32)
    pieces, settled = zip(*pieces_of(Pcm(heard, 16_000)), strict=True)

    assert [one.duration_s for one in pieces] == pytest.approx([9.3, 9.5, 9.5], abs=0.3)
    for seconds in (12, 20, 25):
        shorter = pieces_of(Pcm(heard[: seconds * 16_000], 16_000))
        kept = [one for one, is_settled in shorter if is_settled]
        for whole, part in zip(pieces, kept, strict=False):
            np.testing.assert_array_equal(whole.samples, part.samples)
    ((empty, is_settled),) = pieces_of(Pcm(heard[:0], 16_000))
    assert settled == (True, True, True)
    assert (empty.samples.size, is_settled) == (0, False)


def test_speech_without_a_pause_is_cut_in_a_soft_moment():
    speech = 0.2 * np.random.default_rng(1).standard_normal(30 * 16_000).astype(np.float32)
    speech[11 * 16_000 : round(11.1 * 16_000)] *= 0.3

    pieces, settled = zip(*pieces_of(Pcm(speech, 16_000)), strict=True)

    assert pieces[0].duration_s == pytest.approx(11.05, abs=0.05)
    assert max(one.duration_s for one in pieces) <= 14
    assert settled == (True, True, False)
    np.testing.assert_array_equal(join(pieces, 16_000).samples, speech)
