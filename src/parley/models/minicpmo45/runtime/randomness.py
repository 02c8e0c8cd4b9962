"""Random numbers from a seed and a counter, and a draw that does not depend on the batch.

A row draws the same numbers whoever shares its batch, on any device, and a mark has to remember one
integer only. Shapes: `R` rows, `K` candidates. Source: speech.md 2.4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def uniforms(seed: int, start: int, count: int) -> npt.NDArray[np.float32]:
    """Numbers `start` to `start + count` of the sequence that belongs to `seed`, in (0, 1).

    SplitMix64 of a counter. 23 bits, so that each is exact in float32 and never 0 or 1.
    """
    mask = 0xFFFFFFFFFFFFFFFF
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(_mix(seed & mask))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (((z >> np.uint64(41)).astype(np.float64) + 0.5) / 2**23).astype(np.float32)


def _mix(seed: int) -> int:
    """Spread neighbouring seeds, so that their sequences do not overlap by a small shift."""
    mask = 0xFFFFFFFFFFFFFFFF
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def race(probabilities: Tensor, draws: Tensor, ids: Tensor | None = None) -> Tensor:
    """Draw one entry per row: each runs a race in which its speed is its probability, and the first
    one home wins.

    Walking along the running sum would draw from the same distribution, but there the last bits of
    a probability move every border behind it, and in a flat distribution over thousands of codes
    one draw in a thousand falls between an old border and a new one. Here only the two fastest
    matter, so a row draws the same in company, where sums come out differently, as alone.

    Args:
        probabilities: (R, K), not negative, any scale; entries of 0 never win.
        draws: float32, (R,), in (0, 1): numbers of `uniforms`; each seeds the noise of its row.
        ids: (R, K) int64, what an entry's noise belongs to; None takes its place in the row.

    Returns:
        The winners' places, int64, (R,).
    """
    if ids is None:
        ids = torch.arange(probabilities.shape[1], device=probabilities.device)[None]
    z = (draws.double() * 2**23).long()[:, None] * _GOLDEN + ids * _STRIDE
    z.bitwise_xor_(_shifted(z, 30)).mul_(_FIRST)
    z.bitwise_xor_(_shifted(z, 27)).mul_(_SECOND)
    # SplitMix64's last step only touches bits that are not read here.
    noise = _shifted(z, 41).float().add_(0.5).mul_(2.0**-23)
    return (probabilities / noise.log_().neg_()).argmax(-1)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """A logical right shift; torch's is arithmetic."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


# SplitMix64's constants as signed numbers; products wrap around.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_STRIDE = _signed(0xD1342543DE82EF95)
