"""Encoding of whole clips and live audio to context tokens.

Shapes as in `network.py`; `C` number of encoder frames that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45.audio_encoder.mel import (
    PIECE_SAMPLES,
    MelExtractor,
    Samples,
    encoder_frames,
)
from parley.models.minicpmo45.audio_encoder.network import AudioEncoder
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.device import to_device
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.attention import compare
from parley.models.minicpmo45.runtime.caches import PaddedBatch, SlotCache, Span
from parley.models.minicpmo45.runtime.graphs import (
    CHECKED_ROWS,
    GraphRunner,
    bucket,
    buckets,
    filled,
    reaches,
    uneven,
)
from parley.models.minicpmo45.runtime.layers import Projection

LEAST_COLUMNS: Final = 256
"""Minimum number of columns that a step reads: five seconds."""


class LiveSteps:
    """Encodes live chunks over one cache: row by row, or all rows together, by graphs if possible.

    A second of audio takes about four hundred small kernels for any number of rows, and launching
    them takes longer than running them. A chunk's rows, and the length of each row's past, are a
    table on the device, so one graph serves all chunks of a shape. The number of rows is rounded up
    to a power of two.
    """

    def __init__(self, encoder: AudioEncoder, cache: SlotCache, graphs: GraphRunner) -> None:
        self._encoder = encoder
        self._cache = cache
        self._graphs = graphs

    def hear(
        self, mel: Tensor, rows: Sequence[int], *, trim: tuple[int, int]
    ) -> tuple[Tensor, list[Span]]:
        """Encode the next chunk of several streams, (N, M, F) to (N, C, Da), extending their cache.

        Every new frame attends to everything cached, and to its own chunk in both directions. The
        rows' lengths do not change until the returned spans are committed with `cache.commit`.

        Args:
            rows: cache row of each stream.
            trim: number of encoder frames to cut off left and right after the convolutions.
        """
        frames = encoder_frames(mel.shape[2])
        left, right = trim
        right = 0 if left + right >= frames else right
        kept = (left, frames - right)
        count = kept[1] - left
        spans = [Span(row, self._cache.lengths[row], count) for row in rows]
        table = [[span.row, span.start, span.end] for span in spans]
        longest = max(span.end for span in spans)
        if not self._is_batched(count):
            return self._states(mel, torch.tensor(table), kept, longest, tuple(rows)), spans
        padding = bucket(len(rows), self._cache.rows) - len(rows)
        # Padding writes to the spare column and reads the first.
        table += [[0, self._cache.spare, 1]] * padding
        reads = min(reach for reach in self._reaches if reach >= longest)
        mel = F.pad(mel, (0, 0, 0, 0, 0, padding))
        return self._step(mel, torch.tensor(table), kept, reads)[: len(rows)], spans

    def _is_batched(self, count: int) -> bool:
        """True if chunks of `count` kept frames run as a padded batch, for any rows of it."""
        encoder = self._encoder
        if encoder.attention.reads_in_place:
            return slot_attention.fits(count, encoder.head_dim)
        return self._graphs.is_active and count <= slot_attention.QUERIES

    def capture(self, frames: int, trim: tuple[int, int]) -> None:
        """Capture chunks of `frames` mel frames, for every number of rows; no row's cache changes.

        Args:
            trim: number of encoder frames that are cut off left and right.
        """
        if not self._graphs.is_active:
            return
        cache, bins = self._cache, self._encoder.conv1.in_channels
        kept = (trim[0], encoder_frames(frames) - trim[1])
        random = torch.Generator().manual_seed(frames)
        with filled(cache.tensors):
            for reads in self._reaches:
                for size in buckets(cache.rows):
                    ends = uneven(size, reads)
                    rows = [[row, cache.spare, end + 1] for row, end in enumerate(ends)]
                    mel = torch.randn(size, bins, frames, generator=random)
                    table = torch.tensor(rows)
                    if size <= CHECKED_ROWS:
                        step = partial(self._states, mel, table, kept, reads)
                        compare(self._encoder, step, f"sound steps of {size} rows")
                    self._step(mel, table, kept, reads)

    @property
    def _reaches(self) -> list[int]:
        """Numbers of columns that steps read. The kernel stops at the end of a row, and a second of
        audio is one step, so with the kernel one graph is enough."""
        least = self._cache.capacity if self._encoder.attention.reads_in_place else LEAST_COLUMNS
        return reaches(least, self._cache.capacity)

    def _step(
        self,
        mel: Tensor,
        table: Tensor,
        kept: tuple[int, int],
        reads: int,
    ) -> Tensor:
        """`_states`, by a graph if there is one."""

        def run(mel: Tensor, table: Tensor) -> tuple[Tensor, ...]:
            return (self._states(mel, table, kept, reads),)

        shape = (int(mel.shape[0]), int(mel.shape[2]), kept, reads)
        (states,) = self._graphs.run("sound", shape, run, [mel, table])
        return states

    def _states(
        self,
        mel: Tensor,
        table: Tensor,
        kept: tuple[int, int],
        reads: int,
        slots: tuple[int, ...] | None = None,
    ) -> Tensor:
        """States (N, C, Da) of one chunk for every line of a table (N, 3): row, start, end.

        Args:
            kept: the first frame that is kept after the convolutions, and the one after the last.
            reads: number of columns that attention reads.
            slots: the rows, if the host knows them.
        """
        encoder, cache = self._encoder, self._cache
        x = encoder.front(mel)[:, kept[0] : kept[1]]
        count = x.shape[1]
        rows, starts, ends = to_device(table, x.device).T.contiguous().unbind()
        places = starts[:, None] + torch.arange(count, device=x.device)
        # Every new frame attends to its whole chunk, so all frames of a row read up to its end.
        last = (ends[:, None] - 1).expand(-1, count).contiguous()
        columns = places.clamp(max=cache.spare)
        batch = cache.placed(PaddedBatch(rows, columns, last, reads, slots))
        batch = encoder.attention.prepared(batch, cache, 1)
        x = x + encoder.embed_positions(places.clamp(max=encoder.positions - 1))
        for index, layer in enumerate(encoder.layers):
            x = self._layer(index, layer, x, batch)
        return encoder.layer_norm(x)

    def _layer(self, index: int, layer: Any, x: Tensor, batch: PaddedBatch) -> Tensor:
        """A layer's states (N, C, Da)."""
        cache, kernel, attention = self._cache, self._encoder.attention, layer.self_attn
        normed = layer.self_attn_layer_norm(x)
        projected = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
        query, keys, values = (
            torch.unflatten(one, 2, (attention.heads, attention.head_dim)) for one in projected
        )
        cache.write_padded(index, batch, keys.flatten(0, 1), values.flatten(0, 1))
        heard = kernel.padded(index, query, batch, cache)
        return layer.think(x + attention.out_proj(heard.reshape(*x.shape)))


class SoundEncoder:
    """Encodes whole clips and live audio to context tokens."""

    def __init__(
        self,
        encoder: AudioEncoder,
        projection: Projection,
        config: MiniCPMOConfig,
    ) -> None:
        self.encoder = encoder
        self.projection = projection
        self.extractor = MelExtractor(config.audio.num_mel_bins)
        self.pool_step = config.pool_step
        self.chunk_frames = config.audio_chunk_frames

    def pool(self, states: Tensor) -> Tensor:
        """Encoder states (N, C, Da) to tokens (N, C // pool_step, H); a remainder is dropped."""
        projected = self.projection(states)
        if states.shape[1] < self.pool_step:
            return projected[:, :0]
        return F.avg_pool1d(projected.transpose(1, 2), self.pool_step).transpose(1, 2)

    def pieces(self, clips: Sequence[Samples]) -> list[Tensor]:
        """Features of clips, cut every 30 s; (M, f) each."""
        return [
            self.extractor.whole(clip[first : first + PIECE_SAMPLES])
            for clip in clips
            for first in range(0, max(1, len(clip)), PIECE_SAMPLES)
        ]

    def encode_pieces(
        self, mels: Sequence[Tensor], *, chunked: bool, longest: int | None = None
    ) -> list[Tensor]:
        """Tokens (n, H) per piece; the pieces are one batch, padded to the longest.

        Args:
            longest: pad to this many mel frames instead, so that a long request may be encoded in
                several calls with the same result as in one.
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
        steps: LiveSteps,
        *,
        margins: Sequence[tuple[int, int]],
    ) -> tuple[list[Tensor], list[Span]]:
        """Tokens (n, H) of the next chunk of several live streams.

        Chunks of one shape are encoded together. The cache's lengths do not change until the
        returned spans are committed with `cache.commit`.

        Args:
            steps: live steps over the streams' cache.
            margins: number of redundant mel frames at the left and right of each chunk.
        """
        tokens: dict[int, Tensor] = {}
        spans: list[Span] = []
        groups: dict[tuple[int, tuple[int, int]], list[int]] = {}
        for index, (mel, margin) in enumerate(zip(mels, margins, strict=True)):
            groups.setdefault((int(mel.shape[1]), margin), []).append(index)
        for (frames, (left, right)), members in groups.items():
            states, taken = steps.hear(
                torch.stack([mels[index] for index in members]),
                [rows[index] for index in members],
                trim=(math.ceil(left / 2), math.ceil(right / 2)),
            )
            spans += taken
            pooled = self.pool(states)
            count = encoder_frames(frames) // self.pool_step
            for place, index in enumerate(members):
                tokens[index] = pooled[place, :count]
        return [tokens[index] for index in range(len(mels))], spans
