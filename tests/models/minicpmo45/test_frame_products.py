"""Products and activations of speech over few frames, against the library's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.convolution import FrameProduct
from parley.models.minicpmo45.token2wav.vocoder_layers import CACHED_NUMBERS, Snake


def seeded(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("taps", [3, 4])
@pytest.mark.parametrize("frames", [2, 7, 50])
@torch.inference_mode()
def test_a_convolution_of_frames_is_what_the_library_makes(taps: int, frames: int) -> None:
    torch.manual_seed(0)
    convolution = FrameProduct(32, taps)
    # Not contiguous: a step's past lies elsewhere.
    x = seeded(2, 32, frames + taps - 1).transpose(1, 2)
    wanted = F.conv1d(x.transpose(1, 2), convolution.weight, convolution.bias).transpose(1, 2)

    torch.testing.assert_close(convolution(x), wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_snake_in_pieces_is_snake(rows: int) -> None:
    snake = Snake(16)
    snake.alpha.copy_(seeded(16).abs() + 0.1)
    samples = 2 * CACHED_NUMBERS // (16 * rows) + 77
    x = seeded(rows, samples, 16).transpose(1, 2)
    alpha = snake.alpha[:, None]
    wanted = x + (alpha * x).sin() ** 2 / alpha

    found = snake(x)

    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)
    assert found.stride() == x.stride()
    assert snake(x, out=x) is x
    assert torch.equal(x, found)
