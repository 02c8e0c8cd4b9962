"""The speech decoder's layers: a small Llama over slot caches.

Letters: `S` slots, `R` rows that share a pass, `T` tokens fed in one pass, `C` cache columns per
slot, `D` width, `H` heads.

How it differs from `transformers`' Llama, from which norms, feed-forward and configuration are
taken: attention works on preallocated slot caches in which every row has its own first and next
column, and positions are given explicitly, because a window forgets columns without renumbering.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.caches import rotated
from parley.models.minicpmo45.runtime.norm import RmsNorm


class SpeechProjector(nn.Module):
    """Hidden states of the language model to the decoder's width."""

    def __init__(self, wide: int, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(wide, width)
        self.linear2 = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.linear2(F.relu(self.linear1(hidden)))
        return out


class CausalAttention(nn.Module):
    """Causal attention of new tokens over their own slot's columns."""

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

    def forward(self, x: Tensor, plan: Pass, keys: Tensor, values: Tensor) -> Tensor:
        """Write the new tokens' keys and values, then attend.

        Args:
            x: shape (R, T, D).
            keys, values: this layer's caches, shape (S, C, H, head width); written in place.
        """
        count, steps = x.shape[:2]
        q = self.q_proj(x).view(count, steps, self.heads, self.head_width)
        k = self.k_proj(x).view(count, steps, self.kv_heads, self.head_width)
        v = self.v_proj(x).view(count, steps, self.kv_heads, self.head_width)
        both = rotated(torch.cat((q, k), dim=2), plan.cos, plan.sin)
        q, k = both[:, :, : self.heads], both[:, :, self.heads :]
        keys[plan.slots[:, None], plan.columns] = k
        values[plan.slots[:, None], plan.columns] = v
        if plan.in_place and slot_attention.fits(
            steps * self.heads // self.kv_heads, self.head_width
        ):
            read = slot_attention.attend(
                q,
                keys.transpose(1, 2),
                values.transpose(1, 2),
                plan.slots,
                first=plan.first,
                last=plan.columns,
                reads=plan.reads,
            )
            joined: Tensor = self.o_proj(read.reshape(count, steps, -1))
            return joined
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            plan.read(keys),
            plan.read(values),
            attn_mask=plan.mask,
            enable_gqa=self.kv_heads != self.heads,
        )
        made: Tensor = self.o_proj(out.transpose(1, 2).reshape(count, steps, -1))
        return made


class SpeechLayer(nn.Module):
    """One Llama layer over slot caches."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, plan: Pass, keys: Tensor, values: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), plan, keys, values)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class SpeechBackbone(nn.Module):
    """The layers and the final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SpeechLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, plan: Pass, keys: Tensor, values: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x, plan, keys[number], values[number])
        out: Tensor = self.norm(x)
        return out


@dataclass(slots=True, eq=False)
class Pass:
    """Where the tokens of one forward pass stand.

    Args:
        slots: int64, shape (R,).
        columns: int64, shape (R, T): cache columns written.
        mask: bool, shape (R, 1, T, columns read).
        cos, sin: shape (R, T, 1, head width), from `rotary`.
        whole: slots are neighbours from this one on, so that caches are read without a copy; None
            if they are not.
        reads: columns read.
        first: int64, shape (R,): the first column that a row sees.
        in_place: whether a kernel reads the slots where they lie.
    """

    slots: Tensor
    columns: Tensor
    mask: Tensor
    cos: Tensor
    sin: Tensor
    whole: int | None
    reads: int
    first: Tensor
    in_place: bool = False

    def read(self, cache: Tensor) -> Tensor:
        """Cached entries of the pass's rows, shape (R, H, columns read, head width)."""
        if self.whole is None:
            return cache[self.slots, : self.reads].transpose(1, 2)
        stop = self.whole + self.slots.shape[0]
        return cache[self.whole : stop, : self.reads].transpose(1, 2)
