import numpy as np
import pytest
import torch

from parley.models.pocket.vocoder import (
    LOOK_AHEAD,
    CodeVocoder,
    Spoken,
    VoiceColor,
    color_of,
    log_mel,
    mel_bank,
    pitch_track,
    stretch,
)


@pytest.fixture(scope="module")
def vocoder():
    torch.manual_seed(5)
    made = CodeVocoder(codes=50, width=32, layers=5).eval().requires_grad_(False)
    made.get_buffer("spectra").copy_(torch.randn(50, 320) - 2)
    made.pitch.weight.mul_(3)
    return made


def codes_of(count):
    return np.random.default_rng(count).integers(0, 50, count).tolist()


@pytest.mark.parametrize("cut", [1, 4, 7, 25, 28])
def test_a_stream_gives_the_samples_of_one_call(vocoder, cut):
    codes = codes_of(83)
    whole = Spoken(vocoder, 0).push(codes, is_last=True)
    stream = Spoken(vocoder, 0)

    parts = [stream.push(codes[i : i + cut]) for i in range(0, len(codes), cut)]
    parts.append(stream.push([], is_last=True))

    assert len(whole) == 83 * 960
    assert np.abs(np.concatenate(parts) - whole).max() < 2e-4
    assert np.abs(whole).max() > 1e-3


def test_sound_comes_three_codes_behind(vocoder):
    stream = Spoken(vocoder, 0)

    assert len(stream.push(codes_of(LOOK_AHEAD))) == 0
    assert len(stream.push(codes_of(25))) == 25 * 960


def test_a_turn_starts_afresh_after_the_last_push(vocoder):
    stream = Spoken(vocoder, 0)
    first = stream.push(codes_of(30), is_last=True)

    assert np.array_equal(stream.push(codes_of(30), is_last=True), first)


def test_a_long_turn_keeps_little(vocoder):
    stream = Spoken(vocoder, 0)
    for _ in range(20):
        stream.push(codes_of(25))

    assert len(stream.codes) < 60


def test_codes_outside_the_book_are_silence(vocoder):
    known = Spoken(vocoder, 7).push([7] * 10, is_last=True)

    assert np.array_equal(Spoken(vocoder, 7).push([4218] * 10, is_last=True), known)


def test_a_voice_colour_moves_pitch_and_spectrum(vocoder):
    codes = codes_of(40)
    plain = Spoken(vocoder, 0).push(codes, is_last=True)

    lower = Spoken(vocoder, 0, VoiceColor(0.6, 0.85)).push(codes, is_last=True)

    assert len(lower) == len(plain)
    assert np.abs(lower - plain).max() > 1e-2


def test_stretching_moves_a_peak_up():
    gain = torch.zeros(1, 481)
    gain[0, 100] = 1.0

    assert int(stretch(gain, 1.2).argmax()) == 120


def buzz(hertz, rate_hz):
    t = np.arange(2 * rate_hz) / rate_hz
    harmonics = [np.sin(2 * np.pi * hertz * k * t) / k for k in range(1, 8)]
    return (0.2 * np.sum(harmonics, 0)).astype(np.float32)


@pytest.mark.parametrize("hertz", [110.0, 180.0, 240.0])
def test_pitch_of_a_buzz_is_found(hertz):
    track = pitch_track(buzz(hertz, 24_000), 24_000)

    assert abs(np.median(track[5:-5]) - hertz) < 4


def test_a_low_reference_voice_lowers_the_pitch_and_silence_changes_nothing():
    color = color_of(buzz(100.0, 16_000), 16_000, own_pitch_hz=180.0)

    assert 0.5 <= color.pitch < 0.6
    assert color.formants < 1
    assert color_of(np.zeros(16_000, np.float32), 16_000, 180.0) == VoiceColor()


def test_mel_filters_cover_their_band_and_count_frames():
    assert mel_bank().shape == (80, 513)
    assert (mel_bank().sum(1) > 0).all()
    assert log_mel(np.zeros(2400, np.float32)).shape == (10, 80)
