"""The roofline table: a unit's steps as `steps.py` counts them, in milliseconds of a card.

A kernel's time is the longest of three: its bytes at the memory's speed, its products at the speed
of the tensor cores, and the minimum time of a kernel. A kernel that is launched individually takes
at least as long as the host needs for a launch. **Calculated, never measured**: no step overlaps
another, nothing waits for anything else, and a worker runs nothing else.

    python -m tools.roofline.table            print it
    python -m tools.roofline.table --write    ... into docs/understand
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.roofline.meter import Count, Op
from tools.roofline.steps import PaperModel, StepKind

from parley.models.minicpmo45.quantize import Kind


@dataclass(frozen=True, slots=True)
class Card:
    """A card's figures from its data sheet.

    Args:
        bytes_per_s: speed of the device's memory.
        half_flops, wide_flops: speed of dense products in bfloat16 and in TF32
            (`token2wav_precision`), without sparsity.
    """

    name: str
    bytes_per_s: float
    half_flops: float
    wide_flops: float


H200: Final = Card("H200", 4.8e12, 989e12, 494e12)
RTX4090: Final = Card("RTX 4090", 1.008e12, 165e12, 82.6e12)
L40S: Final = Card("L40S", 0.864e12, 362e12, 183e12)
RTX3060: Final = Card("RTX 3060", 0.36e12, 25.5e12, 12.7e12)

MEMORY_SHARE: Final = 0.75
"""Share of the memory's speed that real kernels reach."""

PRODUCT_SHARE: Final = 0.5
"""Share of the data sheet's speed of products that real kernels reach."""

GRAPH_KERNEL_S: Final = 1.5e-6
"""Minimum time of a kernel in a graph."""

LAUNCH_S: Final = 6e-6
"""Minimum time of a kernel launched from Python."""

COPY_S: Final = 20e-6
"""Time of a blocking copy from the host."""

WORST_S: Final = 0.7
"""Maximum time of a unit in each second: the rest is reserved for everything that was not
counted."""

CASES: Final[Sequence[tuple[Card, Kind, int, int, bool]]] = (
    (H200, "none", 1, 2048, False),
    (H200, "none", 4, 4096, False),
    (H200, "none", 8, 8192, False),
    (H200, "none", 32, 8192, False),
    (H200, "fp8", 1, 2048, False),
    (H200, "fp8", 8, 8192, False),
    (H200, "fp8", 32, 8192, True),
    (RTX4090, "int4", 1, 8192, True),
    (RTX4090, "int4", 4, 8192, True),
    (L40S, "int4", 1, 8192, False),
    (L40S, "int4", 4, 8192, True),
    (L40S, "smallest", 1, 8192, True),
    (RTX3060, "smallest", 1, 2048, True),
)
"""Card, weights, number of conversations, context tokens of each, and True for caches in 8 bits."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The cost of a unit on a card.

    Args:
        rows: number of conversations that all show, hear and speak in the same second.
    """

    card: Card
    kind: Kind
    rows: int
    context_tokens: int
    has_small_caches: bool
    steps: tuple[StepKind, ...]

    def seconds(self, name: str) -> float:
        """Time of all steps of one name."""
        return sum(
            step.times * step_seconds(step, self.card) for step in self.steps if step.name == name
        )

    @property
    def total_s(self) -> float:
        return sum(step.times * step_seconds(step, self.card) for step in self.steps)


def step_seconds(step: StepKind, card: Card) -> float:
    """Time of one step on a card."""
    copies = COPY_S * step.eager.copies
    eager = _seconds(step.eager, card, LAUNCH_S)
    return copies + eager + _seconds(step.captured, card, GRAPH_KERNEL_S)


def _seconds(count: Count, card: Card, least_s: float) -> float:
    return sum(kernel_seconds(op, card, least_s) for op in count.ops)


def kernel_seconds(op: Op, card: Card, least_s: float) -> float:
    """Time of all kernels of an operator on a card, each at least `least_s`."""
    products = PRODUCT_SHARE * (card.wide_flops if op.is_wide else card.half_flops)
    moved_s = op.nbytes / (MEMORY_SHARE * card.bytes_per_s)
    return max(moved_s, op.flops / products, op.kernels * least_s)


def unit_of(card: Card, kind: Kind, rows: int, context_tokens: int, has_small_caches: bool) -> Unit:
    """The cost of a unit of the published model on a card."""
    steps = _counted(kind, rows, context_tokens, has_small_caches)
    return Unit(card, kind, rows, context_tokens, has_small_caches, steps)


@functools.cache
def _counted(
    kind: Kind, rows: int, context_tokens: int, has_small_caches: bool
) -> tuple[StepKind, ...]:
    model = PaperModel(
        kind, slots=rows, context_tokens=context_tokens, has_small_caches=has_small_caches
    )
    return tuple(model.unit(rows))


def markdown(units: Sequence[Unit]) -> str:
    """Both tables: milliseconds by step, and the composition of each step in the largest case."""
    names = [step.name for step in units[0].steps]
    heads = [
        f"{unit.card.name}, {'bf16' if unit.kind == 'none' else unit.kind}, {unit.rows}, "
        f"{unit.context_tokens // 1024}k{', caches in 8 bits' if unit.has_small_caches else ''}"
        for unit in units
    ]
    lines = [
        f"| ms (calculated) | {' | '.join(heads)} |",
        "|---|" + "---|" * len(units),
    ]
    for name in names:
        cells = [f"{1000 * unit.seconds(name):.0f}" for unit in units]
        times = next(step.times for step in units[0].steps if step.name == name)
        lines.append(f"| {name}{f' × {times}' if times > 1 else ''} | {' | '.join(cells)} |")
    totals = [f"**{1000 * unit.total_s:.0f}**" for unit in units]
    lines.append(f"| together | {' | '.join(totals)} |")
    largest = max(units, key=lambda unit: unit.rows)
    lines += [
        "",
        f"| one step of {largest.rows} rows (counted) | launched | in graphs | copies from the "
        "host | GB of weights | GB of caches |",
        "|---|---|---|---|---|---|",
    ]
    for step in largest.steps:
        lines.append(
            f"| {step.name} | {step.eager.kernels} | {step.captured.kernels} | "
            f"{step.eager.copies} | {step.weight_bytes / 1e9:.2f} | {step.cache_bytes / 1e9:.2f} |"
        )
    return "\n".join(lines)


PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "understand" / "minicpmo45.md"
BEGIN: Final = "<!-- the roofline table: begin -->\n"
END: Final = "\n<!-- the roofline table: end -->"


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or write them into the page."""
    tables = markdown([unit_of(*case) for case in CASES])
    if "--write" not in arguments:
        print(tables)
        return
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + tables + END + after, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
