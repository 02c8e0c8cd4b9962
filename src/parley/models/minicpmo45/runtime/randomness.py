"""Random numbers from a seed and a counter, and a draw that does not depend on the batch.

A row draws the same numbers in any batch and on any device, and a checkpoint needs to store only
one integer. Shapes: `R` rows, `K` candidates. Source: speech.md 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def uniforms(seed: int, start: int, count: int) -> npt.NDArray[np.float32]:
    """Numbers `start` to `start + count` of the sequence of `seed`, in (0, 1)."""
    return numbers([seed], np.arange(start, start + count))


def numbers(
    seeds: Sequence[int], places: Sequence[int] | npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """One number of each seed's sequence, or several of one seed's.

    SplitMix64 of a counter. Each has 23 bits, so that it is exact in float32 and never 0 or 1.
    """
    z = np.asarray(places).astype(np.uint64) + np.uint64(1)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = z + np.array([_mix(seed) for seed in seeds], np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (((z >> np.uint64(41)).astype(np.float64) + 0.5) / 2**23).astype(np.float32)


def _mix(seed: int) -> int:
    """Spread neighbouring seeds, so that their sequences do not overlap by a small shift."""
    mask = 0xFFFFFFFFFFFFFFFF
    z = ((seed & mask) + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@cache
def gumbel_table(device: torch.device) -> Tensor:
    """Table of Gumbel noise for draws, float32, shape (`_STARTS` + `_REACH`,); the same on any
    device. Computed once per device, at the first draw there.
    """
    noise = -np.log(-np.log(uniforms(0, 0, _STARTS + _REACH).astype(np.float64)))
    return torch.from_numpy(noise.astype(np.float32)).to(device)


def race(logits: Tensor, draws: Tensor, ids: Tensor | None = None) -> Tensor:
    """Draw one entry per row with a probability proportional to the exponential of its logit:
    Gumbel noise is added to each entry, and the largest wins.

    Drawing by the cumulative sum of probabilities would give the same distribution. But there the
    last bits of a probability shift every later border, and in a flat distribution over thousands
    of codes one draw in a thousand falls between an old border and a new one. Here only the two
    largest entries matter, so a row draws the same alone and in a batch, where sums differ in the
    last bits.

    The noise is a slice of one table; the row's draw determines where the slice starts.

    Args:
        logits: float32, (R, K); a constant per row may be added. Entries of minus infinity never
            win.
        draws: float32, (R,), in (0, 1): numbers of `uniforms`.
        ids: (R, K) int64, below `_REACH`: ids that determine the noise of entries; None: their
            indices in the row.

    Returns:
        Indices of the winners, int64, (R,).
    """
    table = gumbel_table(logits.device)
    starts = (draws * _STARTS).long()
    if ids is None:
        pieces = table.as_strided((_STARTS, logits.shape[1]), (1, 1))
        noise = pieces.index_select(0, starts)
    else:
        noise = table[starts[:, None] + ids]
    return noise.add_(logits).argmax(-1)


_STARTS = 1 << 21
"""Number of positions of the table at which a row's noise may start."""

_REACH = 1 << 18
"""Maximum number of entries of a row; more than any vocabulary here."""
