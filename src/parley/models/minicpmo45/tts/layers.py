"""The speech decoder's layers: a small Llama over slot caches.

Letters: `S` slots, `R` rows that share a pass, `T` tokens fed in one pass, `C` cache columns per
slot, `D` width, `H` heads.

How it differs from `transformers`' Llama: attention works on preallocated slot caches in which
every row has its own first and next column, and positions are given explicitly, because a window
forgets columns without renumbering. Projections of the same input are one product (`joined`), and
keys and values of a column lie side by side: one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.caches import rotated
from parley.models.minicpmo45.runtime.layers import RmsNorm, activation
from parley.models.minicpmo45.tts.cache import LayerCache, SpeechCache
from parley.models.minicpmo45.tts.config import SpeechConfig


class SpeechProjector(nn.Module):
    """Hidden states of the language model to the decoder's width."""

    def __init__(self, wide: int, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(wide, width)
        self.linear2 = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear2(F.relu(self.linear1(hidden)))


def joined(parts: Sequence[nn.Linear]) -> Tensor:
    """One matrix for several projections of the same input, whose weights become parts of it."""
    matrix = torch.cat([part.weight.detach() for part in parts])
    sizes = [part.weight.shape[0] for part in parts]
    for part, weight in zip(parts, torch.split(matrix, sizes), strict=True):
        part.weight = nn.Parameter(weight, requires_grad=False)
    return matrix


class CausalAttention(nn.Module):
    """Causal attention of new tokens over their own slot's columns."""

    matrix: Tensor
    """Of queries, keys and values, inputs first."""

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_width = config.head_width
        inner = self.heads * self.head_width
        kv_inner = self.kv_heads * self.head_width
        self.q_proj = nn.Linear(config.width, inner, bias=False)
        self.k_proj = nn.Linear(config.width, kv_inner, bias=False)
        self.v_proj = nn.Linear(config.width, kv_inner, bias=False)
        self.o_proj = nn.Linear(inner, config.width, bias=False)
        self.register_buffer("matrix", torch.empty(0), persistent=False)

    def join(self) -> None:
        """Make one matrix of the projections; call once after the weights are in place."""
        self.matrix = joined([self.q_proj, self.k_proj, self.v_proj]).t()

    def forward(self, x: Tensor, residual: Tensor, plan: Pass, cache: LayerCache) -> Tensor:
        """Write the new tokens' keys and values into this layer's cache, then attend; the result is
        added to `residual`. All have shape (R T, D)."""
        made = torch.mm(x, self.matrix).view(x.shape[0], -1, self.head_width)
        # Values are turned by nothing.
        turned = rotated(made, plan.cos, plan.sin)
        query, entries = torch.split(turned, [self.heads, 2 * self.kv_heads], dim=1)
        cache.write(plan.places, entries)
        query = query.view(*plan.shape, self.heads, self.head_width)
        if plan.mask is None:
            keys, values, scales = cache.in_place()
            read = slot_attention.attend(
                query,
                keys,
                values,
                plan.slots,
                first=plan.first,
                last=plan.columns,
                reads=plan.reads,
                scales=scales,
            )
        else:
            keys, values = cache.read(plan.which, plan.reads)
            read = F.scaled_dot_product_attention(
                query.transpose(1, 2),
                keys,
                values,
                attn_mask=plan.mask,
                enable_gqa=self.kv_heads != self.heads,
            ).transpose(1, 2)
        return torch.addmm(residual, read.reshape(x.shape[0], -1), self.o_proj.weight.t())


class SpeechMlp(nn.Module):
    """The gated feed-forward of a Llama."""

    matrix: Tensor
    """Of gates and values, inputs first."""

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        wide = config.inner_width
        self.gate_proj = nn.Linear(config.width, wide, bias=False)
        self.up_proj = nn.Linear(config.width, wide, bias=False)
        self.down_proj = nn.Linear(wide, config.width, bias=False)
        self.activation = activation(config.hidden_act)
        self.register_buffer("matrix", torch.empty(0), persistent=False)

    def join(self) -> None:
        """Make one matrix of the projections; call once after the weights are in place."""
        self.matrix = joined([self.gate_proj, self.up_proj]).t()

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """The result is added to `residual`."""
        gate, up = torch.mm(x, self.matrix).chunk(2, dim=-1)
        wide = self.activation(gate).mul_(up)
        return torch.addmm(residual, wide, self.down_proj.weight.t())


class SpeechLayer(nn.Module):
    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config)
        self.mlp = SpeechMlp(config)
        self.input_layernorm = RmsNorm(config.width, config.rms_eps)
        self.post_attention_layernorm = RmsNorm(config.width, config.rms_eps)

    def forward(self, x: Tensor, plan: Pass, cache: LayerCache) -> Tensor:
        x = self.self_attn(self.input_layernorm(x), x, plan, cache)
        return self.mlp(self.post_attention_layernorm(x), x)


class SpeechBackbone(nn.Module):
    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SpeechLayer(config) for _ in range(config.layers)])
        self.norm = RmsNorm(config.width, config.rms_eps)

    def forward(self, x: Tensor, plan: Pass, cache: SpeechCache) -> Tensor:
        """Final states of new tokens; both of shape (R T, D)."""
        for layer, part in zip(self.layers, cache.layers, strict=True):
            x = layer(x, plan, part)
        return self.norm(x)


@dataclass(slots=True, eq=False)
class Pass:
    """Where the tokens of one forward pass stand.

    Args:
        slots: int64, shape (R,).
        columns: int64, shape (R, T): cache columns written.
        places: int64, shape (R T,): the same, counted over all slots.
        mask: shape (R, 1, T, columns read), added to scores: 0 or minus infinity; None: a kernel
            reads the slots where they lie.
        cos, sin: shape (R T, all heads, head width), for `rotated`: queries, keys and values.
        which: rows of a cache; a slice where the slots are neighbours, which is read without a
            copy.
        reads: columns read.
        first: int64, shape (R,): the first column that a row sees.
        masks_end: bool, shape (R,): rows that may not end with this pass.
    """

    slots: Tensor
    columns: Tensor
    places: Tensor
    mask: Tensor | None
    cos: Tensor
    sin: Tensor
    which: Tensor | slice
    reads: int
    first: Tensor
    masks_end: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, tokens = self.columns.shape
        return rows, tokens
