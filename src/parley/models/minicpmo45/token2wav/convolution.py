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
        self._pairs: Tensor | None = None

    def pair(self) -> None:
        """From now on compute two results with four products instead of six, where that is less
        work: three taps, float32, on a CPU. Takes a third more memory again than the weights.

        Source: the minimal filtering algorithm F(2, 3), Winograd 1980.
        """
        weight = self.weight.detach()
        is_fit = weight.device.type == "cpu" and weight.dtype is torch.float32
        if is_fit and self.kernel_size[0] == 3:
            first, middle, last = weight.unbind(2)
            outer = first + last
            parts = [first, (outer + middle) / 2, (outer - middle) / 2, last]
            self._pairs = torch.stack(parts).transpose(1, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Shape (R, T + taps - 1, W) to (R, T, W)."""
        rows, frames, width = x.shape
        taps = self.kernel_size[0]
        x = x.contiguous()
        if self._pairs is not None and frames % 2 == 0:
            return self._paired(x, self._pairs)
        # Neighbouring frames lie behind each other: what one result sees is one line.
        seen = (rows, frames - taps + 1, taps * width)
        windows = x.as_strided(seen, (frames * width, width, 1), x.storage_offset())
        weight = self.weight.transpose(1, 2).flatten(1)
        return F.linear(windows.reshape(-1, taps * width), weight, self.bias).view(*seen[:2], -1)

    def _paired(self, x: Tensor, pairs: Tensor) -> Tensor:
        """The same for an even number of results, from `pairs` (4, inputs, outputs)."""
        rows, frames, width = x.shape
        count = frames // 2 - 1
        # Frames 0, 1, 2 and 3 of each pair of results, (4, R, count, W).
        seen = x.as_strided(
            (4, rows, count, width), (width, frames * width, 2 * width, 1), x.storage_offset()
        )
        given = x.new_empty(4, rows, count, width)
        torch.sub(seen[0], seen[2], out=given[0])
        torch.add(seen[1], seen[2], out=given[1])
        torch.sub(seen[2], seen[1], out=given[2])
        torch.sub(seen[1], seen[3], out=given[3])
        made = torch.bmm(given.flatten(1, 2), pairs).view(4, rows, count, -1)
        out = x.new_empty(rows, count, 2, made.shape[3])
        torch.add(made[1], made[2], out=out[:, :, 0]).add_(made[0])
        torch.sub(made[1], made[2], out=out[:, :, 1]).sub_(made[3])
        out = out.view(rows, 2 * count, -1)
        return out if self.bias is None else out.add_(self.bias)


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
