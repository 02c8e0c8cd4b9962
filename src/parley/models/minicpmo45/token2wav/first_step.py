"""The first Euler step without conditions, remembered on a CPU.

It begins with the noise table and sees neither tokens nor voice nor the prompt's mel: what it
computes depends only on how many frames the prompt and each call of the turn had. So it is the same
in every turn that is cut the same way, whoever speaks, and from the second such turn on a call of
five Euler steps has nine halves left to compute. What is remembered is what would be computed, bit
for bit: this half is always computed for one row alone.

Letters: `T` mel frames of a call, `H` heads, `W` width.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from torch import Tensor

CALLS_KEPT: Final = 32
"""Calls remembered; in a turn, its first so many. A call of 50 frames takes 3.3 MiB in float32."""

Cut = tuple[int, ...]
"""Mel frames of the prompt, of each call of the turn before this one, and of this one."""


@dataclass(frozen=True, slots=True, eq=False)
class FirstHalf:
    """What one call's first Euler step without conditions leaves.

    Args:
        velocity: shape (T, 80).
        past: the convolutions' next past, shape (blocks, 2, 2, W).
        keys, values: history of the new frames, shape (blocks, T, H, head width).
    """

    velocity: Tensor
    past: Tensor
    keys: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.velocity, self.past, self.keys, self.values))


class FirstHalves:
    """At most `limit` calls; those not used for longest are forgotten."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: OrderedDict[Cut, FirstHalf] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(half.nbytes for half in self._kept.values())

    def covers(self, cut: Cut) -> bool:
        """Whether a call belongs to those of a turn that are remembered."""
        return 2 <= len(cut) <= 1 + self.limit

    def get(self, cut: Cut) -> FirstHalf | None:
        """What is known of a call."""
        half = self._kept.get(cut)
        if half is not None:
            self._kept.move_to_end(cut)
        return half

    def keep(self, cut: Cut, half: FirstHalf) -> None:
        """Remember a call."""
        self._kept[cut] = half
        self._kept.move_to_end(cut)
        while len(self._kept) > self.limit:
            self._kept.popitem(last=False)
