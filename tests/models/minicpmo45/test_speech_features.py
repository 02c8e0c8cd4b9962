"""What the voice networks hear, against formulas written another way."""

import math
from types import ModuleType

import numpy as np
import pytest

from parley.media.mel_filters import mel_filters
from parley.models.minicpmo45.token2wav.features import (
    flow_mel,
    resampled,
    speaker_bank,
    tokenizer_mel,
)


def tone(hz: float, rate_hz: int, seconds: float, seed: int = 0) -> np.ndarray:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    noise = np.random.default_rng(seed).standard_normal(len(t))
    return (0.3 * np.sin(2 * np.pi * hz * t) + 0.01 * noise).astype(np.float32)


@pytest.mark.parametrize(
    ("from_hz", "to_hz"), [(16_000, 24_000), (24_000, 16_000), (48_000, 16_000)]
)
def test_rate_change_is_a_windowed_sinc(from_hz: int, to_hz: int) -> None:
    samples = np.random.default_rng(0).standard_normal(400).astype(np.float32)

    out = resampled(samples, from_hz, to_hz)

    cutoff = 0.99 * min(1, to_hz / from_hz)
    for place in (0, 1, 7, 99, len(out) - 1):
        distances = (np.arange(400) - place * from_hz / to_hz) * cutoff
        window = np.where(np.abs(distances) < 6, np.cos(distances * np.pi / 12) ** 2, 0)
        wanted = (samples * np.sinc(distances) * window).sum() * cutoff
        assert out[place] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("samples", [1, 2, 3, 160, 16_001])
def test_length_after_a_rate_change_is_rounded_up(samples: int) -> None:
    sound = np.zeros(samples, np.float32)

    assert len(resampled(sound, 16_000, 24_000)) == math.ceil(samples * 1.5)
    assert len(resampled(sound, 24_000, 16_000)) == math.ceil(samples * 2 / 3)
    assert resampled(sound, 16_000, 16_000) is sound


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """transformers' features. Importing them takes a second, in every process that collects."""
    import transformers.audio_utils

    return transformers.audio_utils


def test_mel_filters_are_slaneys(reference: ModuleType) -> None:
    for bins, size, rate in ((128, 400, 16_000), (80, 1920, 24_000)):
        wanted = reference.mel_filter_bank(
            1 + size // 2, bins, 0.0, 8000.0, rate, norm="slaney", mel_scale="slaney"
        )
        np.testing.assert_allclose(mel_filters(bins, size, rate, 8000.0), wanted.T, atol=1e-9)


def test_tokenizer_mel_is_whispers(reference: ModuleType) -> None:
    samples = tone(300, 16_000, 2.5)
    wanted = reference.spectrogram(
        samples,
        reference.window_function(400, "hann"),
        frame_length=400,
        hop_length=160,
        power=2.0,
        mel_filters=reference.mel_filter_bank(201, 128, 0.0, 8000.0, 16_000, "slaney", "slaney"),
        log_mel="log10",
    )[:, :-1]
    wanted = (np.maximum(wanted, wanted.max() - 8) + 4) / 4

    found = tokenizer_mel(samples)

    assert found.shape == (128, 250)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_speaker_bank_is_kaldis(reference: ModuleType) -> None:
    samples = tone(300, 16_000, 1.0)
    filters = reference.mel_filter_bank(
        257,
        80,
        20.0,
        8000.0,
        16_000,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    wanted = reference.spectrogram(
        samples,
        reference.window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=1.192092955078125e-07,
        remove_dc_offset=True,
    ).T

    found = speaker_bank(samples)

    assert found.shape == (98, 80)
    # The library's filters reach the highest band, Kaldi's do not: the last bin may differ.
    np.testing.assert_allclose(found[:, :79], (wanted - wanted.mean(0))[:, :79], atol=2e-3)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-5)


def test_flow_mel_by_hand(reference: ModuleType) -> None:
    samples = tone(500, 24_000, 0.5)
    padded = np.pad(samples, 720, mode="reflect").astype(np.float64)
    window = np.hanning(1921)[:-1]
    frame = np.abs(np.fft.rfft(padded[480 * 7 : 480 * 7 + 1920] * window))
    filters = reference.mel_filter_bank(961, 80, 0.0, 8000.0, 24_000, "slaney", "slaney")
    wanted = np.log(np.maximum(np.sqrt(frame**2 + 1e-9) @ filters, 1e-5))

    found = flow_mel(samples)

    assert found.shape == (25, 80)
    np.testing.assert_allclose(found[7], wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("seconds", "low", "high", "tokens"), [(6.0, 600, 300, 150), (6.016, 601, 300, 151)]
)
def test_lengths_of_the_published_example(seconds: float, low: int, high: int, tokens: int) -> None:
    frames = tokenizer_mel(tone(200, 16_000, seconds)).shape[1]

    assert frames == low
    assert len(flow_mel(tone(200, 24_000, seconds))) == high
    assert math.ceil(math.ceil(frames / 2) / 2) == tokens
