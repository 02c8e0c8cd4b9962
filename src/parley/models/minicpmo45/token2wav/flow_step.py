"""What one call of the flow computed, and how it becomes its rows' past. Source: speech.md 3.4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parley.models.minicpmo45.token2wav.conformer import (
    AttentionHistory,
    Encoded,
)
from parley.models.minicpmo45.token2wav.estimator import (
    Places,
)
from parley.models.minicpmo45.token2wav.flow_memory import (
    FlowMemory,
    Indices,
    Trim,
    kept_frames,
    kept_tokens,
)


@dataclass(slots=True, eq=False)
class FlowStep:
    """What one call computed, not yet part of its rows.

    Args:
        mel: float32, shape (R, 80, T).
        pasts: per Euler step the convolutions' past, as `Flow.solve` gives them; new: the places
            used, per row.
    """

    mel: Tensor
    memory: FlowMemory
    slots: list[int]
    encoded: Encoded
    places: Places
    pasts: Tensor
    new: list[Indices]
    trim: Trim

    @torch.inference_mode()
    def commit(self) -> None:
        """Make it the rows' past, and forget what trimming forgets. Call once."""
        memory, encoded, rows = self.memory, self.encoded, self.places.slots
        for slot in self.slots:
            memory.before_rest(slot)
        memory.conv[:, :, rows] = torch.unflatten(self.pasts, 2, (-1, 2))
        memory.left[rows] = encoded.left
        memory.up[rows] = encoded.up
        for index, slot in enumerate(self.slots):
            row = memory.rows[slot]
            prompt = row.prompt or encoded.frames.shape[1]
            order = np.concatenate([self.new[index], row.places])
            row.places = order[kept_frames(len(order), prompt)]
            tokens = row.tokens + encoded.token_entries.shape[4]
            kept = kept_tokens(tokens, prompt, self.trim)
            _store(memory.tokens, slot, row.tokens, encoded.token_entries[:, :, index], kept)
            row.tokens = len(kept)
            kept = kept_frames(row.frames + encoded.frame_entries.shape[4], prompt)
            _store(memory.frames, slot, row.frames, encoded.frame_entries[:, :, index], kept)
            row.frames = len(kept)
            row.prompt = prompt


def history_of(memory: FlowMemory, slots: Sequence[int]) -> AttentionHistory:
    """What the encoder remembers of some rows."""
    rows: slice | list[int] = list(slots)
    if are_neighbours(slots):
        rows = slice(slots[0], slots[0] + len(slots))
    return AttentionHistory(
        tokens=memory.tokens[:, :, rows],
        frames=memory.frames[:, :, rows],
        token_counts=[memory.rows[slot].tokens for slot in slots],
        frame_counts=[memory.rows[slot].frames for slot in slots],
        left=memory.left[rows],
        up=memory.up[rows],
    )


def _store(cache: Tensor, slot: int, count: int, new: Tensor, kept: Indices) -> None:
    """Right-align the kept entries of a row's history and its new ones."""
    columns = cache.shape[4]
    both = torch.cat([cache[:, :, slot, :, columns - count :], new], dim=3)
    place = columns - len(kept)
    # Kept entries are a few runs; a table of them would have to travel to the device.
    for run in np.split(kept, np.flatnonzero(np.diff(kept) != 1) + 1):
        length = len(run)
        cache[:, :, slot, :, place : place + length] = both[:, :, :, run[0] : run[0] + length]
        place += length


def are_neighbours(slots: Sequence[int]) -> bool:
    """True if slots follow each other, so that caches are read as views."""
    return list(slots) == list(range(slots[0], slots[0] + len(slots)))
