"""A layer of the audio encoder.

Parameter names and arithmetic are those of Whisper's encoder as `transformers` has it: queries are
scaled before the product, keys have no bias. `forward` is for whole clips; the live stream's
attention over slot caches is in `network.py`.

Shapes: `N` pieces, `C` encoder frames, `Da` width. Source: model.md 7.1.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.config import AudioConfig
from parley.models.minicpmo45.runtime.activations import activation


class AudioAttention(nn.Module):
    """Attention between the frames of whole pieces."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.heads = config.encoder_attention_heads
        self.head_dim = width // self.heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def split(self, projected: Tensor) -> Tensor:
        """(N, C, Da) to (N, heads, C, head width)."""
        return projected.view(*projected.shape[:2], self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Args:
        mask: (N or 1, 1, C, C), added to the scores; None: every frame sees every frame.
        """
        # Scaled before the product, as the published model is: inside it rounds otherwise.
        query = self.split(self.q_proj(x) * self.head_dim**-0.5).contiguous()
        keys = self.split(self.k_proj(x)).contiguous()
        values = self.split(self.v_proj(x)).contiguous()
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=1.0)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out


class AudioLayer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.self_attn = AudioAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.activation = activation(config.activation_function)
        self.fc1 = nn.Linear(width, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), mask)
        return self.think(x)

    def think(self, x: Tensor) -> Tensor:
        """The feed-forward half."""
        out: Tensor = x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))
        return out
