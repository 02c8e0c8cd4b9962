"""The speech decoder's layers: a small Llama over slot caches.

Letters: `S` slots, `R` rows that share a pass, `T` tokens fed in one pass, `C` cache columns per
slot, `D` width, `H` heads.

How it differs from `transformers`' Llama, from which the configuration is taken: attention works on
preallocated slot caches in which every row has its own first and next column, and positions are
given explicitly, because a window forgets columns without renumbering. Projections of the same
input are one product (`joined`), and keys and values of a column lie side by side: one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.activations import ACT2FN

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.caches import rotated
from parley.models.minicpmo45.runtime.norm import RmsNorm
from parley.models.minicpmo45.tts.cache import LayerCache, SpeechCache


class SpeechProjector(nn.Module):
    """Hidden states of the language model to the decoder's width."""

    def __init__(self, wide: int, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(wide, width)
        self.linear2 = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.linear2(F.relu(self.linear1(hidden)))
        return out


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

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_width = config.hidden_size // config.num_attention_heads
        inner = self.heads * self.head_width
        kv_inner = self.kv_heads * self.head_width
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_inner, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_inner, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)
        self.register_buffer("matrix", torch.empty(0), persistent=False)

    def join(self) -> None:
        """Make one matrix of the projections; call once after the weights are in place."""
        self.matrix = joined([self.q_proj, self.k_proj, self.v_proj])

    def forward(self, x: Tensor, plan: Pass, cache: LayerCache) -> Tensor:
        """Write the new tokens' keys and values into this layer's cache, then attend; `x` has
        shape (R, T, D)."""
        count, steps = x.shape[:2]
        made = F.linear(x, self.matrix).view(count, steps, -1, self.head_width)
        # Values are turned by nothing.
        turned = rotated(made, plan.cos, plan.sin)
        query = turned[:, :, : self.heads]
        cache.write(plan.rows, plan.columns, turned[:, :, self.heads :])
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
        out: Tensor = self.o_proj(read.reshape(count, steps, -1))
        return out


class SpeechMlp(nn.Module):
    """The gated feed-forward of a Llama."""

    matrix: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        wide = config.intermediate_size
        self.gate_proj = nn.Linear(config.hidden_size, wide, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, wide, bias=False)
        self.down_proj = nn.Linear(wide, config.hidden_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]
        self.register_buffer("matrix", torch.empty(0), persistent=False)

    def join(self) -> None:
        """Make one matrix of the projections; call once after the weights are in place."""
        self.matrix = joined([self.gate_proj, self.up_proj])

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.matrix).chunk(2, dim=-1)
        out: Tensor = self.down_proj(self.activation(gate) * up)
        return out


class SpeechLayer(nn.Module):
    """One Llama layer over slot caches."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config)
        self.mlp = SpeechMlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, plan: Pass, cache: LayerCache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), plan, cache)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class SpeechBackbone(nn.Module):
    """The layers and the final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SpeechLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, plan: Pass, cache: SpeechCache) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x, plan, cache.layer(number))
        out: Tensor = self.norm(x)
        return out


@dataclass(slots=True, eq=False)
class Pass:
    """Where the tokens of one forward pass stand.

    Args:
        slots: int64, shape (R,); rows: the same, shape (R, 1).
        columns: int64, shape (R, T): cache columns written.
        mask: shape (R, 1, T, columns read), added to scores: 0 or minus infinity; None: a kernel
            reads the slots where they lie.
        cos, sin: shape (R, T, all heads, head width), for `rotated`: queries, keys and values.
        whole: slots are neighbours from this one on, so that caches are read without a copy; None
            if they are not.
        reads: columns read.
        first: int64, shape (R,): the first column that a row sees.
    """

    slots: Tensor
    rows: Tensor
    columns: Tensor
    mask: Tensor | None
    cos: Tensor
    sin: Tensor
    whole: int | None
    reads: int
    first: Tensor

    @property
    def which(self) -> Tensor | slice:
        """The pass's rows of a cache."""
        if self.whole is None:
            return self.slots
        return slice(self.whole, self.whole + self.slots.shape[0])
