"""Convolutions as products: computing two results at once gives what computing each does."""

from __future__ import annotations

import pytest
import torch

from parley.models.minicpmo45.token2wav.convolution import FrameProduct


def product(taps: int) -> FrameProduct:
    torch.manual_seed(taps)
    return FrameProduct(24, taps).requires_grad_(False)


@pytest.mark.parametrize("frames", [4, 5, 52])
def test_pairs_of_results_are_those_of_the_convolution(frames):
    whole = torch.randn(2, frames + 3, 24, generator=torch.Generator().manual_seed(1))
    # A part of a longer tensor, as windows are.
    x = whole[:, 1 : frames + 1]
    plain, paired = product(3), product(3)
    paired.pair()

    torch.testing.assert_close(paired(x), plain(x), atol=2e-6, rtol=1e-5)


def test_an_even_number_of_frames_takes_the_shorter_way():
    paired = product(3)
    paired.pair()
    assert paired._pairs is not None
    paired._pairs.zero_()

    assert torch.equal(paired(torch.ones(1, 6, 24)), paired.bias.expand(1, 4, 24))
    assert not torch.equal(paired(torch.ones(1, 5, 24)), paired.bias.expand(1, 3, 24))


@pytest.mark.parametrize("taps", [1, 4, 5])
def test_other_numbers_of_taps_stay_as_they_are(taps):
    one = product(taps)
    one.pair()

    assert one._pairs is None


def test_other_precisions_stay_as_they_are():
    short = product(3).to(torch.bfloat16)
    short.pair()

    assert short._pairs is None
