"""The speech decoder's layers: a small Llama over slot caches.

Letters: `S` slots, `R` rows that share a pass, `T` tokens fed in one pass, `C` cache columns per
slot, `D` width, `H` heads.

How it differs from `transformers`' Llama: attention works on preallocated slot caches in which
every row has its own first and next column, and positions are given explicitly, because a window
forgets columns without renumbering. Projections of the same input are one product (`joined`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache, rotated
from parley.models.minicpmo45.runtime.layers import RmsNorm, activation
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


class SpeechAttention(nn.Module):
    """Projections of attention."""

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
        self.self_attn = SpeechAttention(config)
        self.mlp = SpeechMlp(config)
        self.input_layernorm = RmsNorm(config.width, config.rms_eps)
        self.post_attention_layernorm = RmsNorm(config.width, config.rms_eps)

    def asked(self, x: Tensor, plan: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (R, T, heads, head width) of states (R T, D)."""
        attention = self.self_attn
        shape = (*plan.batch.positions.shape, -1, attention.head_width)
        made = torch.mm(self.input_layernorm(x), attention.matrix).view(shape)
        sizes = [attention.heads, attention.kv_heads]
        both, values = torch.split(made, [sum(sizes), attention.kv_heads], dim=2)
        query, keys = torch.split(rotated(both, plan.cos, plan.sin), sizes, dim=2)
        return query, keys, values

    def answered(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's states (R T, D), once attention has mixed its values."""
        x = torch.addmm(x, mixed.reshape(x.shape[0], -1), self.self_attn.o_proj.weight.t())
        return self.mlp(self.post_attention_layernorm(x), x)


class SpeechBackbone(nn.Module):
    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SpeechLayer(config) for _ in range(config.layers)])
        self.norm = RmsNorm(config.width, config.rms_eps)

    def forward(self, x: Tensor, plan: Pass, cache: SlotCache, attention: FusedAttention) -> Tensor:
        """Final states of new tokens; both of shape (R T, D)."""
        layer: Any
        for index, layer in enumerate(self.layers):
            query, keys, values = layer.asked(x, plan)
            cache.write_padded(index, plan.batch, keys, values)
            x = layer.answered(x, attention.padded(index, query, plan.batch, cache))
        return self.norm(x)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Where the tokens of one forward pass stand.

    Args:
        batch: its columns; prepared for the attention in use.
        cos, sin: shape (R, T, 1, head width), for `rotated`.
        masks_end: bool, shape (R,): rows that may not end with this pass.
    """

    batch: PaddedBatch
    cos: Tensor
    sin: Tensor
    masks_end: Tensor
