"""Layers of the text decoder and of the speech decoder: Qwen3's or a Llama's, over slot caches.

Parameter names are those of `transformers`. In float32, norms return the same as its norms, bit for
bit; in bfloat16 they round once at the end, while those also round in between. Positions and cache
columns are passed explicitly, so that rows may forget without being renumbered.

Shapes: `B` rows, `n` new tokens of each, `N` of all, `W` width, `H` heads of queries, `D` head
width.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.config import DecoderConfig
from parley.models.minicpmo45.runtime import fused
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache, rotated
from parley.models.minicpmo45.runtime.layers import activation, joined
from parley.models.minicpmo45.runtime.pages import PagePool
from parley.models.minicpmo45.runtime.products import of_all

RotaryTables = tuple[Tensor, Tensor]
"""Cosines and sines for `caches.rotated`, of all new tokens, (N, 1, D)."""


class DecoderAttention(nn.Module):
    """Projections of attention, and norms of queries and keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, has_bias = config.hidden_size, config.attention_bias
        inner = config.num_attention_heads * config.head_dim
        key_inner = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, inner, bias=has_bias)
        self.k_proj = nn.Linear(width, key_inner, bias=has_bias)
        self.v_proj = nn.Linear(width, key_inner, bias=has_bias)
        self.o_proj = nn.Linear(inner, width, bias=has_bias)
        if config.has_norms:
            self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)


class DecoderMlp(nn.Module):
    """The gated feed-forward."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.activation = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class JoinedLayer(NamedTuple):
    """A layer's weights stored by inputs, those of the same input in one matrix. With few rows, a
    CPU spends its time on calls of modules and operators, and then on memory.

    Args:
        asks: projects to queries, keys and values. opens: projects to gates and ups.
    """

    norm: Tensor
    asks: Tensor
    answers: Tensor
    next_norm: Tensor
    opens: Tensor
    closes: Tensor


class DecoderLayer(nn.Module):
    """One layer, computed by PyTorch's operators."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.self_attn = DecoderAttention(config)
        self.mlp = DecoderMlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def joined(self) -> JoinedLayer:
        attention, mlp = self.self_attn, self.mlp
        return JoinedLayer(
            self.input_layernorm.weight,
            joined([attention.q_proj, attention.k_proj, attention.v_proj]),
            attention.o_proj.weight.t(),
            self.post_attention_layernorm.weight,
            joined([mlp.gate_proj, mlp.up_proj]),
            mlp.down_proj.weight.t(),
        )

    def asked(self, x: Tensor, turn: RotaryTables) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (N, heads, D) of states (N, W); queries and keys are rotated."""
        attention, normed = self.self_attn, self.input_layernorm(x)
        parts = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
        made = torch.cat(parts, dim=-1).view(len(x), -1, self.config.head_dim)
        heads = self.config.num_attention_heads
        turned = heads + self.config.num_key_value_heads
        both = made[:, :turned]
        if self.config.has_norms:
            query, keys = both[:, :heads], both[:, heads:]
            both = torch.cat((attention.q_norm(query), attention.k_norm(keys)), dim=1)
        both = rotated(both, *turn)
        return both[:, :heads], both[:, heads:], made[:, turned:]

    def answered(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output states (N, W) from the output of attention (N H D numbers)."""
        x = x + self.self_attn.o_proj(mixed.reshape(len(x), -1))
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderStack(nn.Module):
    """All layers and the norm after them.

    Args:
        words: rows of its embedding; 0: without an embedding.
    """

    def __init__(self, config: DecoderConfig, *, words: int = 0) -> None:
        super().__init__()
        self.config = config
        if words:
            self.embed_tokens = nn.Embedding(words, config.hidden_size)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in layers])
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.joined: list[JoinedLayer] = []

    def make_cache(
        self,
        rows: int,
        capacity: int,
        *,
        is_eight_bit: bool = False,
        pool: PagePool | None = None,
    ) -> SlotCache:
        """Caches for `rows` conversations of at most `capacity` positions."""
        config, weight = self.config, self.norm.weight
        return SlotCache(
            layers=config.num_hidden_layers,
            rows=rows,
            heads=config.num_key_value_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            dtype=weight.dtype,
            device=weight.device,
            is_eight_bit=is_eight_bit,
            pool=pool,
        )

    def join(self) -> None:
        """Join the weights of layers without bias and norms of heads, on a CPU. Called once the
        weights are loaded."""
        layers: list[Any] = [*self.layers]
        self.joined = [layer.joined() for layer in layers]

    def forward(
        self,
        x: Tensor,
        batch: PaddedBatch,
        turn: RotaryTables,
        cache: SlotCache,
        attention: FusedAttention,
    ) -> Tensor:
        """Final states of a padded batch, (B, n, W), computed with fixed shapes only.

        Args:
            batch: after `SlotCache.placed` and `FusedAttention.prepared`.
        """
        if attention.is_fused:
            return self._fused(x, batch, turn, cache, attention)
        if self.joined:
            return self._joined(x, batch, turn, cache, attention)
        rows, heads = x.flatten(0, 1), (*x.shape[:2], self.config.num_attention_heads, -1)
        layer: Any
        for index, layer in enumerate(self.layers):
            query, keys, values = layer.asked(rows, turn)
            cache.write_padded(index, batch, keys, values)
            rows = layer.answered(rows, attention.padded(index, query.view(heads), batch, cache))
        return self.norm(rows).view(x.shape)

    def _joined(
        self,
        x: Tensor,
        batch: PaddedBatch,
        turn: RotaryTables,
        cache: SlotCache,
        attention: FusedAttention,
    ) -> Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        first = config.num_attention_heads
        rows, last = x.flatten(0, 1), first + config.num_key_value_heads
        act, width = activation(config.hidden_act), (config.hidden_size,)
        for index, layer in enumerate(self.joined):
            made = torch.mm(F.rms_norm(rows, width, layer.norm, eps), layer.asks)
            made = made.view(len(rows), -1, config.head_dim)
            turned = rotated(made[:, :last], *turn)
            cache.write_padded(index, batch, turned[:, first:], made[:, last:])
            query = turned[:, :first].view(*x.shape[:2], first, -1)
            mixed = attention.padded(index, query, batch, cache).reshape(len(rows), -1)
            rows = torch.addmm(rows, mixed, layer.answers)
            opened = torch.mm(F.rms_norm(rows, width, layer.next_norm, eps), layer.opens)
            gates, ups = opened.chunk(2, -1)
            rows = torch.addmm(rows, act(gates).mul_(ups), layer.closes)
        return F.rms_norm(rows, width, self.norm.weight, eps).view(x.shape)

    def _fused(
        self,
        x: Tensor,
        batch: PaddedBatch,
        turn: RotaryTables,
        cache: SlotCache,
        attention: FusedAttention,
    ) -> Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        multiplied = partial(of_all, has_kernel=attention.has_products)
        assert batch.columns is not None
        heads = (*x.shape[:2], config.num_attention_heads, config.head_dim)
        layers: list[Any] = [*self.layers]
        following = [layer.input_layernorm.weight for layer in layers[1:]] + [self.norm.weight]
        norms: tuple[Tensor | None, Tensor | None] = (None, None)
        rows = x.flatten(0, 1)
        normed = layers[0].input_layernorm(rows)
        for index, layer in enumerate(layers):
            asks, mlp = layer.self_attn, layer.mlp
            if config.has_norms:
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
