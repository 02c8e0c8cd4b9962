"""Where a card's memory goes: one table, for `--slots auto` and for `parley doctor`.

Weights and caches are counted from shapes. What steps take while they run, what captured graphs
keep and what voices of callers take are upper estimates, written out below: **calculated, not
measured on a card**.

Letters: `H` width of the language model, `I` its inner width, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

GIB: Final = 1024**3

LIBRARIES_BYTES: Final = GIB // 2
"""Workspaces of cuBLAS and cuDNN, and what fragmentation wastes."""

GRAPHS_BYTES: Final = GIB // 4
"""Inputs and outputs of captured graphs; the space in between is shared."""

VISION_BATCH_TOKENS: Final = 16 * 1024
"""Patches that go through the vision encoder together."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes on the device.

    Args:
        once: what there is one of, by name: weights, workspaces.
        per_slot: what every slot has, by name.
    """

    once: Mapping[str, int] = field(default_factory=dict)
    per_slot: Mapping[str, int] = field(default_factory=dict)

    @property
    def once_bytes(self) -> int:
        return sum(self.once.values())

    @property
    def slot_bytes(self) -> int:
        return sum(self.per_slot.values())

    def total_bytes(self, slots: int) -> int:
        """Everything, with so many slots in their worst hour."""
        return self.once_bytes + slots * self.slot_bytes

    def slots_in(self, free_bytes: int, *, most: int) -> int:
        """How many slots fit; 0 if not even one does."""
        left = free_bytes - self.once_bytes
        return max(0, min(most, left // max(1, self.slot_bytes)))

    def without(self, *names: str) -> MemoryBudget:
        """The same without things that are on the device already."""
        once = {name: size for name, size in self.once.items() if name not in names}
        return MemoryBudget(once, self.per_slot)

    def table(self, slots: int) -> list[str]:
        """Lines for people."""
        lines = [f"{name}: {size / GIB:.2f} GiB" for name, size in self.once.items() if size]
        lines += [
            f"{name}: {size / GIB:.2f} GiB per slot" for name, size in self.per_slot.items() if size
        ]
        total = self.total_bytes(slots)
        return [*lines, f"together {total / GIB:.2f} GiB with {slots} slots, all of them busy"]


def step_bytes(*, width: int, inner: int, tokens: int, size: int) -> int:
    """What the largest prefill step takes while it runs, whoever shares it: a layer holds about
    eight tensors of `H` and three of `I` per position."""
    return tokens * (8 * width + 3 * inner) * size


def choice_bytes(vocabulary: int) -> int:
    """What choosing a token takes per row: about six tensors of `V` in float32."""
    return 6 * 4 * vocabulary


def vision_bytes(*, width: int, inner: int, size: int) -> int:
    """What a full batch of the vision encoder takes while it runs."""
    return VISION_BATCH_TOKENS * (8 * width + 2 * inner) * size
