"""Convolutions over time whose channels lie together in memory.

Weights have the published shape (outputs, inputs, taps), but lie tap by tap: a convolution over few
frames is then one matrix product, and one over many samples runs in the channels-last kernels of
oneDNN and cuDNN. Neither turns its input around first.

Letters: `R` rows, `T` frames or samples, `W` channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TAPS_IN_PAIRS = 3
"""Taps of a convolution whose results are computed two at a time."""

LEAST_IN_PAIRS = 64
"""Fewer results are computed one by one: a product of half as many lines takes longer than half."""


def channels_last(x: Tensor) -> Tensor:
    """The same numbers of shape (R, W, T), the channels of a frame next to each other."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def lay_by_taps(convolution: nn.Conv1d | nn.ConvTranspose1d) -> None:
    """Let the weights of a convolution lie tap by tap; their shape and name stay."""
    weight = channels_last(convolution.weight.detach())
    convolution.weight = nn.Parameter(weight, convolution.weight.requires_grad)


class FrameProduct(nn.Conv1d):
    """A convolution of few frames, without padding, as one matrix product.

    Args:
        width: channels in and out.
        taps: frames that one result sees.
    """

    paired: Tensor
    """After `lay_for_pairs` of three taps: the taps, then half of their sum and half of their sum
    with the middle one negative; shape (5, inputs, outputs)."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__(width, width, taps)
        self.register_buffer("paired", torch.empty(0), persistent=False)
        lay_by_taps(self)

    @property
    def added_bytes(self) -> int:
        """What `lay_for_pairs` needs besides the weights."""
        taps = self.kernel_size[0]
        return 2 * self.weight.nbytes // taps if taps == TAPS_IN_PAIRS else 0

    def lay_for_pairs(self) -> None:
        """Compute two results of three taps at once from now on: four products instead of six."""
        if self.kernel_size[0] != TAPS_IN_PAIRS:
            return
        left, middle, right = self.weight.detach().permute(2, 1, 0)
        both = left + right
        self.paired = torch.stack([left, middle, right, (both + middle) / 2, (both - middle) / 2])
        self.weight = nn.Parameter(self.paired[:3].permute(2, 1, 0), self.weight.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (R, T + taps - 1, W) to (R, T, W)."""
        rows, frames, width = x.shape
        if self.paired.numel() and frames % 2 == 0 and rows * (frames - 2) >= LEAST_IN_PAIRS:
            return self._pairs(x)
        taps = self.kernel_size[0]
        x = x.contiguous()
        # Neighbouring frames lie behind each other: what one result sees is one line.
        seen = (rows, frames - taps + 1, taps * width)
        windows = x.as_strided(seen, (frames * width, width, 1), x.storage_offset())
        weight = self.weight.transpose(1, 2).flatten(1)
        return F.linear(windows.reshape(-1, taps * width), weight, self.bias).view(*seen[:2], -1)

    def _pairs(self, x: Tensor) -> Tensor:
        """`forward` of three taps and an even number of frames.

        Winograd's F(2, 3): of four frames a, b, c, d and taps l, m, r the results are
        (a - c) l + s + t and s - t - (b - d) r, with s = (b + c) (l + m + r) / 2 and
        t = (c - b) (l - m + r) / 2.
        """
        rows, frames, width = x.shape
        left, _, right, total, other = self.paired
        pairs = frames // 2 - 1
        outer = (x[:, 2:] - x[:, :-2]).reshape(rows * pairs, 2, width)
        b, c = x[:, 1:-1:2], x[:, 2::2]
        common = F.linear((b + c).flatten(0, 1), total.t(), self.bias)
        apart = torch.mm((c - b).flatten(0, 1), other)
        out = x.new_empty(rows * pairs, 2, width)
        torch.add(common, apart, out=out[:, 0]).addmm_(outer[:, 0], left, alpha=-1)
        torch.sub(common, apart, out=out[:, 1]).addmm_(outer[:, 1], right)
        return out.view(rows, 2 * pairs, width)


class PaddedConv(nn.Conv1d):
    """A convolution that pads as many zeros on each side as it is told.

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
        lay_by_taps(self)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (R, inputs, T), channels last, and so is the result."""
        left, right = self.sides
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
    """One sample more in front, a copy of the second: (R, W, T) to (R, W, T + 1)."""
    return torch.cat([x[:, :, 1:2].transpose(1, 2), x.transpose(1, 2)], dim=1).transpose(1, 2)
