"""Convolutions over time with the channels of a frame adjacent in memory.

Weights have the published shape (outputs, inputs, taps), but are stored tap by tap: a convolution
over few frames is then one matrix product, and one over many samples runs in the channels-last
kernels of oneDNN and cuDNN. Neither has to transpose its input.

Letters: `R` rows, `T` frames or samples, `W` channels.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime.layers import PackedLinear


def channels_last(x: Tensor) -> Tensor:
    """The same values in shape (R, W, T), with the channels of a frame adjacent."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def lay_by_taps(convolution: nn.Conv1d | nn.ConvTranspose1d) -> None:
    """Store the weights of a convolution tap by tap; their shape and name are unchanged."""
    weight = channels_last(convolution.weight.detach())
    convolution.weight = nn.Parameter(weight, convolution.weight.requires_grad)


class FrameProduct(nn.Conv1d):
    """A convolution over few frames, without padding, as one matrix product.

    Args:
        width: channels in and out.
        taps: number of input frames per result.
    """

    def __init__(self, width: int, taps: int) -> None:
        super().__init__(width, width, taps)
        lay_by_taps(self)
        self.product: PackedLinear | None = None

    def pack(self) -> None:
        if self.product is None and PackedLinear.serves(self.weight):
            self.product = PackedLinear(self._matrix(), self.bias)
            del self.weight

    def _matrix(self) -> Tensor:
        return self.weight.transpose(1, 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (R, T + taps - 1, W) to (R, T, W)."""
        rows, frames, width = x.shape
        taps = self.kernel_size[0]
        x = x.contiguous()
        # Adjacent frames follow each other in memory: the inputs of one result are one row.
        seen = (rows, frames - taps + 1, taps * width)
        windows = x.as_strided(seen, (frames * width, width, 1), x.storage_offset())
        lines = windows.reshape(-1, taps * width)
        made = self.product(lines) if self.product else F.linear(lines, self._matrix(), self.bias)
        return made.view(*seen[:2], -1)


class PaddedConv(nn.Conv1d):
    """A convolution that pads each side with its own number of zeros.

    Args:
        left, right: zeros; unequal for causal convolutions and those that look ahead.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        left: int,
        right: int,
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dilation=dilation)
        self.sides = (left, right)
        self.quick: ToomCookConv | None = None
        lay_by_taps(self)

    def pack(self) -> None:
        if self.quick is None and ToomCookConv.serves(self.weight):
            self.quick = ToomCookConv(self)
            del self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Shape (R, inputs, T), channels last, and so is the result."""
        left, right = self.sides
        if self.quick is not None:
            return self.quick(x.transpose(1, 2), left, right).transpose(1, 2)
        if left != right:
            x = F.pad(x.transpose(1, 2), (0, 0, left, right)).transpose(1, 2)
        return F.conv2d(
            x.unsqueeze(2),
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, self.stride[0]),
            padding=(0, left if left == right else 0),
            dilation=(1, self.dilation[0]),
        ).squeeze(2)


class ToomCookConv(nn.Module):
    """A long convolution of many samples with a fourth of the multiplications, in float32 on a CPU.

    `y = A ((G w) (B x))`: `LENGTH` samples give `P` sums, each of which is multiplied by its own
    matrix, and these products give `LENGTH - taps + 1` results.
    """

    LENGTH = 28
    """Number of samples in one piece."""

    LEAST_TAPS, LEAST_WIDTH = 7, 64
    """Size from which this is faster (docs/log/minicpmo45.md)."""

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        _, _, self.taps = convolution.weight.shape
        (self.dilation,) = convolution.dilation
        self.after, self.before, filters = _toom_cook(self.LENGTH, self.taps)
        self.matrices = torch.einsum("pk,oik->pio", filters, convolution.weight.detach())
        assert convolution.bias is not None
        self.bias = convolution.bias.detach().repeat(self.dilation)

    def forward(self, x: Tensor, left: int, right: int) -> Tensor:
        """Shape (R, T, inputs), and zeros on both sides, to (R, results, outputs)."""
        rows, samples, width = x.shape
        count, step = self.before.shape[0], self.LENGTH - self.taps + 1
        made = left + samples + right - self.dilation * (self.taps - 1)
        pieces = math.ceil(made / (self.dilation * step))
        # Samples that have no common result are adjacent, as if they were channels.
        line = self.dilation * width
        x = F.pad(x, (0, 0, left, right + self.dilation * step * pieces - made))
        seen = x.as_strided((self.LENGTH, rows, pieces, line), (line, x.stride(0), step * line, 1))
        sums = torch.mm(self.before, seen.reshape(self.LENGTH, -1)).view(count, -1, width)
        products = torch.bmm(sums, self.matrices).view(count, rows * pieces, -1).transpose(0, 1)
        after = self.after.expand(rows * pieces, -1, -1)
        results = torch.baddbmm(self.bias, after, products)
        return results.view(rows, -1, self.matrices.shape[2])[:, :made]

    @classmethod
    def serves(cls, weight: Tensor) -> bool:
        """True if this is faster for a convolution."""
        is_plain = weight.device.type == "cpu" and weight.dtype is torch.float32
        return is_plain and weight.shape[2] >= cls.LEAST_TAPS and weight.shape[1] >= cls.LEAST_WIDTH


@functools.cache
def _toom_cook(length: int, taps: int) -> tuple[Tensor, Tensor, Tensor]:
    """`A`, `B` and `G`: filters and results are polynomials, which are multiplied through their
    values at 0, at infinity and at roots of unity; a complex product takes three real ones.

    Source: Winograd, Arithmetic Complexity of Computations, 1980.
    """

    def values(count: int) -> Tensor:
        roots = length - 2
        turns = torch.outer(torch.arange(roots // 2 + 1), torch.arange(count)) / roots
        angles = 2 * torch.pi * turns.double()
        real, imaginary = angles.cos(), angles[1 : (roots + 1) // 2].sin()
        ends = torch.eye(count, dtype=torch.float64)[[0, -1]]
        return torch.cat([ends, real, imaginary, real[1 : 1 + len(imaginary)] + imaginary])

    results, filters = values(length - taps + 1), values(taps)
    products = torch.einsum("pj,pi->jip", filters, results).flatten(0, 1)
    places = torch.arange(taps)[:, None] + torch.arange(length - taps + 1)
    sums = torch.linalg.lstsq(products, torch.eye(length, dtype=torch.float64)[places.flatten()])
    return results.t().float(), sums.solution.float(), filters.float()


class SpreadConv(nn.ConvTranspose1d):
    """A transposed convolution of a channels-last tensor."""

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int, *, padding: int) -> None:
        super().__init__(inputs, outputs, kernel, rate, padding=padding)
        self._padding = padding
        lay_by_taps(self)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Shape (R, inputs, T) to (R, outputs, T rate)."""
        return F.conv_transpose2d(
            x.unsqueeze(2),
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, self.stride[0]),
            padding=(0, self._padding),
        ).squeeze(2)


def mirrored(x: Tensor) -> Tensor:
    """Prepend one sample, a copy of the second: (R, W, T) to (R, W, T + 1)."""
    return torch.cat([x[:, :, 1:2].transpose(1, 2), x.transpose(1, 2)], dim=1).transpose(1, 2)
