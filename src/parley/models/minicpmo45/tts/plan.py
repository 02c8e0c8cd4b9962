"""Where the tokens of the speech decoder's passes stand: from what the host knows to tensors.

Letters: `P` passes, `R` rows of the step, `T` tokens of one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.transfer import to_device
from parley.models.minicpmo45.tts.layers import Pass
from parley.models.minicpmo45.tts.network import SpeechNetwork


class RowPass(NamedTuple):
    """What the host knows of one row in one pass.

    Args:
        slot: whose cache.
        first, column: the first column it sees, and the one of its first new token.
        position: the rotary position of that token.
        masks_end: whether it may not end with this pass.
    """

    slot: int
    first: int
    column: int
    position: int
    masks_end: bool

    @classmethod
    def unheard(cls, spare: int) -> RowPass:
        """Of a row that fills a graph up; `spare` is the column that is never read."""
        return cls(slot=0, first=0, column=spare, position=0, masks_end=False)


@dataclass(frozen=True, slots=True)
class CacheReads:
    """What a pass reads, as the host decides it.

    Args:
        columns: cache columns.
        first_slot: the rows are neighbouring slots from this one on, so that caches are read
            without a copy; None if they are not.
    """

    columns: int
    first_slot: int | None


def planned(
    decoder: SpeechNetwork,
    lines: Tensor,
    tokens: int,
    counts: list[int] | None,
    cache_reads: CacheReads,
) -> list[Pass]:
    """Where the tokens of some passes stand.

    Args:
        lines: int64, shape (5, P, R): the parts of `RowPass`.
        tokens: `T`.
        counts: real tokens per row where T is padded; None if all have as many.
    """
    slots, first, column, position, masks_end = lines.unbind()
    spare = decoder.capacity
    steps = decoder.numbers[:tokens]
    columns = column[..., None] + steps
    if counts is not None:
        # Padding writes to the column that is never read.
        real = steps < to_device(torch.tensor(counts), lines.device)[:, None]
        columns = torch.where(real, columns, spare)
    # So do rows that ran on behind their end until the cache was full.
    columns = columns.clamp_(max=spare)
    places = (slots[..., None] * (spare + 1)).add(columns).flatten(1)
    groups = decoder.config.heads // decoder.config.kv_heads
    masks: Sequence[Tensor | None] = [None] * lines.shape[1]
    if not (
        decoder.reads_in_place and slot_attention.fits(tokens * groups, decoder.config.head_width)
    ):
        seen = decoder.numbers[: cache_reads.columns]
        hidden = (seen < first[..., None, None]) | (seen > columns[..., None])
        # Added to the scores: made once here, not by every layer.
        mask = torch.zeros(hidden.shape, dtype=decoder.cache.dtype, device=lines.device)
        masks = mask.masked_fill_(hidden, -torch.inf).unsqueeze(2).unbind()
    cos, sin = (
        table.flatten(1, 2).unbind() for table in decoder.angles(position[..., None] + steps)
    )
    which: slice | None = None
    if cache_reads.first_slot is not None:
        which = slice(cache_reads.first_slot, cache_reads.first_slot + lines.shape[2])
    parts = (slots, columns, places, first, masks_end > 0)
    return [
        Pass(
            slots=slot,
            columns=column,
            places=place,
            mask=mask,
            cos=turn,
            sin=side,
            which=slot if which is None else which,
            reads=cache_reads.columns,
            first=start,
            masks_end=may_not_end,
        )
        for slot, column, place, start, may_not_end, mask, turn, side in zip(
            *(part.unbind() for part in parts), masks, cos, sin, strict=True
        )
    ]
