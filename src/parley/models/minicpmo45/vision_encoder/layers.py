"""A layer of the vision encoder. Parameter names and arithmetic are SigLIP's.

Shapes: `B` pieces, `L` patches of a piece, `Dv` width. Source: model.md 5.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.config import VisionConfig
from parley.models.minicpmo45.runtime.activations import activation


class VisionAttention(nn.Module):
    """Attention between the patches of a piece."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.head_dim = width // self.heads
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Args:
        mask: (B, 1, L, L), added to the scores; None: no piece is padded.
        """

        def split(projected: Tensor) -> Tensor:
            return projected.view(*projected.shape[:2], self.heads, self.head_dim).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            split(self.q_proj(x)),
            split(self.k_proj(x)),
            split(self.v_proj(x)),
            attn_mask=mask,
            scale=self.head_dim**-0.5,
        )
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out


class VisionMlp(nn.Module):
    """The feed-forward of a layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.activation = activation(config.hidden_act)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class VisionLayer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = VisionMlp(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out
