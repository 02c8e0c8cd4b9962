"""The layers of both decoders, of text and of speech: Qwen3's, or a Llama's, over slot caches.

Parameter names are those of `transformers`. Positions and cache columns are given explicitly, so
that rows may forget without being renumbered.

Shapes: `B` rows, `n` new tokens of each, `W` width, `H` heads of queries, `D` head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.runtime import fused
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache, rotated
from parley.models.minicpmo45.runtime.layers import RmsNorm, activation, joined
from parley.models.minicpmo45.runtime.products import of_all

RotaryTables = tuple[Tensor, Tensor]
"""Cosines and sines of `caches.rotated`, (..., 1, D)."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder.

    Args:
        has_norms: queries and keys are normed.
        words: rows of its embedding; 0: it has none.
    """

    layers: int
    width: int
    inner_width: int
    heads: int
    key_heads: int
    head_width: int
    eps: float
    activation: str
    has_bias: bool = False
    has_norms: bool = False
    words: int = 0


class DecoderAttention(nn.Module):
    """Projections of attention, and norms of queries and keys."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        inner, key_inner = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        self.q_proj = nn.Linear(shape.width, inner, bias=shape.has_bias)
        self.k_proj = nn.Linear(shape.width, key_inner, bias=shape.has_bias)
        self.v_proj = nn.Linear(shape.width, key_inner, bias=shape.has_bias)
        self.o_proj = nn.Linear(inner, shape.width, bias=shape.has_bias)
        if shape.has_norms:
            self.q_norm = RmsNorm(shape.head_width, shape.eps)
            self.k_norm = RmsNorm(shape.head_width, shape.eps)


class DecoderMlp(nn.Module):
    """The gated feed-forward."""

    opened: Tensor | None
    """Gates and ups in one matrix; after `DecoderLayer.join`."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner_width, bias=False)
        self.down_proj = nn.Linear(shape.inner_width, shape.width, bias=False)
        self.activation = activation(shape.activation)
        self.register_buffer("opened", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.opened is None:
            gates, ups = self.gate_proj(x), self.up_proj(x)
        else:
            gates, ups = F.linear(x, self.opened).chunk(2, -1)
        return self.down_proj(self.activation(gates) * ups)


class DecoderLayer(nn.Module):
    """One layer by PyTorch's operators."""

    asks: Tensor | None
    """Projections to queries, keys and values in one matrix; after `join`."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.self_attn = DecoderAttention(shape)
        self.mlp = DecoderMlp(shape)
        self.input_layernorm = RmsNorm(shape.width, shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.eps)
        self.register_buffer("asks", None, persistent=False)

    def join(self) -> None:
        """Make one product of the projections of the same input, where they have no bias; once the
        weights are in place. Saves calls, which is what small products on a CPU cost."""
        attention, mlp = self.self_attn, self.mlp
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.asks = joined(parts)
        mlp.opened = joined([mlp.gate_proj, mlp.up_proj])

    def asked(self, x: Tensor, turn: RotaryTables) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., heads, D) of states (..., W), the first two turned."""
        attention, normed = self.self_attn, self.input_layernorm(x)
        if self.asks is None:
            parts = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
            made = torch.cat(parts, dim=-1)
        else:
            made = F.linear(normed, self.asks)
        made = made.view(*x.shape[:-1], -1, self.shape.head_width)
        heads, turned = self.shape.heads, self.shape.heads + self.shape.key_heads
        both, values = made[..., :turned, :], made[..., turned:, :]
        if self.shape.has_norms:
            query, keys = both[..., :heads, :], both[..., heads:, :]
            both = torch.cat((attention.q_norm(query), attention.k_norm(keys)), dim=-2)
        both = rotated(both, *turn)
        return both[..., :heads, :], both[..., heads:, :], values

    def answered(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's states (..., W), once attention has mixed its values (..., H, D)."""
        x = x + self.self_attn.o_proj(mixed.reshape(*x.shape[:-1], -1))
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderStack(nn.Module):
    """All layers, and the norm behind them."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.words:
            self.embed_tokens = nn.Embedding(shape.words, shape.width)
        self.layers = nn.ModuleList([DecoderLayer(shape) for _ in range(shape.layers)])
        self.norm = RmsNorm(shape.width, shape.eps)

    def forward(
        self,
        x: Tensor,
        batch: PaddedBatch,
        turn: RotaryTables,
        cache: SlotCache,
        attention: FusedAttention,
    ) -> Tensor:
        """Final states of a padded batch, (B, n, W), by fixed shapes alone.

        Args:
            batch: placed in the cache, and prepared for the attention.
        """
        if attention.is_fused:
            return self._fused(x, batch, turn, cache, attention)
        layer: Any
        for index, layer in enumerate(self.layers):
            query, keys, values = layer.asked(x, turn)
            cache.write_padded(index, batch, keys, values)
            x = layer.answered(x, attention.padded(index, query, batch, cache))
        return self.norm(x)

    def _fused(
        self,
        x: Tensor,
        batch: PaddedBatch,
        turn: RotaryTables,
        cache: SlotCache,
        attention: FusedAttention,
    ) -> Tensor:
        shape, eps = self.shape, self.shape.eps
        multiplied = partial(of_all, has_kernel=attention.has_products)
        assert batch.columns is not None
        heads = (*x.shape[:2], shape.heads, shape.head_width)
        layers: list[Any] = [*self.layers]
        following = [layer.input_layernorm.weight for layer in layers[1:]] + [self.norm.weight]
        norms: tuple[Tensor | None, Tensor | None] = (None, None)
        rows = x.flatten(0, 1)
        normed = layers[0].input_layernorm(rows)
        for index, layer in enumerate(layers):
            asks, mlp = layer.self_attn, layer.mlp
            if shape.has_norms:
                norms = (asks.q_norm.weight, asks.k_norm.weight)
            query, keys, values = multiplied(normed, asks.q_proj, asks.k_proj, asks.v_proj)
            given = (*norms, *turn, batch.columns, *cache.layer(index), eps)
            query = fused.place_heads(query, keys, values, *given)
            mixed = attention.padded(index, query.view(heads), batch, cache)
            (added,) = multiplied(mixed.reshape(rows.shape[0], -1), asks.o_proj)
            rows, normed = fused.add_norm(rows, added, layer.post_attention_layernorm.weight, eps)
            gates, ups = multiplied(normed, mlp.gate_proj, mlp.up_proj)
            (added,) = multiplied(fused.gate(gates, ups), mlp.down_proj)
            rows, normed = fused.add_norm(rows, added, following[index], eps)
        return normed.view(x.shape)
