"""The audio encoder: log-mel frames to encoder states, states to context tokens.

Three ways of encoding exist, with different results for the same audio: whole clips with a
one-second chunk mask (chat, reference voice), whole clips with full attention (a finished user
turn), and a live stream with cached keys and values (duplex; `LiveSteps`). The layers have the
names and the arithmetic of Whisper's in `transformers`: queries are scaled before the product, keys
have no bias. Whisper itself requires 30 s, and has neither masks nor a cache.

Shapes: `N` pieces, `M` mel bins, `F` mel frames (100 per second), `C` encoder frames (50 per
second), `Da` encoder width, `H` width of the language model. Source: model.md 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.config import AudioConfig
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime.attention import FusedAttention, added
from parley.models.minicpmo45.runtime.caches import SlotCache
from parley.models.minicpmo45.runtime.layers import SelfAttention, activation


class AudioAttention(SelfAttention):
    """Attention between the frames of whole pieces."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Args:
        mask: (N or 1, 1, C, C), added to the scores; None: every frame attends to every frame.
        """
        # Scaled before the product, as in the published model: scaling inside it rounds
        # differently.
        query = self.split(self.q_proj(x) * self.head_dim**-0.5).contiguous()
        keys = self.split(self.k_proj(x)).contiguous()
        values = self.split(self.v_proj(x)).contiguous()
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=1.0)
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape))


class AudioLayer(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        heads = config.encoder_attention_heads
        self.self_attn = AudioAttention(width, heads, keys_have_bias=False)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.activation = activation(config.activation_function)
        self.fc1 = nn.Linear(width, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), mask)
        return self.think(x)

    def think(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))


class AudioEncoder(nn.Module):
    """Whisper's encoder with masks and a cache. Parameter names are those below `apm.`."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList([AudioLayer(config) for _ in range(config.encoder_layers)])
        self.layer_norm = nn.LayerNorm(width)
        self.heads = config.encoder_attention_heads
        self.head_dim = width // config.encoder_attention_heads
        self.positions = config.max_source_positions
        self.attention = FusedAttention()

    def make_cache(self, rows: int, *, is_eight_bit: bool = False) -> SlotCache:
        """Caches for live audio of `rows` conversations."""
        weight = self.conv1.weight
        return SlotCache(
            layers=len(self.layers),
            rows=rows,
            heads=self.heads,
            capacity=self.positions,
            head_dim=self.head_dim,
            dtype=weight.dtype,
            device=weight.device,
            is_eight_bit=is_eight_bit,
        )

    def front(self, mel: Tensor) -> Tensor:
        """Apply the convolutions: mel (N, M, F) to (N, C, Da)."""
        x = to_device(mel, self.conv1.weight.device).to(self.conv1.weight.dtype)
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.conv2(x))
        return x.transpose(1, 2)

    def whole(
        self,
        mel: Tensor,
        lengths: Sequence[int],
        chunk_frames: int,
    ) -> Tensor:
        """Encode whole pieces that belong together, (N, M, Fmax) to (N, Cmax, Da).

        Args:
            lengths: valid mel frames per piece.
            chunk_frames: 0 for full attention; otherwise a frame attends to its own chunk and all
                previous ones.
        """
        x = self.front(mel)
        x = x + self.embed_positions.weight[: x.shape[1]]
        mask = _whole_mask(lengths, x, chunk_frames)
        for layer in self.layers:
            x = layer(x, mask)
        return self.layer_norm(x)


def _whole_mask(lengths: Sequence[int], x: Tensor, chunk_frames: int) -> Tensor | None:
    """Additive mask (N or 1, 1, C, C), or None if nothing is masked.

    The padding test compares encoder frames with the *mel* length, which is twice as long, so
    padded frames of a batch stay partly visible, as in the published model.
    """
    frames = x.shape[1]
    padded = any(length < frames for length in lengths)
    chunked = 0 < chunk_frames < frames
    if not padded and not chunked:
        return None
    places = torch.arange(frames, device=x.device)
    hidden = torch.zeros(1, frames, frames, dtype=torch.bool, device=x.device)
    if chunked:
        hidden = hidden | (places[None, :] >= (places[:, None] // chunk_frames + 1) * chunk_frames)
    if padded:
        ends = torch.tensor(list(lengths), device=x.device)
        hidden = hidden | (places[None, None, :] >= ends[:, None, None])
    return added(~hidden, x.dtype)[:, None]
