"""The vision encoder: patches to features, features to context tokens.

The layers have SigLIP's names and arithmetic. We differ from `SiglipVisionModel` in the position
embedding (NaViT style: the table is read at the patch's position relative to the whole picture), in
the absence of a pooling head, and in the resampler, a perceiver that turns any number of patches
into `query_num` tokens.

Shapes: `B` pieces of one size, `L` patches of a piece (rows * columns), `Dv` vision width, `H`
width of the language model, `P` patch side in pixels. Source: model.md 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.config import VisionConfig
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.runtime.layers import SelfAttention, activation

CAPTURED_PIECES: Final = 2
"""Maximum number of pieces of a captured forward. Larger ones keep a card busy for longer than the
host takes to launch them (10 ms for 4 pieces, 5 ms for 858 launches on an H200, calculated), so a
graph would only take memory."""

KEPT_SIZES: Final = 64
"""Maximum number of piece sizes whose positions stay on the device. Those of 1,024 patches take 0.1
MiB, so they are not part of the memory plan."""


class KeptTensors:
    """Tensors by the size of a piece, created once and kept on the device.

    The first ones are never dropped, because captured graphs read them in place; beyond
    `KEPT_SIZES` the newest one is dropped.

    Args:
        make: returns the tensor for a number of rows and columns, on the host.
    """

    def __init__(self, make: Callable[[int, int], Tensor]) -> None:
        self._make = make
        self._kept: dict[tuple[int, int, torch.device], Tensor] = {}

    def of(
        self, size: tuple[int, int], device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        key = (*size, device)
        if key not in self._kept:
            if len(self._kept) == KEPT_SIZES:
                self._kept.popitem()
            self._kept[key] = self._make(*size).to(device=device, dtype=dtype)
        return self._kept[key]


def patch_positions(rows: int, columns: int, table_side: int) -> Tensor:
    """Row-major indices into the position table, int64, shape (rows * columns,).

    The float32 steps of `arange` and the bucket borders are part of the published behaviour:
    computed in any other way, some ids change by one (model.md 1.1). Always on the CPU.
    """
    borders = torch.arange(1 / table_side, 1.0, 1 / table_side)

    def buckets(count: int) -> Tensor:
        step = float(1 / torch.tensor(count, dtype=torch.int32))
        places = torch.arange(0, 1 - 1e-6, step)
        return torch.bucketize(places, borders, right=True)

    return (buckets(rows)[:, None] * table_side + buckets(columns)).flatten()


class VisionAttention(SelfAttention):
    """Attention between the patches of a piece."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(
            self.split(self.q_proj(x)),
            self.split(self.k_proj(x)),
            self.split(self.v_proj(x)),
            scale=self.head_dim**-0.5,
        )
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape))


class VisionMlp(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.activation = activation(config.hidden_act)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.self_attn = VisionAttention(width, config.num_attention_heads)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = VisionMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class _Embeddings(nn.Module):
    """Patch projection plus the position table; the lookup happens in `VisionTower`."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        side = config.patch_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, config.hidden_size, kernel_size=side, stride=side
        )
        self.position_embedding = nn.Embedding((config.image_size // side) ** 2, config.hidden_size)


class _Encoder(nn.Module):
    def __init__(self, config: VisionConfig, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([VisionLayer(config) for _ in range(layers)])


class VisionTower(nn.Module):
    """Patches to features. Parameter names are the checkpoint's below `vpm.`."""

    def __init__(self, config: VisionConfig, *, drop_last_layer: bool = False) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.encoder = _Encoder(config, config.num_hidden_layers - int(drop_last_layer))
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        side = config.image_size // config.patch_size
        self._places = KeptTensors(partial(patch_positions, table_side=side))

    def embed(self, pixels: Tensor, size: tuple[int, int]) -> Tensor:
        """Pixels (B, 3, P, L * P) to patch plus position embeddings (B, L, Dv)."""
        weight = self.embeddings.patch_embedding.weight
        patches = self.embeddings.patch_embedding(pixels.to(weight.dtype))
        # Patches become dense rows: every layer's sums and norms would copy strided ones.
        patches = patches.flatten(2).transpose(1, 2).contiguous()
        return patches + self.embeddings.position_embedding(self._places.of(size, patches.device))

    def forward(self, pixels: Tensor, size: tuple[int, int]) -> Tensor:
        """Features after the final norm, (B, L, Dv)."""
        x = self.embed(pixels, size)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class Resampler(nn.Module):
    """Features of one piece to `query_num` context tokens. Parameter names are the checkpoint's
    below `resampler.`.

    Positions are added to the keys only, and `proj` is a right factor, not a Linear.
    """

    def __init__(self, *, queries: int, width: int, vision_width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(queries, width))
        self.proj = nn.Parameter(torch.empty(width, width))
        self.kv_proj = nn.Linear(vision_width, width, bias=False)
        # Stores the parameters under the checkpoint's names; `attention` does the arithmetic.
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_q = nn.LayerNorm(width, eps=1e-6)
        self.ln_kv = nn.LayerNorm(width, eps=1e-6)
        self.ln_post = nn.LayerNorm(width, eps=1e-6)
        self.heads = heads
        self._waves = KeptTensors(partial(_waves, width=width))

    def attention(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Features (B, L, Dv) to attended queries (B, query_num, H), before the last norm."""
        keyed = self.ln_kv(self.kv_proj(features))
        batch, _, width = keyed.shape
        weights = self.attn.in_proj_weight.chunk(3)
        biases = self.attn.in_proj_bias.chunk(3)
        query = F.linear(self.ln_q(self.query), weights[0], biases[0])
        keys = F.linear(keyed + self._positions(size, keyed), weights[1], biases[1])
        values = F.linear(keyed, weights[2], biases[2])

        def split(x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

        attended = F.scaled_dot_product_attention(
            split(query[None]).expand(batch, -1, -1, -1), split(keys), split(values)
        )
        attended = attended.transpose(1, 2).reshape(batch, -1, width)
        return self.attn.out_proj(attended)

    def _positions(self, size: tuple[int, int], like: Tensor) -> Tensor:
        """Waves of the column, then of the row; (rows * columns, H)."""
        waves = self._waves.of(size, like.device, like.dtype)
        across, down = waves[: size[1]].expand(*size, -1), waves[: size[0], None].expand(*size, -1)
        return torch.cat((across, down), -1).flatten(0, 1)

    def forward(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Context tokens (B, query_num, H)."""
        return self.ln_post(self.attention(features, size)) @ self.proj


def _waves(rows: int, columns: int, *, width: int) -> Tensor:
    """Sines and cosines of the positions on either axis, (max(rows, columns), H / 2)."""
    quarter = width // 4
    omega = 1.0 / 10000 ** (np.arange(quarter, dtype=np.float32) / (width / 2 / 2.0))
    angles = np.arange(max(rows, columns), dtype=np.float32)[:, None] * omega
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    return torch.from_numpy(waves.astype(np.float32))


class PictureEncoder:
    """Encodes pieces of any number of pictures to context tokens; pieces of one size together.

    Args:
        batch: maximum number of pieces of a forward.
        graphs: captures forwards of few pieces; None captures nothing.
    """

    def __init__(
        self,
        tower: VisionTower,
        resampler: Resampler,
        *,
        batch: int,
        graphs: GraphRunner | None = None,
    ) -> None:
        self.tower = tower
        self.resampler = resampler
        self.batch = batch
        self._graphs = graphs or GraphRunner(tower.post_layernorm.weight.device)

    def features(self, patches: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Tower output (B, L, Dv) of pieces of one size."""
        weight = self.tower.post_layernorm.weight
        return self.tower(torch.stack(list(patches)).to(weight.device, weight.dtype), size)

    def tokens(self, patches: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Tokens (B, query_num, H) of pieces (3, P, L * P) of one size, in groups of `batch`
        pieces."""
        if len(patches) <= CAPTURED_PIECES and self._graphs.is_active:
            return self._step(torch.stack(list(patches)), size)
        starts = range(0, len(patches), self.batch)
        groups = [patches[first : first + self.batch] for first in starts]
        made = [self.resampler(self.features(group, size), size) for group in groups]
        return made[0] if len(made) == 1 else torch.cat(made)

    def capture(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Capture forwards of few pieces of these sizes."""
        if not self._graphs.is_active:
            return
        side = int(self.tower.embeddings.patch_embedding.kernel_size[0])
        weight = self.tower.post_layernorm.weight
        for rows, columns in sorted(set(sizes), reverse=True):
            for count in range(CAPTURED_PIECES, 0, -1):
                pixels = weight.new_zeros(count, 3, side, rows * columns * side)
                self._step(pixels, (rows, columns))

    def _step(self, pixels: Tensor, size: tuple[int, int]) -> Tensor:
        """Tokens of pieces (B, 3, P, L * P) of one size."""
        weight = self.tower.post_layernorm.weight

        def run(pixels: Tensor) -> tuple[Tensor, ...]:
            return (self.resampler(self.tower(pixels.to(weight.dtype), size), size),)

        (tokens,) = self._graphs.run("picture", (pixels.shape[0], size), run, [pixels])
        return tokens
