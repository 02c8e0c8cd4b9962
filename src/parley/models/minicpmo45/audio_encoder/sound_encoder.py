"""Encoding of whole clips and live audio to context tokens.

Shapes as in `network.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45.audio_encoder.live_steps import LiveSteps
from parley.models.minicpmo45.audio_encoder.mel import (
    PIECE_SAMPLES,
    Floor,
    MelExtractor,
    Samples,
    encoder_frames,
)
from parley.models.minicpmo45.audio_encoder.network import AudioEncoder
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.runtime.caches import Span
from parley.models.minicpmo45.runtime.layers import Projection


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
