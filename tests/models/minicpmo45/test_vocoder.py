"""Mel to sound: both vocoders, whole and in pieces."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.token2wav.convolution import (
    PaddedConv,
    ToomCookConv,
    channels_last,
)
from parley.models.minicpmo45.token2wav.vocoder import (
    OVERLAP_FRAMES,
    ClassicVocoder,
)
from parley.models.minicpmo45.token2wav.vocoder_causal import DELAY_FRAMES, CausalVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import FULL_CHANNELS, make_vocoder


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


@pytest.mark.parametrize("cuts", [(70,), (10, 45, 70), (50, 70), (1, 2, 5, 9, 40, 70), (69, 70)])
def test_causal_stream_equals_the_whole_however_it_is_cut(
    causal: CausalVocoder, cuts: tuple[int, ...]
) -> None:
    mel = mel_of(1, 70)
    whole, _ = causal.stream([causal.row()], mel, is_last=True)
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


@pytest.mark.parametrize("kind", ["classic", "causal"])
def test_fewer_products_make_the_same_sound(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = request.getfixturevalue(kind)
    monkeypatch.setattr(ToomCookConv, "LEAST_WIDTH", 0)
    packed = deepcopy(plain)
    packed.pack()
    # Those that wait for an answer and those that do not share a vocoder.
    packed.pack()
    mel = mel_of(2, 30)

    wanted, _ = plain.stream([plain.row()], mel, is_last=True)
    found, _ = packed.stream([plain.row()], mel, is_last=True)

    assert sum(isinstance(part, ToomCookConv) for part in packed.modules()) == 6 * (3 * 2 + 3)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_a_row_of_a_packed_convolution_is_the_same_in_company() -> None:
    convolution = PaddedConv(64, 64, 7, left=9, right=9, dilation=3).requires_grad_(False)
    convolution.pack()
    x = channels_last(torch.randn(3, 64, 400))

    assert convolution.quick is not None
    assert torch.equal(convolution(x)[1:2], convolution(x[1:2]))


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
