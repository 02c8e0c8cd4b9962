"""Mel to sound: both vocoders, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.parametrizations import weight_norm

from parley.errors import SetupError
from parley.models.minicpmo45.token2wav.vocoder import (
    OVERLAP_FRAMES,
    OVERLAP_SAMPLES,
    ClassicVocoder,
    excitation_noise,
)
from parley.models.minicpmo45.token2wav.vocoder_causal import DELAY_FRAMES, CausalVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import FULL_CHANNELS, make_vocoder
from parley.models.minicpmo45.token2wav.vocoder_layers import ShortFourier, folded


@pytest.fixture(scope="module")
def classic() -> ClassicVocoder:
    torch.manual_seed(0)
    vocoder = ClassicVocoder(16, 16).requires_grad_(False).eval()
    vocoder.f0_predictor.classifier.bias.fill_(220.0)
    return vocoder


@pytest.fixture(scope="module")
def causal() -> CausalVocoder:
    torch.manual_seed(0)
    vocoder = CausalVocoder(16, 16).requires_grad_(False).eval()
    vocoder.f0_predictor.double()
    vocoder.f0_predictor.classifier.bias.fill_(220.0)
    return vocoder


def mel_of(seed: int, frames: int, rows: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 80, frames, generator=generator)


def test_short_fourier_equals_the_library() -> None:
    fourier = ShortFourier()
    wave = torch.randn(2, 480, generator=torch.Generator().manual_seed(0))
    window = torch.hann_window(16, periodic=True)

    spectrum = fourier.spectrum(wave)
    wanted = torch.stft(wave, 16, 4, 16, window, center=True, return_complex=True)

    torch.testing.assert_close(spectrum[:, :9], wanted.real, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(spectrum[:, 9:], wanted.imag, atol=1e-5, rtol=1e-5)


def test_inverse_equals_the_library_also_where_no_wave_has_that_spectrum() -> None:
    fourier = ShortFourier()
    spectrum = torch.randn(2, 18, 121, generator=torch.Generator().manual_seed(0))
    parts = torch.complex(spectrum[:, :9], spectrum[:, 9:])
    window = torch.hann_window(16, periodic=True)

    found = fourier.wave(spectrum)

    wanted = torch.istft(parts, 16, 4, 16, window, center=True)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_folded_weights_are_those_of_the_library() -> None:
    torch.manual_seed(0)
    layer = weight_norm(torch.nn.Conv1d(3, 4, 5)).requires_grad_(False)
    layer.parametrizations.weight.original0.mul_(1.7)

    plain = folded({f"up.{name}": value for name, value in layer.state_dict().items()})

    torch.testing.assert_close(plain["up.weight"], layer.weight)
    assert set(plain) == {"up.weight", "up.bias"}


def test_harmonics_of_a_steady_pitch_are_sines(classic: ClassicVocoder) -> None:
    noise, classic.noise = classic.noise, torch.zeros(1, 9)
    mixer = classic.m_source.l_linear
    kept = mixer.weight.clone(), mixer.bias.clone()
    mixer.weight.zero_()
    mixer.weight[0, 1] = 1.0
    mixer.bias.zero_()
    try:
        source = classic.source(torch.full((1, 20), 300.0), [0])[0]
    finally:
        mixer.weight.copy_(kept[0])
        mixer.bias.copy_(kept[1])
        classic.noise = noise

    spectrum = np.abs(np.fft.rfft(source[480:-480].numpy()))
    peak = np.argmax(spectrum) * 24_000 / (18 * 480)
    assert peak == pytest.approx(600, abs=3)
    assert float(source.abs().max()) == pytest.approx(np.tanh(0.1), abs=1e-3)


def test_unvoiced_frames_are_noise_only(classic: ClassicVocoder) -> None:
    quiet = classic.source(torch.full((1, 10), 5.0), [0])
    shifted = classic.source(torch.full((1, 10), 9.0), [0])

    assert torch.equal(quiet, shifted)
    assert float(quiet.std()) > 0


def test_classic_stream_emits_as_the_table_says(classic: ClassicVocoder) -> None:
    row = classic.row()

    sizes = []
    for call, (frames, is_last) in enumerate([(50, False), (50, False), (14, True)]):
        wave, (row,) = classic.stream([row], mel_of(call, frames), is_last=is_last)
        sizes.append(wave.shape[1])

    assert sizes == [24_000 - 3_840, 24_000, 14 * 480 + 3_840]


def test_classic_stream_in_one_call_is_the_whole(classic: ClassicVocoder) -> None:
    mel = mel_of(0, 30)

    streamed, _ = classic.stream([classic.row()], mel, is_last=True)

    assert torch.equal(streamed, classic.whole(mel))


def test_classic_seam_is_a_fade_of_both_calls(classic: ClassicVocoder) -> None:
    mel = mel_of(3, 60)
    _, (row,) = classic.stream([classic.row()], mel[:, :, :40], is_last=False)
    assert row.mel is not None
    assert row.source is not None
    assert row.speech is not None
    old = row.speech.numpy().astype(np.float64)
    tail = torch.cat([row.mel[None], mel[:, :, 40:]], dim=2)
    source = classic.source(classic.f0_predictor(tail), [32 * 480])
    source[:, :OVERLAP_SAMPLES] = row.source
    new = classic.decode(tail, source)[0].numpy().astype(np.float64)

    found = classic.stream([row], mel[:, :, 40:], is_last=True)[0][0].numpy()

    fade = np.hamming(2 * OVERLAP_SAMPLES)
    count = OVERLAP_SAMPLES
    wanted = new.copy()
    wanted[:count] = new[:count] * fade[:count] + old * fade[count:]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(fade[:count] + fade[count:], 1.08, atol=1e-3)


@pytest.mark.parametrize("cuts", [(70,), (10, 45, 70), (50, 70), (1, 2, 5, 9, 40, 70), (69, 70)])
def test_causal_stream_equals_the_whole_however_it_is_cut(
    causal: CausalVocoder, cuts: tuple[int, ...]
) -> None:
    mel = mel_of(1, 70)
    whole = causal.whole(mel)
    row = causal.row()
    parts = []
    start = 0
    for stop in cuts:
        part, (row,) = causal.stream([row], mel[:, :, start:stop], is_last=stop == 70)
        parts.append(part)
        # Exactly 8 frames behind, once there are that many.
        given = sum(part.shape[1] for part in parts) // 480
        assert given == (70 if stop == 70 else max(0, stop - DELAY_FRAMES))
        start = stop

    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


def test_causal_sound_does_not_know_the_future(causal: CausalVocoder) -> None:
    mel = mel_of(1, 40)
    other = mel.clone()
    other[:, :, 30:] += 1

    same = (30 - DELAY_FRAMES) * 480
    torch.testing.assert_close(
        causal.whole(mel)[:, :same], causal.whole(other)[:, :same], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("kind", ["classic", "causal"])
def test_rows_in_company_sound_as_they_do_alone(
    kind: str, classic: ClassicVocoder, causal: CausalVocoder
) -> None:
    vocoder: ClassicVocoder | CausalVocoder = classic if kind == "classic" else causal
    mels = mel_of(5, 100, rows=3)

    def speak(rows: list[int]) -> Tensor:
        streams: Any = [vocoder.row() for _ in rows]
        first, streams = vocoder.stream(streams, mels[rows, :, :50], is_last=False)
        last, _ = vocoder.stream(streams, mels[rows, :, 50:], is_last=True)
        return torch.cat([first, last], dim=1)

    together = speak([0, 1, 2])

    alone = torch.cat([speak([0]), speak([1]), speak([2])])
    torch.testing.assert_close(together, alone, atol=1e-3, rtol=0)


def test_noise_is_read_at_the_sample_in_the_stream(classic: ClassicVocoder) -> None:
    pitch = torch.full((1, 4), 5.0)

    whole = classic.source(pitch, [0])
    later = classic.source(pitch[:, :2], [2 * 480])

    assert torch.equal(later, whole[:, 2 * 480 :])


def test_later_calls_of_a_stream_read_the_noise_of_their_own_samples(
    classic: ClassicVocoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    noise_from = classic.noise_from

    def noted(given: Sequence[int], samples: int) -> Tensor:
        starts.extend(given)
        return noise_from(given, samples)

    monkeypatch.setattr(classic, "noise_from", noted)
    rows = [classic.row()]
    for _ in range(3):
        _, rows = classic.stream(rows, torch.zeros(1, 80, 50), is_last=False)

    # The frames that a call held back are made again by the next one.
    assert starts == [0, (50 - OVERLAP_FRAMES) * 480, (100 - OVERLAP_FRAMES) * 480]


def test_noise_repeats_from_its_seed() -> None:
    assert torch.equal(excitation_noise(1, 10), excitation_noise(1, 10))
    assert not torch.equal(excitation_noise(1, 10), excitation_noise(2, 10))


@pytest.mark.parametrize(("kind", "wanted"), [("classic", 20_821_295), ("causal", 20_779_887)])
def test_full_size_has_the_published_number_of_parameters(kind: str, wanted: int) -> None:
    with torch.device("meta"):
        network = (ClassicVocoder if kind == "classic" else CausalVocoder)(
            FULL_CHANNELS, FULL_CHANNELS
        )
    # The file holds every weight-normed layer as direction and gain; a gain per first axis.
    plain = {"m_source", "f0_predictor.classifier", "source_downs"}
    gains = sum(
        p.shape[0]
        for name, p in network.named_parameters()
        if p.dim() == 3 and not any(name.startswith(part) for part in plain)
    )

    assert sum(p.numel() for p in network.parameters()) + gains == wanted


def test_file_of_an_unknown_kind_is_named() -> None:
    tensors = {
        "conv_pre.parametrizations.weight.original1": torch.zeros(16, 80, 9),
        "f0_predictor.condnet.0.parametrizations.weight.original1": torch.zeros(16, 80, 3),
    }

    with pytest.raises(SetupError, match="9 wide"):
        make_vocoder(tensors)
