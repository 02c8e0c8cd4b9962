"""The live step of the audio encoder for all rows together, captured as graphs where graphs exist.

A second of sound takes about four hundred small kernels for any number of rows, and launching them
takes longer than running them. A chunk's rows, and the length of each row's past, are a table on
the device, so one graph serves all chunks of a shape. The number of rows is rounded up to a power
of two.

Shapes as in `network.py`; `C` encoder frames that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45.audio_encoder.mel import encoder_frames
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.attention import FusedAttention, attending
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

if TYPE_CHECKING:
    from parley.models.minicpmo45.audio_encoder.network import AudioEncoder

LEAST_COLUMNS: Final = 256
"""No step reads fewer columns, which are five seconds."""


class LiveSteps:
    """Live chunks over one cache, on a GPU or where steps are captured."""

    def __init__(self, encoder: AudioEncoder, cache: SlotCache, graphs: GraphRunner) -> None:
        self._encoder = encoder
        self._cache = cache
        self._graphs = graphs

    def takes(self, count: int) -> bool:
        """True if chunks of `count` kept frames run here."""
        encoder = self._encoder
        if encoder.attention.reads_in_place:
            return slot_attention.fits(count, encoder.head_dim)
        return self._graphs.is_active and count <= slot_attention.MOST_QUERIES

    def run(self, mel: Tensor, spans: Sequence[Span], kept: tuple[int, int]) -> Tensor:
        """States (N, C, Da) of a chunk (N, M, F); the cache is extended, its lengths are not.

        Args:
            kept: the first frame that is kept after the convolutions, and the one behind the last.
        """
        size = bucket(len(spans), self._cache.rows)
        longest = max(span.end for span in spans)
        reads = min(reach for reach in self._reaches if reach >= longest)
        table = [[span.row, span.start, span.end] for span in spans]
        padding = size - len(spans)
        # Padding writes to the spare column and reads the first.
        rows = torch.tensor(table + [[0, self._cache.spare, 1]] * padding)
        return self._step(F.pad(mel, (0, 0, 0, 0, 0, padding)), rows, kept, reads)[: len(spans)]

    def capture(self, frames: int, trim: tuple[int, int]) -> None:
        """Capture chunks of `frames` mel frames, for every number of rows; no row's sound changes.

        Args:
            trim: encoder frames that are cut off left and right.
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
                    self._step(mel, table, kept, reads, is_checked=size <= CHECKED_ROWS)

    @property
    def _reaches(self) -> list[int]:
        """Numbers of columns that steps read. The kernel stops where a row ends, and a second of
        sound is one step: there one graph is enough."""
        least = self._cache.capacity if self._encoder.attention.reads_in_place else LEAST_COLUMNS
        return reaches(least, self._cache.capacity)

    def _step(
        self,
        mel: Tensor,
        table: Tensor,
        kept: tuple[int, int],
        reads: int,
        *,
        is_checked: bool = False,
    ) -> Tensor:
        """One chunk of every line of a table (N, 3): row, where it begins, where it ends.

        Args:
            is_checked: compare with the plain step when it is captured.
        """
        encoder, cache = self._encoder, self._cache

        def run(mel: Tensor, table: Tensor) -> tuple[Tensor, ...]:
            x = encoder.front(mel)[:, kept[0] : kept[1]]
            rows, starts, ends = table.T.contiguous().unbind()
            places = starts[:, None] + torch.arange(x.shape[1], device=table.device)
            x = x + encoder.embed_positions(places.clamp(max=encoder.positions - 1))
            # Every new frame sees its whole chunk, so all of a row end where the row ends.
            last = (ends[:, None] - 1).expand(-1, x.shape[1]).contiguous()
            columns = places.clamp(max=cache.spare)
            batch = cache.placed(PaddedBatch(rows, columns, last, reads))
            batch = encoder.attention.prepared(batch, cache, 1)
            for index, layer in enumerate(encoder.layers):
                x = encoder.live_layer(index, layer, x, (), cache, batch)
            return (encoder.layer_norm(x),)

        def plain(mel: Tensor, table: Tensor) -> tuple[Tensor, ...]:
            with attending(encoder, FusedAttention()):
                return run(mel, table)

        shape = (int(mel.shape[0]), int(mel.shape[2]), kept, reads)
        reference = plain if is_checked else None
        (states,) = self._graphs.run("sound", shape, run, [mel, table], reference=reference)
        return states
