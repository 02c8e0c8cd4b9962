"""Products and activations of speech on a CPU, against the library's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.convolution import FrameProduct
from parley.models.minicpmo45.token2wav.cpu_products import (
    added_bytes,
    linear_gelu,
    mish,
    prepare,
)
from parley.models.minicpmo45.token2wav.vocoder_layers import CACHED_NUMBERS, Snake


def seeded(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("taps", [3, 4])
@pytest.mark.parametrize("frames", [2, 7, 50])
@torch.inference_mode()
def test_a_convolution_of_frames_is_what_the_library_makes(taps: int, frames: int) -> None:
    torch.manual_seed(0)
    convolution = FrameProduct(32, taps)
    network = nn.Sequential(convolution)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    # Not contiguous: a step's past lies elsewhere.
    x = seeded(2, 32, frames + taps - 1).transpose(1, 2)
    wanted = F.conv1d(x.transpose(1, 2), before["0.weight"], before["0.bias"]).transpose(1, 2)

    prepare(network)

    torch.testing.assert_close(convolution(x), wanted, atol=2e-6, rtol=1e-5)
    after = network.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


@torch.inference_mode()
def test_rows_in_company_are_convolved_as_alone() -> None:
    torch.manual_seed(0)
    convolution = FrameProduct(64, 3)
    prepare(convolution)
    x = seeded(6, 52, 64)

    together = convolution(x)

    alone = torch.cat([convolution(pair) for pair in x.split(2)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-6)


def test_what_is_added_is_counted() -> None:
    network = nn.Sequential(FrameProduct(32, 3), FrameProduct(32, 4), nn.Linear(32, 64))
    held = {weight.untyped_storage().data_ptr(): weight for weight in network.parameters()}
    before = sum(weight.untyped_storage().nbytes() for weight in held.values())

    counted = added_bytes(network)
    prepare(network)

    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in [*network.parameters(), *network.buffers()]
    }
    assert counted == 2 * 32 * 32 * 4
    assert sum(storages.values()) == before + counted
    assert added_bytes(network) == counted


@torch.inference_mode()
def test_a_projection_keeps_its_weights_and_its_result() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 96)
    weight, x = linear.weight.clone(), seeded(3, 5, 48)
    wanted = linear(x)

    prepare(nn.Sequential(linear))

    assert torch.equal(linear.weight, weight)
    assert linear.weight.t().is_contiguous()
    torch.testing.assert_close(linear(x), wanted, atol=1e-6, rtol=1e-6)


def test_other_precisions_are_left_alone() -> None:
    convolution = FrameProduct(32, 3)
    network = nn.Sequential(convolution, nn.Linear(32, 32)).bfloat16()
    strides = [weight.stride() for weight in network.parameters()]

    prepare(network)

    assert [weight.stride() for weight in network.parameters()] == strides
    assert convolution.paired.numel() == 0


def test_activations_are_the_librarys() -> None:
    x = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([0.0, -0.0, 19.9, 20.1, 1e4])])

    torch.testing.assert_close(mish(x), F.mish(x), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(mish(x.bfloat16()), F.mish(x.bfloat16()))


@torch.inference_mode()
def test_a_projection_with_gelu_is_the_librarys_and_rows_are_alike_in_company() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 256)
    prepare(nn.Sequential(linear))
    x = 5 * seeded(6, 50, 64)

    found = linear_gelu(x, linear)

    wanted = F.gelu(linear(x), approximate="tanh")
    torch.testing.assert_close(found, wanted, atol=5e-6, rtol=1e-5)
    alone = torch.cat([linear_gelu(pair, linear) for pair in x.split(2)])
    assert torch.equal(found, alone)


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
