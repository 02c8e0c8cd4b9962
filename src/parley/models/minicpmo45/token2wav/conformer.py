"""The flow's encoder: converts speech tokens to frames at twice their rate.

Letters: `R` rows (conversations) in a call, `T` tokens that become frames, `C` history columns of
the token-rate layers (the frame-rate layers have their own), `W` width, `H` heads.

A row's history is right-aligned: the newest entry is in the last column, and columns before the
row's history are masked. So rows with different histories share one table of distances, and a
distance is always (query column - key column), even across a gap left by trimming.

Differences from a textbook conformer: no macaron, no convolution module; look-ahead and up-sampling
layers around plain pre-norm attention blocks with relative positions. Source: speech.md 3.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.convolution import FrameProduct
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD

LEFT_FRAMES = 2
"""Number of past frames that the second look-ahead convolution needs."""

UP_FRAMES = 4
"""Number of past frames that the up-sampling convolution needs."""

_LONGEST_DISTANCE = 1024
"""More than any call needs: it reads at most 602 frames, or 502 new ones without history."""


class Past(NamedTuple):
    """History of the layers of one rate.

    Args:
        entries: keys and values, shape (2, layers, slots, H, C, head width), right-aligned.
        counts: valid columns per row, int64, shape (R,).
        rows: the rows among the slots.
    """

    entries: Tensor
    counts: Tensor
    rows: Tensor | slice


class AttentionHistory(NamedTuple):
    """History of the rows of one call.

    Args:
        tokens, frames: of the token-rate and the frame-rate layers.
        left: shape (R, 2, W); up: shape (R, 4, W).
    """

    tokens: Past
    frames: Past
    left: Tensor
    up: Tensor


class Encoded(NamedTuple):
    """Results of a call, which are not stored yet.

    Args:
        frames: shape (R, 2 T, W).
        token_entries, frame_entries: new keys and values, shape (2, layers, R, H, T or 2 T, head
            width).
        left, up: the convolutions' next past.
    """

    frames: Tensor
    token_entries: Tensor
    frame_entries: Tensor
    left: Tensor
    up: Tensor


class Embed(nn.Module):
    """Projection, norm, and the square root of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * math.sqrt(x.shape[-1])


class LookAhead(nn.Module):
    """Three tokens of future and two of past for every token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = FrameProduct(width, LOOK_AHEAD + 1)
        self.conv2 = FrameProduct(width, LEFT_FRAMES + 1)

    def forward(self, x: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Shape (R, T + 3, W) in, (R, T, W) out, and the next past."""
        y = F.leaky_relu(self.conv1(x), 0.01)
        y = torch.cat([left, y], dim=1)
        return x[:, :-LOOK_AHEAD] + self.conv2(y), y[:, -LEFT_FRAMES:]


class Upsample(nn.Module):
    """Repeats every token, and smooths the result by a causal convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = FrameProduct(width, UP_FRAMES + 1)

    def forward(self, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cat([up, x.repeat_interleave(2, dim=1)], dim=1)
        return self.conv(y), y[:, -UP_FRAMES:]


class RelativeAttention(nn.Module):
    """`score(i, j) = [(q_i + u) k_j + (q_i + v) P(i - j)] / sqrt(head width)`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, self.head_width))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, self.head_width))
        self._kept: Tensor | None = None

    def distances(self, oldest: int, newest: int) -> Tensor:
        """Projected codes of the distances `oldest` down to `newest`, (H, head width, count)."""
        weight, reach = self.pos_bias_u, _LONGEST_DISTANCE
        if self._kept is None or self._kept.device != weight.device:
            codes = distance_codes(reach, -reach, weight.numel(), weight.device)
            projected = self.linear_pos(codes.to(weight.dtype))
            self._kept = projected.view(-1, self.heads, self.head_width).permute(1, 2, 0)
        return self._kept[:, :, reach - oldest : reach - newest + 1]

    def forward(self, x: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Attend over past and new entries.

        Args:
            x: shape (R, T, W).
            past: this layer's keys and values, shape (2, R, H, C, head width).
            mask: bool, shape (R, 1, 1, C + T): valid columns.

        Returns:
            Shape (R, T, W), and the new entries, (2, R, H, T, head width).
        """
        shape = (*x.shape[:2], self.heads, self.head_width)
        q = self.linear_q(x).view(shape)
        k = self.linear_k(x).view(shape).transpose(1, 2)
        v = self.linear_v(x).view(shape).transpose(1, 2)
        new = torch.stack([k, v])
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        count, columns = x.shape[1], k.shape[2]
        codes = self.distances(columns - 1, -(count - 1))
        raw = torch.matmul((q + self.pos_bias_v).transpose(1, 2), codes).contiguous()
        bias = _shifted(raw, columns) / math.sqrt(self.head_width)
        bias = bias.masked_fill(~mask, -torch.inf)
        u = (q + self.pos_bias_u).transpose(1, 2)
        out = F.scaled_dot_product_attention(u, k, v, attn_mask=bias)
        return self.linear_out(out.transpose(1, 2).flatten(2)), new


def distance_codes(oldest: int, newest: int, width: int, device: torch.device) -> Tensor:
    """Interleaved sine/cosine codes of the distances `oldest` down to `newest`, (count, width)."""
    distances = torch.arange(oldest, newest - 1, -1, dtype=torch.float32, device=device)
    rates = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float32, device=device) * -(math.log(10_000) / width)
    )
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _shifted(raw: Tensor, columns: int) -> Tensor:
    """Row i of the result starts at column `T - 1 - i` of row i of `raw`: a view, no copy."""
    rows, heads, count, wide = raw.shape
    return raw.as_strided(
        (rows, heads, count, columns),
        (heads * count * wide, count * wide, wide - 1, 1),
        raw.storage_offset() + count - 1,
    )


class ConformerFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, inner)
        self.w_2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(F.silu(self.w_1(x)))


class ConformerBlock(nn.Module):
    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        width = shape.width
        self.self_attn = RelativeAttention(width, shape.heads)
        self.feed_forward = ConformerFeedForward(width, shape.inner)
        self.norm_mha = nn.LayerNorm(width, eps=1e-12)
        self.norm_ff = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        y, new = self.self_attn(self.norm_mha(x), past, mask)
        x = x + y
        return x + self.feed_forward(self.norm_ff(x)), new


class ConformerEncoder(nn.Module):
    """Look-ahead, token-rate blocks, up-sampling, frame-rate blocks."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        width = shape.width
        self.embed = Embed(width)
        self.pre_lookahead_layer = LookAhead(width)
        self.encoders = nn.ModuleList([ConformerBlock(shape) for _ in range(shape.blocks)])
        self.up_layer = Upsample(width)
        self.up_embed = Embed(width)
        self.up_encoders = nn.ModuleList([ConformerBlock(shape) for _ in range(shape.up_blocks)])
        self.after_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *, is_last: bool, history: AttentionHistory) -> Encoded:
        """Encode the next tokens of every row.

        Args:
            x: token embeddings, shape (R, T + 3, W); the last piece has no look-ahead: (R, T, W).
        """
        x = self.embed(x)
        if is_last:
            x = F.pad(x, (0, 0, 0, LOOK_AHEAD))
        x, left = self.pre_lookahead_layer(x, history.left)
        x, token_entries = _through(self.encoders, x, history.tokens)
        x, up = self.up_layer(x, history.up)
        x, frame_entries = _through(self.up_encoders, self.up_embed(x), history.frames)
        return Encoded(self.after_norm(x), token_entries, frame_entries, left, up)


def _through(blocks: nn.ModuleList, x: Tensor, past: Past) -> tuple[Tensor, Tensor]:
    reads = past.entries.shape[-2]
    columns = torch.arange(reads + x.shape[1], device=x.device)
    mask = (columns >= (reads - past.counts)[:, None])[:, None, None]
    entries: list[Tensor] = []
    for number, block in enumerate(blocks):
        x, new = block(x, past.entries[:, number, past.rows], mask)
        entries.append(new)
    return x, torch.stack(entries, dim=1)
