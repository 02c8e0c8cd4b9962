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

from parley.models.minicpmo45.runtime.layers import PackedLinear


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
        # Neighbouring frames lie behind each other: what one result sees is one line.
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
