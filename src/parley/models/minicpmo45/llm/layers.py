"""A layer of the language model: the modules that hold its weights.

Parameter names and arithmetic are those of Qwen3. Attention over slot caches is in `network.py`.

Source: model.md 9.
"""

from __future__ import annotations

from torch import Tensor, nn

from parley.models.minicpmo45.config import LanguageConfig
from parley.models.minicpmo45.runtime.activations import activation
from parley.models.minicpmo45.runtime.norm import RmsNorm


class LanguageAttention(nn.Module):
    """The projections of attention, and the norms of queries and keys."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, has_bias = config.hidden_size, config.attention_bias
        inner = config.num_attention_heads * self.head_dim
        kv_inner = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, inner, bias=has_bias)
        self.k_proj = nn.Linear(width, kv_inner, bias=has_bias)
        self.v_proj = nn.Linear(width, kv_inner, bias=has_bias)
        self.o_proj = nn.Linear(inner, width, bias=has_bias)
        self.q_norm = RmsNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RmsNorm(self.head_dim, config.rms_norm_eps)


class LanguageMlp(nn.Module):
    """The gated feed-forward."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        width, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, wide, bias=False)
        self.up_proj = nn.Linear(width, wide, bias=False)
        self.down_proj = nn.Linear(wide, width, bias=False)
        self.activation = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class LanguageLayer(nn.Module):
    """Everything of a layer that has weights."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.self_attn = LanguageAttention(config)
        self.mlp = LanguageMlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
