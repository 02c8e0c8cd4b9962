"""The audio encoder: log-mel frames to encoder states, states to context tokens.

Three ways of encoding exist, with different results for the same sound: whole clips with a
one-second chunk mask (chat, reference voice), whole clips with full attention (a finished user
turn), and a live stream with cached keys and values (duplex). The layers have
the names and the arithmetic of Whisper's in `transformers`: queries are scaled before the product,
keys have no bias. Whisper itself insists on 30 s, and has neither masks nor a cache.

Shapes: `N` pieces, `M` mel bins, `F` mel frames (100 per second), `C` encoder frames (50 per
second), `Da` encoder width, `H` width of the language model. Source: model.md 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.audio_encoder.mel import (
    PIECE_SAMPLES,
    Floor,
    MelExtractor,
    Samples,
    encoder_frames,
)
from parley.models.minicpmo45.config import AudioConfig
from parley.models.minicpmo45.runtime.attention import FusedAttention
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache, Span
from parley.models.minicpmo45.runtime.layers import activation


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
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape))


class AudioLayer(nn.Module):
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
        return x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))


class FixedSteps(Protocol):
    """Live chunks of all rows in one step of fixed shape: `live_steps.LiveSteps`."""

    def takes(self, count: int) -> bool:
        """True if chunks of `count` kept frames run here."""
        ...

    def run(self, mel: Tensor, spans: Sequence[Span], kept: tuple[int, int]) -> Tensor:
        """States (N, C, Da) of a chunk (N, M, F)."""
        ...


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
        """Caches for live sound of `rows` conversations."""
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
        """Mel (N, M, F) through the convolutions to (N, C, Da)."""
        x = mel.to(self.conv1.weight.device, self.conv1.weight.dtype)
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
            chunk_frames: 0 for full attention; else a frame sees its own chunk and all before.
        """
        x = self.front(mel)
        x = x + self.embed_positions.weight[: x.shape[1]]
        mask = _whole_mask(lengths, x, chunk_frames)
        for layer in self.layers:
            x = layer(x, mask)
        return self.layer_norm(x)

    def live(
        self,
        mel: Tensor,
        rows: Sequence[int],
        cache: SlotCache,
        *,
        trim: tuple[int, int],
        steps: FixedSteps | None = None,
    ) -> tuple[Tensor, list[Span]]:
        """Encode the next chunk of several streams, (N, M, F) to (N, C, Da), extending their cache.

        Every new frame sees everything cached and its own chunk in both directions. The rows'
        lengths do not change: `cache.commit` the returned spans when the chunk counts.

        Args:
            rows: cache row of each stream.
            trim: encoder frames to cut off left and right after the convolutions.
            steps: runs chunks of all rows together; None: row by row.
        """
        frames = encoder_frames(mel.shape[2])
        left, right = trim
        right = 0 if left + right >= frames else right
        count = frames - left - right
        spans = [Span(row, cache.lengths[row], count) for row in rows]
        if steps is not None and steps.takes(count):
            return steps.run(mel, spans, (left, frames - right)), spans
        x = self.front(mel)[:, left : frames - right]
        last = self.positions - 1
        places = torch.tensor(
            [[min(span.start + step, last) for step in range(count)] for span in spans]
        )
        x = x + self.embed_positions(places.to(x.device))
        for index, layer in enumerate(self.layers):
            x = self.live_layer(index, layer, x, spans, cache, None)
        return self.layer_norm(x), spans

    def live_layer(
        self,
        index: int,
        layer: Any,
        x: Tensor,
        spans: Sequence[Span],
        cache: SlotCache,
        batch: PaddedBatch | None,
    ) -> Tensor:
        """A layer's states (N, C, Da), by one launch for a batch, or row by row for spans."""
        attention = layer.self_attn
        normed = layer.self_attn_layer_norm(x)
        query = attention.split(attention.q_proj(normed))
        keys = attention.split(attention.k_proj(normed))
        values = attention.split(attention.v_proj(normed))
        if batch is not None:
            cache.write_padded(index, batch, keys.transpose(1, 2), values.transpose(1, 2))
            heard = self.attention.padded(index, query.transpose(1, 2), batch, cache)
            heard = heard.transpose(1, 2)
        else:
            heard = torch.empty_like(query)
            for place, span in enumerate(spans):
                cache.write(index, span, keys[place], values[place])
                seen = cache.view(index, span.row, span.end)
                heard[place] = self.attention.one(query[place], *seen, mask=None)
        return layer.think(x + attention.out_proj(heard.transpose(1, 2).reshape(*x.shape)))


def _whole_mask(lengths: Sequence[int], x: Tensor, chunk_frames: int) -> Tensor | None:
    """Additive mask (N or 1, 1, C, C), or None where nothing is masked.

    The padding test compares encoder frames with the *mel* length, which is twice as long, so
    padded frames of a batch stay visible in part. That is how the published model was run.
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
    mask = torch.zeros(hidden.shape, dtype=x.dtype, device=x.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]


class AudioProjection(nn.Module):
    """Encoder width to the language model's. Names as below `audio_projection_layer.`."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inner, width)
        self.linear2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.relu(self.linear1(x)))


class SoundEncoder:
    """Sound to context tokens, whole or live."""

    def __init__(
        self,
        encoder: AudioEncoder,
        projection: AudioProjection,
        extractor: MelExtractor,
        *,
        pool_step: int,
        chunk_frames: int,
    ) -> None:
        self.encoder = encoder
        self.projection = projection
        self.extractor = extractor
        self.pool_step = pool_step
        self.chunk_frames = chunk_frames

    def pool(self, states: Tensor) -> Tensor:
        """Encoder states (N, C, Da) to tokens (N, C // pool_step, H); a remainder is dropped."""
        projected = self.projection(states)
        if states.shape[1] < self.pool_step:
            return projected[:, :0]
        return F.avg_pool1d(projected.transpose(1, 2), self.pool_step).transpose(1, 2)

    def pieces(self, clips: Sequence[Samples], floor: Floor = "dynamic") -> list[Tensor]:
        """Features of clips, cut every 30 s; (M, f) each."""
        return [
            self.extractor.whole(clip[first : first + PIECE_SAMPLES], floor)
            for clip in clips
            for first in range(0, max(1, len(clip)), PIECE_SAMPLES)
        ]

    def encode_pieces(
        self, mels: Sequence[Tensor], *, chunked: bool, longest: int | None = None
    ) -> list[Tensor]:
        """Tokens (n, H) per piece; the pieces are one batch, padded to the longest.

        Args:
            longest: pad to this many mel frames instead, so that a long request may be encoded in
                several calls with the result of one.
        """
        if not mels:
            return []
        lengths = [int(mel.shape[1]) for mel in mels]
        longest = max(lengths) if longest is None else longest
        if longest == 0:
            width = self.projection.linear2.out_features
            weight = self.projection.linear2.weight
            return [torch.zeros(0, width, dtype=weight.dtype, device=weight.device) for _ in mels]
        batch = torch.zeros(len(mels), mels[0].shape[0], longest)
        for index, mel in enumerate(mels):
            batch[index, :, : mel.shape[1]] = mel
        states = self.encoder.whole(batch, lengths, self.chunk_frames if chunked else 0)
        tokens = self.pool(states)
        return [
            tokens[index, : encoder_frames(length) // self.pool_step]
            for index, length in enumerate(lengths)
        ]

    def hear(self, clips: Sequence[Samples], *, chunked: bool) -> Tensor:
        """All tokens of the clips of one request, in order, (n, H)."""
        return torch.cat(self.encode_pieces(self.pieces(clips), chunked=chunked))

    def is_full(self, cached_frames: int, mel_frames: int) -> bool:
        """True if a live row's cache must be emptied before the next chunk, because it would reach
        the last position. Counted before trimming. Source: model.md 7.3.
        """
        return cached_frames + encoder_frames(mel_frames) >= self.encoder.positions

    def hear_live(
        self,
        mels: Sequence[Tensor],
        rows: Sequence[int],
        cache: SlotCache,
        *,
        prefixes: Sequence[int],
        suffixes: Sequence[int],
        steps: FixedSteps | None = None,
    ) -> tuple[list[Tensor], list[Span]]:
        """Tokens (n, H) of the next chunk of several live streams.

        Chunks of one shape go through the encoder together. The cache's lengths do not change:
        `cache.commit` the returned spans when the chunks count.

        Args:
            prefixes, suffixes: redundant mel frames at the left and right of each chunk.
            steps: as in `AudioEncoder.live`.
        """
        tokens: dict[int, Tensor] = {}
        spans: list[Span] = []
        groups: dict[tuple[int, int, int], list[int]] = {}
        for index, mel in enumerate(mels):
            shape = (int(mel.shape[1]), prefixes[index], suffixes[index])
            groups.setdefault(shape, []).append(index)
        for (frames, prefix, suffix), members in groups.items():
            states, taken = self.encoder.live(
                torch.stack([mels[index] for index in members]),
                [rows[index] for index in members],
                cache,
                trim=(math.ceil(prefix / 2), math.ceil(suffix / 2)),
                steps=steps,
            )
            spans += taken
            pooled = self.pool(states)
            count = encoder_frames(frames) // self.pool_step
            for place, index in enumerate(members):
                tokens[index] = pooled[place, :count]
        return [tokens[index] for index in range(len(mels))], spans
